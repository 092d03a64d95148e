"""The scores of predicted labels, with bootstrap intervals.

They follow from the number of texts of each label (true, predicted, and both), so that thousands of
labels need no matrix of labels x labels.

The resampled units are source texts, or the groups that no split divides: texts of one author are
not independent. All systems are scored on the same resamples, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from bsmeta.report.inference import central, draws
from bsmeta.report.table import Estimate, Interval

SCORES = ("accuracy", "balanced_accuracy", "macro_f1", "mcc")

_COUNTS_AT_ONCE = 1 << 22  # of labels in resamples, in memory at one time


@dataclass(frozen=True)
class Confusion:
    """The cells of a confusion matrix that are not 0, by true and then by predicted label.

    Attributes:
        true, predicted: int64 [cells], the labels.
        counts: int64 [cells], the number of texts.
        labels: The number of labels.
    """

    true: np.ndarray
    predicted: np.ndarray
    counts: np.ndarray
    labels: int

    @classmethod
    def of(cls, truth: np.ndarray, predicted: np.ndarray, labels: int) -> Confusion:
        """Counts the texts with each pair of labels: int [texts], both."""
        cells, counts = np.unique(truth * labels + predicted, return_counts=True)
        return cls(cells // labels, cells % labels, counts, labels)

    @property
    def texts(self) -> int:
        """The number of texts."""
        return int(self.counts.sum())

    def totals(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Texts of each label that have it, are predicted to, and both: float64 [labels] each."""
        right = self.true == self.predicted
        return (
            np.bincount(self.true, self.counts, self.labels),
            np.bincount(self.predicted, self.counts, self.labels),
            np.bincount(self.true[right], self.counts[right], self.labels),
        )

    def matrix(self, shown: Sequence[int]) -> np.ndarray:
        """The matrix of some labels, int64 [shown + 1, shown + 1]; the last ones are all others."""
        places = np.full(self.labels, len(shown))
        places[list(shown)] = np.arange(len(shown))
        found = np.zeros((len(shown) + 1, len(shown) + 1), np.int64)
        np.add.at(found, (places[self.true], places[self.predicted]), self.counts)
        return found


def scores(true: np.ndarray, predicted: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
    """The scores of counts of texts, as scikit-learn defines them.

    Labels that do not occur are left out of the means: of balanced accuracy those without a text,
    of macro F1 those without a text and a prediction. MCC (Gorodkin 2004) is 0 where it is
    undefined: with one label only.

    Args:
        true: float64 [..., labels], the texts that have a label.
        predicted: float64 [..., labels], those that are predicted to have it.
        right: float64 [..., labels], those of which both are true.

    Returns:
        Each of `SCORES`, float64 [...].
    """
    recall = _ratio(right, true)
    f1 = _ratio(2 * right, true + predicted)
    total = true.sum(-1)
    covariance = right.sum(-1) * total - (true * predicted).sum(-1)
    spread = (total**2 - (true**2).sum(-1)) * (total**2 - (predicted**2).sum(-1))
    return {
        "accuracy": _ratio(right.sum(-1), total),
        "balanced_accuracy": _ratio(recall.sum(-1), (true > 0).sum(-1)),
        "macro_f1": _ratio(f1.sum(-1), (true + predicted > 0).sum(-1)),
        "mcc": _ratio(covariance, np.sqrt(np.maximum(spread, 0.0))),
    }


def by_label(confusion: Confusion) -> dict[str, np.ndarray]:
    """Precision, recall, F1 and number of texts of each label, float64 [labels] each."""
    true, predicted, right = confusion.totals()
    return {
        "precision": _ratio(right, predicted),
        "recall": _ratio(right, true),
        "f1": _ratio(2 * right, true + predicted),
        "texts": true,
    }


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    zeros = np.zeros(np.broadcast_shapes(np.shape(top), np.shape(bottom)))
    return np.divide(top, bottom, out=zeros, where=np.asarray(bottom) > 0)


@dataclass(frozen=True)
class Compared:
    """The scores of a system on the test set.

    Attributes:
        name: The system.
        confusion: Its true and predicted labels.
        values: Each of `SCORES`.
        intervals: Their 95% bootstrap intervals.
        differences: This system minus the first one, with its paired interval; {} for the first.
    """

    name: str
    confusion: Confusion
    values: dict[str, float]
    intervals: dict[str, Interval]
    differences: dict[str, Estimate]


def compare(
    truth: np.ndarray,
    predicted: Mapping[str, np.ndarray],
    units: np.ndarray,
    labels: int,
    *,
    resamples: int,
    seed: int,
) -> list[Compared]:
    """Scores several systems on the same texts.

    Args:
        truth: int [texts], the true labels.
        predicted: The labels that each system predicts; the others are compared with the first.
        units: int [texts], the resampled unit that each text belongs to.
        labels: Number of labels.
        resamples: Number of resamples.
        seed: Seed of the resamples; they are the same for every system.
    """
    first_values: dict[str, float] = {}
    first_draws: dict[str, np.ndarray] = {}
    found = []
    for name, guesses in predicted.items():
        confusion = Confusion.of(truth, guesses, labels)
        values = {score: float(value) for score, value in scores(*confusion.totals()).items()}
        own = _resampled_scores(truth, guesses, units, resamples=resamples, seed=seed)
        differences = {
            score: Estimate(values[score] - first_values[score], central(own[score] - draw))
            for score, draw in first_draws.items()
        }
        intervals = {score: central(draw) for score, draw in own.items()}
        found.append(Compared(name, confusion, values, intervals, differences))
        first_values, first_draws = first_values or values, first_draws or own
    return found


def _resampled_scores(
    truth: np.ndarray, predicted: np.ndarray, units: np.ndarray, *, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Each of `SCORES` for each resample of the units, float64 [resamples].

    The memory grows with the texts, never with the number of labels of the table.
    """
    names, columns = np.unique(np.concatenate([truth, predicted]), return_inverse=True)
    true, guessed = np.split(columns, 2)
    _, place = np.unique(units, return_inverse=True)
    shape = (int(place.max()) + 1, len(names))
    counts = [
        csr_array((np.ones(len(rows)), (rows, labels)), shape)
        for rows, labels in (
            (place, true), (place, guessed), (place[true == guessed], true[true == guessed]),
        )
    ]  # fmt: skip
    at_once = max(_COUNTS_AT_ONCE // len(names), 1)
    parts = [
        scores(*(times[start : start + at_once] @ count for count in counts))
        for times in draws(shape[0], resamples=resamples, seed=seed)
        for start in range(0, len(times), at_once)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in SCORES}
