"""Scores of the model and of other systems on a test set, with bootstrap intervals.

Scores are computed from the number of texts of each label (true, predicted, and both), so
thousands of labels need no dense confusion matrix. The labels of texts are int [texts], or, if a
text may have several, bool [texts, labels].

The resampled units are distinct texts, or the groups of `split_by`, because texts of one author are
not independent. All systems are scored on the same resamples, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from bsmeta.report.inference import (
    Estimate,
    Interval,
    compute_central_interval,
    draw_resamples,
)
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.metrics import (
    ONE_LABEL,
    SCORES,
    SEVERAL_LABELS,
    ChunkResults,
    Classified,
    LabelTotals,
    choose_scores,
)
from bsmeta.tasks.classification.model import AnyScored, ScoredSets
from bsmeta.tasks.classification.set_counts import SetCounts, UnitCounts, compute_label_scores

# Names of systems
MODEL = "model"
FIRST_CHUNK = "model, first chunk only"

_Z_95 = 1.96  # half the width of a 95% interval, in standard errors
_MAX_COUNTS = 1 << 22  # counts of labels in resamples, in memory at a time


@dataclass(frozen=True)
class Confusion:
    """The nonzero cells of a confusion matrix, sorted by true and then by predicted label."""

    true: np.ndarray  # int64 [cells], the true label
    predicted: np.ndarray  # int64 [cells], the predicted label
    counts: np.ndarray  # int64 [cells], number of texts
    labels: int  # number of labels

    @classmethod
    def of(cls, truth: np.ndarray, predicted: np.ndarray, labels: int) -> Confusion:
        """Counts the texts with each pair of a true and a predicted label, int [texts] both."""
        cells, counts = np.unique(truth * labels + predicted, return_counts=True)
        return cls(cells // labels, cells % labels, counts, labels)

    @property
    def texts(self) -> int:
        """The number of texts."""
        return int(self.counts.sum())

    def totals(self) -> LabelTotals:
        """Sums the cells by label, float64 [labels] each."""
        is_right = self.true == self.predicted
        return LabelTotals(
            true=np.bincount(self.true, self.counts, self.labels),
            predicted=np.bincount(self.predicted, self.counts, self.labels),
            right=np.bincount(self.true[is_right], self.counts[is_right], self.labels),
        )

    def scores(self) -> dict[str, float]:
        """Computes each of `SCORES`."""
        return {name: float(value) for name, value in _compute_scores(self.totals()).items()}

    def by_label(self) -> dict[str, np.ndarray]:
        """Computes precision, recall, F1 and number of texts by label, float64 [labels] each."""
        return compute_label_scores(self.totals())

    def matrix(self, labels: Sequence[int]) -> np.ndarray:
        """Returns the dense matrix of some labels, int64 [labels + 1, labels + 1].

        The last row and column are for all other labels.
        """
        size = len(labels) + 1
        positions = np.full(self.labels, size - 1)
        positions[list(labels)] = np.arange(len(labels))
        matrix = np.zeros((size, size), np.int64)
        np.add.at(matrix, (positions[self.true], positions[self.predicted]), self.counts)
        return matrix


Tally = Confusion | SetCounts
"""The counts from which the scores of a system are computed."""


def count_texts(truth: np.ndarray, predicted: np.ndarray, labels: int) -> Tally:
    """Counts texts by their true and predicted labels.

    Args:
        truth: int [texts], or bool [texts, labels].
        predicted: Predictions in the form of `truth`.
        labels: Number of labels.
    """
    if truth.ndim == 2:
        return SetCounts.of(truth, predicted)
    return Confusion.of(truth, predicted, labels)


def compute_text_scores(truth: np.ndarray, predicted: np.ndarray, labels: int) -> dict[str, float]:
    """Computes the scores of texts by name; see `count_texts` for the arguments."""
    return _score_tally(count_texts(truth, predicted, labels))


def _score_tally(tally: Tally) -> dict[str, float]:
    if isinstance(tally, Confusion):
        return tally.scores()

    classified = Classified(tally.totals(), samples=tally.samples)
    scores = choose_scores(has_several=True)
    return {name: float(score.compute(classified)) for name, score in scores.items()}


def _compute_scores(totals: LabelTotals) -> dict[str, np.ndarray]:
    """Computes each of `SCORES`, float64 [...]."""
    return {name: score.compute(Classified(totals)) for name, score in SCORES.items()}


def compute_scores(
    scored: AnyScored, weights: Sequence[float], predicted: np.ndarray | None = None
) -> dict[str, float]:
    """Computes the metrics of chunks and of texts by name.

    Args:
        scored: The predictions of a model.
        weights: The weight of each label in the loss. If texts have several labels, they are
            ignored, because the scorer has applied them.
        predicted: Predictions of several labels with other thresholds, bool [texts, labels]; None:
            those of `scored`.
    """
    if isinstance(scored, ScoredSets):
        tally = SetCounts.of(scored.labels, scored.predicted if predicted is None else predicted)
        chunks = ChunkResults(scored.chunk_losses, scored.chunk_weights)
        classified = Classified(tally.totals(), chunks, tally.samples)
        table = SEVERAL_LABELS
        return {name: float(metric.compute(classified)) for name, metric in table.items()}

    confusion = Confusion.of(scored.labels, scored.predicted, len(weights))
    chunks = ChunkResults(
        losses=scored.chunk_losses,
        weights=np.asarray(weights)[scored.chunk_labels],
        is_right=scored.chunk_labels == scored.chunk_predicted,
    )
    classified = Classified(confusion.totals(), chunks)
    return {name: float(metric.compute(classified)) for name, metric in ONE_LABEL.items()}


@dataclass(frozen=True)
class Compared:
    """The scores of one of several systems on the same texts."""

    name: str
    confusion: Tally  # a confusion matrix, or the counts of texts that may have several labels
    scores: dict[str, Estimate]  # by the name of the score, with 95% bootstrap intervals
    differences: dict[str, Estimate]
    """Scores minus those of the first system, with paired intervals; {} for the first system."""


def compare_systems(
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
        truth: int [texts], the true labels, or bool [texts, labels].
        predicted: The predictions of each system by name; the first is the reference of the others.
        units: [texts], the resampled unit of each text.
        labels: Number of labels.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resamples.
    """
    compared: list[Compared] = []
    first_draws: dict[str, np.ndarray] = {}
    for name, guesses in predicted.items():
        tally = count_texts(truth, guesses, labels)
        resample = _resample_set_scores if truth.ndim == 2 else _resample_scores
        score_draws = resample(truth, guesses, units, resamples=resamples, seed=seed)
        scores = {
            score: Estimate(value, compute_central_interval(score_draws[score]))
            for score, value in _score_tally(tally).items()
        }

        differences: dict[str, Estimate] = {}
        if compared:
            for score, estimate in scores.items():
                difference = estimate.value - compared[0].scores[score].value
                interval = compute_central_interval(score_draws[score] - first_draws[score])
                differences[score] = Estimate(difference, interval)
        else:
            first_draws = score_draws
        compared.append(Compared(name, tally, scores, differences))
    return compared


def _resample_scores(
    truth: np.ndarray, predicted: np.ndarray, units: np.ndarray, *, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Computes each of `SCORES` for each resample of the units, float64 [resamples].

    Only labels that occur among the texts take memory.
    """
    used_labels, columns = np.unique(np.concatenate([truth, predicted]), return_inverse=True)
    true_columns, predicted_columns = np.split(columns, 2)
    is_right = true_columns == predicted_columns

    _, unit_rows = np.unique(units, return_inverse=True)
    unit_count = int(unit_rows.max()) + 1

    def count_unit_labels(rows: np.ndarray, labels: np.ndarray) -> csr_array:
        """Counts the texts of each unit by label, [units, used labels]."""
        return csr_array((np.ones(len(rows)), (rows, labels)), (unit_count, len(used_labels)))

    true_counts = count_unit_labels(unit_rows, true_columns)
    predicted_counts = count_unit_labels(unit_rows, predicted_columns)
    right_counts = count_unit_labels(unit_rows[is_right], true_columns[is_right])

    batch_size = max(_MAX_COUNTS // len(used_labels), 1)
    batches: list[dict[str, np.ndarray]] = []
    for times in draw_resamples(unit_count, resamples=resamples, seed=seed):
        for start in range(0, len(times), batch_size):
            batch_times = times[start : start + batch_size]
            totals = LabelTotals(
                true=batch_times @ true_counts,
                predicted=batch_times @ predicted_counts,
                right=batch_times @ right_counts,
            )
            batches.append(_compute_scores(totals))
    return _join_batches(batches)


def _resample_set_scores(
    truth: np.ndarray, predicted: np.ndarray, units: np.ndarray, *, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Computes each score of texts with several labels for each resample, float64 [resamples]."""
    _, unit_numbers = np.unique(units, return_inverse=True)
    counts = UnitCounts.of(truth, predicted, unit_numbers)
    unit_count = len(counts.samples)

    batch_size = max(_MAX_COUNTS // truth.shape[1], 1)
    table = choose_scores(has_several=True)
    batches: list[dict[str, np.ndarray]] = []
    for times in draw_resamples(unit_count, resamples=resamples, seed=seed):
        for start in range(0, len(times), batch_size):
            totals, samples = counts.resample(times[start : start + batch_size])
            classified = Classified(totals, samples=samples)
            batches.append({name: score.compute(classified) for name, score in table.items()})
    return _join_batches(batches)


def estimate_standard_error(estimate: Estimate) -> float:
    """Returns the standard error of a normal estimate, from the width of its 95% interval."""
    return (estimate.high - estimate.low) / (2 * _Z_95)


class LabelIntervals(NamedTuple):
    """95% intervals of the scores of a label."""

    precision: Interval
    recall: Interval
    f1: Interval


def resample_label_scores(
    truth: np.ndarray,
    predicted: np.ndarray,
    unit_numbers: np.ndarray,
    labels: Sequence[int],
    *,
    resamples: int,
    seed: int,
) -> list[LabelIntervals]:
    """Computes bootstrap intervals of precision, recall and F1 of some labels.

    Args:
        truth: int [texts], the true labels, or bool [texts, labels].
        predicted: Predictions in the form of `truth`.
        unit_numbers: int [texts], index of the resampled unit of each text, without gaps.
        labels: Indexes of the labels.
    """
    if truth.ndim == 2:
        truth = truth[:, labels]
        predicted = predicted[:, labels]
    else:
        truth = truth[:, None] == np.array(labels)
        predicted = predicted[:, None] == np.array(labels)
    counts = UnitCounts.of(truth, predicted, unit_numbers)

    draws: dict[str, list[np.ndarray]] = {name: [] for name in LabelIntervals._fields}
    for times in draw_resamples(len(counts.samples), resamples=resamples, seed=seed):
        totals, _ = counts.resample(times)
        scores = compute_label_scores(totals)
        # In resamples without a text or a prediction of a label, its scores are undefined.
        texts = {
            "precision": totals.predicted,
            "recall": totals.true,
            "f1": totals.true + totals.predicted,
        }
        for name, score_draws in draws.items():
            score_draws.append(np.where(texts[name] > 0, scores[name], np.nan))

    columns = {name: np.concatenate(score_draws) for name, score_draws in draws.items()}
    return [
        LabelIntervals(*(compute_central_interval(column[:, n]) for column in columns.values()))
        for n in range(len(labels))
    ]


def _join_batches(batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenates the scores of batches of resamples, by name."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@dataclass(frozen=True)
class TestSet:
    """Labeled texts on which a model is scored."""

    __test__ = False  # not collected by pytest

    source: str  # name of the file, and the split
    labels: tuple[str, ...]  # in the order of their indexes
    chunks: list[Chunk]  # text by text, in the order of the source rows
    groups: list[str]  # resampled unit of each text
    unit: str  # description of the units
    distribution: dict[str, dict[str, int]]  # number of source texts by split and label
    notes: list[str]  # facts that qualify the scores, such as repeated texts
    split_sizes: dict[str, int] | None = None
    """Number of source texts by split, if a text may have several labels; None: one label."""

    @property
    def has_several(self) -> bool:
        """Whether a text may have several labels."""
        return self.split_sizes is not None

    def count_split_texts(self, split: str) -> int:
        """Returns the number of source texts of a split of `distribution`."""
        if self.split_sizes is not None:
            return self.split_sizes[split]
        return sum(self.distribution[split].values())


@dataclass(frozen=True)
class Choice:
    """The comparison of systems on the validation split by `method=auto`."""

    metric: str  # the score that decided
    chosen: str  # the method whose model is exported
    systems: list[Compared]  # named by method, the best one first
    settings: dict[str, dict[str, float]]  # chosen settings of each fitted method
    notes: list[str]  # systems that were left out, with the reason

    def as_dict(self) -> dict[str, Any]:
        """Converts it to plain values for JSON."""
        systems: dict[str, dict[str, float]] = {}
        for system in self.systems:
            values = {name: score.value for name, score in system.scores.items()}
            systems[system.name] = {**values, **self.settings.get(system.name, {})}
        return {"metric": self.metric, "chosen": self.chosen, "systems": systems}


@dataclass(frozen=True)
class Results:
    """The scores on a test set.

    The systems are the model, the model on the first chunk only if any text has several, and the
    others.
    """

    test: TestSet
    systems: list[Compared]
    scores: dict[str, float]  # the loss and the scores of the model, as in `metrics.jsonl`
    folded: int  # number of texts with more than one chunk
    choice: Choice | None = None  # how the model was chosen
    thresholds: list[float] | None = None  # of the labels, if a text may have several

    @property
    def texts(self) -> int:
        """The number of texts."""
        return self.systems[0].confusion.texts

    @property
    def units(self) -> tuple[int, str]:
        """The number of resampled units, and their description."""
        return len({*self.test.groups}), self.test.unit

    @property
    def per_label(self) -> dict[str, dict[str, float]]:
        """The model's precision, recall, F1 and number of texts by label."""
        columns = self.systems[0].confusion.by_label()
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        values = {
            label: dict(zip(columns, row, strict=True))
            for label, row in zip(self.test.labels, rows, strict=True)
        }
        for label, threshold in zip(self.test.labels, self.thresholds or (), strict=False):
            values[label]["threshold"] = threshold
        return values

    def as_dict(self) -> dict[str, Any]:
        """Converts it to plain values for JSON.

        A confusion matrix is a list of nonzero cells: true label, predicted label and number of
        texts. There is none if a text may have several labels.
        """
        count, unit = self.units
        values = {
            "source": self.test.source,
            "labels": list(self.test.labels),
            "texts": self.texts,
            "folded_texts": self.folded,
            "chunks": len(self.test.chunks),
            "resampled": {"units": count, "of": unit},
            "scores": self.scores,
            "systems": {system.name: _list_system_values(system) for system in self.systems},
            "per_label": self.per_label,
            "distribution": self.test.distribution,
            "notes": self.test.notes,
        }
        if self.choice is not None:
            values["choice"] = self.choice.as_dict()
        return values


def _list_system_values(system: Compared) -> dict[str, Any]:
    """Returns the scores and the confusion matrix of a system for JSON."""
    values: dict[str, Any] = {}
    for name, score in system.scores.items():
        values[name] = {"value": score.value, "interval": astuple(score.interval)}
        if name in system.differences:
            difference = system.differences[name]
            values[name]["minus_model"] = difference.value
            values[name]["minus_model_interval"] = astuple(difference.interval)

    cells = system.confusion
    if isinstance(cells, Confusion):
        values["confusion"] = np.stack([cells.true, cells.predicted, cells.counts], 1).tolist()
    return values


def compute_results(
    test: TestSet,
    scored: AnyScored,
    scores: dict[str, float],
    others: Mapping[str, np.ndarray],
    *,
    resamples: int,
    seed: int,
    choice: Choice | None = None,
) -> Results:
    """Scores the model and other systems on the same texts.

    Args:
        scored: The predictions of the model.
        scores: The loss and the scores of the model.
        others: The predictions of other systems by name, int64 [texts] or bool [texts, labels].
        resamples, seed: See `compare_systems`.
        choice: How the model was chosen.
    """
    folded = int((scored.chunks > 1).sum())
    predicted = {MODEL: scored.predicted}
    if folded:
        predicted[FIRST_CHUNK] = scored.first_predicted
    predicted.update(others)

    systems = compare_systems(
        scored.labels,
        predicted,
        np.array(test.groups),
        len(test.labels),
        resamples=resamples,
        seed=seed,
    )
    thresholds = scored.thresholds.tolist() if isinstance(scored, ScoredSets) else None
    return Results(test, systems, scores, folded, choice, thresholds)
