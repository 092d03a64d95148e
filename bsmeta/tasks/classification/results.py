"""The scores of the model and of other systems on a test set, with intervals.

Scores follow from the number of texts of each label (true, predicted, and both), so that thousands
of labels need no matrix of labels x labels.

The resampled units are source texts, or the groups that no split divides: texts of one author are
not independent. All systems are scored on the same resamples, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bsmeta.report.inference import Estimate, central, draws
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import Scored

SCORES = ("accuracy", "balanced_accuracy", "macro_f1", "mcc")
MODEL, FIRST_CHUNK = "model", "model, first chunk only"
_COUNTS_AT_ONCE = 1 << 22  # of labels in resamples, in memory at one time


@dataclass(frozen=True)
class Confusion:
    """The cells of a confusion matrix that are not 0, by true and then by predicted label."""

    true: np.ndarray  # int64 [cells], the labels
    predicted: np.ndarray  # int64 [cells]
    counts: np.ndarray  # int64 [cells], the number of texts
    labels: int  # their number

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

    def scores(self) -> dict[str, float]:
        """Each of `SCORES`."""
        return {name: float(value) for name, value in _scores(*self.totals()).items()}

    def by_label(self) -> dict[str, np.ndarray]:
        """Precision, recall, F1 and number of texts of each label, float64 [labels] each."""
        true, predicted, right = self.totals()
        return {
            "precision": _ratio(right, predicted),
            "recall": _ratio(right, true),
            "f1": _ratio(2 * right, true + predicted),
            "texts": true,
        }

    def matrix(self, shown: Sequence[int]) -> np.ndarray:
        """The matrix of some labels, int64 [shown + 1, shown + 1]; the last ones are all others."""
        places = np.full(self.labels, len(shown))
        places[list(shown)] = np.arange(len(shown))
        found = np.zeros((len(shown) + 1, len(shown) + 1), np.int64)
        np.add.at(found, (places[self.true], places[self.predicted]), self.counts)
        return found


def _scores(true: np.ndarray, predicted: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
    """`SCORES` as scikit-learn defines them, float64 [...], from `totals`, float64 [..., labels].

    Labels that do not occur are left out of the means: of balanced accuracy those without a text,
    of macro F1 those without a text and a prediction. MCC (Gorodkin 2004) is 0 where it is
    undefined: with one label only.
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


def scores_of(scored: Scored, weights: Sequence[float]) -> dict[str, float]:
    """The loss over the chunks, weighted by label as in training; the scores of the texts."""
    own = np.asarray(weights)[scored.chunk_labels]
    return {
        "loss": float((scored.chunk_losses * own).sum() / own.sum()),
        **Confusion.of(scored.labels, scored.predicted, len(weights)).scores(),
        "chunk_accuracy": float(np.mean(scored.chunk_labels == scored.chunk_predicted)),
    }


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    zeros = np.zeros(np.broadcast_shapes(np.shape(top), np.shape(bottom)))
    return np.divide(top, bottom, out=zeros, where=np.asarray(bottom) > 0)


@dataclass(frozen=True)
class Compared:
    """A system among others that are scored on the same texts."""

    name: str
    confusion: Confusion
    scores: dict[str, Estimate]  # each of `SCORES`, with its 95% bootstrap interval
    differences: dict[str, Estimate]  # minus the first system, with paired intervals; {} for that


def compare(
    truth: np.ndarray, predicted: Mapping[str, np.ndarray], units: np.ndarray, labels: int,
    *, resamples: int, seed: int,
) -> list[Compared]:  # fmt: skip
    """Scores several systems on the same texts.

    Args:
        truth: int [texts], the true labels.
        predicted: The labels that each system predicts; the others are compared with the first.
        units: [texts], the resampled unit that each text belongs to.
        labels: Their number.
    """
    found: list[Compared] = []
    first_draws: dict[str, np.ndarray] = {}
    for name, guesses in predicted.items():
        confusion, differences = Confusion.of(truth, guesses, labels), {}
        own = _resampled_scores(truth, guesses, units, resamples=resamples, seed=seed)
        scores = {
            score: Estimate(value, central(own[score]))
            for score, value in confusion.scores().items()
        }
        if found:
            differences = {
                score: Estimate(
                    estimate.value - found[0].scores[score].value,
                    central(own[score] - first_draws[score]),
                )
                for score, estimate in scores.items()
            }
        found.append(Compared(name, confusion, scores, differences))
        first_draws = first_draws or own
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
        _scores(*(times[start : start + at_once] @ count for count in counts))
        for times in draws(shape[0], resamples=resamples, seed=seed)
        for start in range(0, len(times), at_once)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in SCORES}


@dataclass(frozen=True)
class TestSet:
    """Labeled texts on which a model is scored."""

    __test__ = False  # no test of pytest's

    source: str  # their file, and the split
    labels: tuple[str, ...]  # in the order of their numbers
    chunks: list[Chunk]  # text by text, in the order of the source rows
    groups: list[str]  # what each text belongs to: what is resampled for intervals
    unit: str  # what the groups are
    distribution: dict[str, dict[str, int]]  # number of source texts of each label by split
    notes: list[str]  # what qualifies the scores, such as repeated texts


@dataclass(frozen=True)
class Choice:
    """What `method=auto` has compared on the validation split."""

    metric: str  # the score that it chose by
    chosen: str  # the method whose model is exported
    systems: list[Compared]  # by method; the best one is the first
    settings: dict[str, dict[str, float]]  # what was chosen within each fitted method
    notes: list[str]  # which systems were left out, and why

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        systems = {
            system.name: {
                **{name: score.value for name, score in system.scores.items()},
                **self.settings.get(system.name, {}),
            }
            for system in self.systems
        }
        return {"metric": self.metric, "chosen": self.chosen, "systems": systems}


@dataclass(frozen=True)
class Results:
    """The scores on a test set.

    The systems are the model; then the model on the first chunk only, if any text has several; then
    the others.
    """

    test: TestSet
    systems: list[Compared]
    scores: dict[str, float]  # the loss and the scores of the model that `metrics.jsonl` has
    folded: int  # texts with more than one chunk
    choice: Choice | None = None  # how the model was chosen

    @property
    def texts(self) -> int:
        """The number of texts."""
        return self.systems[0].confusion.texts

    @property
    def units(self) -> tuple[int, str]:
        """The number of resampled units, and what they are."""
        return len({*self.test.groups}), self.test.unit

    @property
    def per_label(self) -> dict[str, dict[str, float]]:
        """Precision, recall, F1 and number of texts of each label, of the model."""
        columns = self.systems[0].confusion.by_label()
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return {
            label: dict(zip(columns, row, strict=True))
            for label, row in zip(self.test.labels, rows, strict=True)
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; of a confusion matrix, the cells that are not 0, as true label,
        predicted label and number of texts.
        """
        count, unit = self.units
        return {
            "source": self.test.source,
            "labels": list(self.test.labels),
            "texts": self.texts,
            "folded_texts": self.folded,
            "chunks": len(self.test.chunks),
            "resampled": {"units": count, "of": unit},
            "scores": self.scores,
            "systems": {system.name: _as_dict(system) for system in self.systems},
            "per_label": self.per_label,
            "distribution": self.test.distribution,
            "notes": self.test.notes,
            **({} if self.choice is None else {"choice": self.choice.as_dict()}),
        }


def _as_dict(system: Compared) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, score in system.scores.items():
        found[name] = {"value": score.value, "interval": astuple(score.interval)}
        if name in system.differences:
            difference = system.differences[name]
            found[name]["minus_model"] = difference.value
            found[name]["minus_model_interval"] = astuple(difference.interval)
    cells = system.confusion
    found["confusion"] = np.stack([cells.true, cells.predicted, cells.counts], 1).tolist()
    return found


def results_of(
    test: TestSet, scored: Scored, scores: dict[str, float], others: Mapping[str, np.ndarray],
    *, resamples: int, seed: int, choice: Choice | None = None,
) -> Results:  # fmt: skip
    """Scores the model and other systems on the same texts.

    Args:
        scored, scores: What the model predicts, its loss and scores.
        others: What the other systems predict, int64 [texts] by their names.
    """
    folded = int((scored.chunks > 1).sum())
    predicted = {MODEL: scored.predicted}
    if folded:
        predicted[FIRST_CHUNK] = scored.first_predicted
    systems = compare(
        scored.labels, {**predicted, **others}, np.array(test.groups), len(test.labels),
        resamples=resamples, seed=seed,
    )  # fmt: skip
    return Results(test, systems, scores, folded, choice)
