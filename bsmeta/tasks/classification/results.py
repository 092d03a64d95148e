"""Scores of the model and of other systems on a test set, with intervals.

Scores are computed from the number of texts of each label (true, predicted, and both), so
thousands of labels need no dense confusion matrix.

The resampled units are source texts, or the groups that no split divides, because texts of one
author are not independent. All systems are scored on the same resamples, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bsmeta.report.inference import Estimate, compute_central_interval, draw_resamples
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.metrics import (
    METRICS,
    SCORES,
    ChunkResults,
    Classified,
    LabelTotals,
    divide,
)
from bsmeta.tasks.classification.model import Scored

# Names of systems.
MODEL = "model"
FIRST_CHUNK = "model, first chunk only"

_COUNTS_AT_ONCE = 1 << 22  # limit on the counts of labels in resamples that are in memory


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
        totals = self.totals()
        return {
            "precision": divide(totals.right, totals.predicted),
            "recall": divide(totals.right, totals.true),
            "f1": divide(2 * totals.right, totals.true + totals.predicted),
            "texts": totals.true,
        }

    def matrix(self, labels: Sequence[int]) -> np.ndarray:
        """Returns the matrix of some labels; its last row and column are all other labels.

        Returns:
            int64 [labels + 1, labels + 1].
        """
        size = len(labels) + 1
        positions = np.full(self.labels, size - 1)
        positions[list(labels)] = np.arange(len(labels))
        matrix = np.zeros((size, size), np.int64)
        np.add.at(matrix, (positions[self.true], positions[self.predicted]), self.counts)
        return matrix


def _compute_scores(totals: LabelTotals) -> dict[str, np.ndarray]:
    """Computes each of `SCORES`, float64 [...]."""
    return {name: score.compute(Classified(totals)) for name, score in SCORES.items()}


def compute_scores(scored: Scored, weights: Sequence[float]) -> dict[str, float]:
    """Computes the loss and accuracy over the chunks, and the scores of the texts.

    Args:
        weights: The weight of each label in the loss, as in training.
    """
    confusion = Confusion.of(scored.labels, scored.predicted, len(weights))
    chunks = ChunkResults(
        losses=scored.chunk_losses,
        weights=np.asarray(weights)[scored.chunk_labels],
        is_right=scored.chunk_labels == scored.chunk_predicted,
    )
    classified = Classified(confusion.totals(), chunks)
    return {name: float(metric.compute(classified)) for name, metric in METRICS.items()}


@dataclass(frozen=True)
class Compared:
    """A system among others that are scored on the same texts."""

    name: str
    confusion: Confusion
    scores: dict[str, Estimate]  # each of `SCORES`, with its 95% bootstrap interval
    differences: dict[str, Estimate]
    """Scores minus the scores of the first system, with paired intervals; {} for that system."""


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
        truth: int [texts], the true labels.
        predicted: The labels that each system predicts; the others are compared with the first.
        units: [texts], the resampled unit that each text belongs to.
        labels: Their number.
        resamples: The number of bootstrap resamples for intervals.
        seed: Determines the resamples.
    """
    compared: list[Compared] = []
    first_draws: dict[str, np.ndarray] = {}
    for name, guesses in predicted.items():
        confusion = Confusion.of(truth, guesses, labels)
        score_draws = _resample_scores(truth, guesses, units, resamples=resamples, seed=seed)
        scores = {
            score: Estimate(value, compute_central_interval(score_draws[score]))
            for score, value in confusion.scores().items()
        }

        differences: dict[str, Estimate] = {}
        if compared:
            for score, estimate in scores.items():
                difference = estimate.value - compared[0].scores[score].value
                interval = compute_central_interval(score_draws[score] - first_draws[score])
                differences[score] = Estimate(difference, interval)
        else:
            first_draws = score_draws
        compared.append(Compared(name, confusion, scores, differences))
    return compared


def _resample_scores(
    truth: np.ndarray, predicted: np.ndarray, units: np.ndarray, *, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Computes each of `SCORES` for each resample of the units, float64 [resamples].

    The memory grows with the texts, never with the number of labels of the table.
    """
    used_labels, columns = np.unique(np.concatenate([truth, predicted]), return_inverse=True)
    true_columns, predicted_columns = np.split(columns, 2)
    is_right = true_columns == predicted_columns

    _, unit_rows = np.unique(units, return_inverse=True)
    unit_count = int(unit_rows.max()) + 1

    def count(rows: np.ndarray, labels: np.ndarray) -> csr_array:
        """Counts the texts of each unit by label, [units, used labels]."""
        return csr_array((np.ones(len(rows)), (rows, labels)), (unit_count, len(used_labels)))

    true_counts = count(unit_rows, true_columns)
    predicted_counts = count(unit_rows, predicted_columns)
    right_counts = count(unit_rows[is_right], true_columns[is_right])

    at_once = max(_COUNTS_AT_ONCE // len(used_labels), 1)
    parts: list[dict[str, np.ndarray]] = []
    for times in draw_resamples(unit_count, resamples=resamples, seed=seed):
        for start in range(0, len(times), at_once):
            part_times = times[start : start + at_once]
            totals = LabelTotals(
                true=part_times @ true_counts,
                predicted=part_times @ predicted_counts,
                right=part_times @ right_counts,
            )
            parts.append(_compute_scores(totals))

    scores: dict[str, np.ndarray] = {}
    for name in SCORES:
        scores[name] = np.concatenate([part[name] for part in parts])
    return scores


@dataclass(frozen=True)
class TestSet:
    """Labeled texts on which a model is scored."""

    __test__ = False  # not collected by pytest

    source: str  # their file, and the split
    labels: tuple[str, ...]  # in the order of their numbers
    chunks: list[Chunk]  # text by text, in the order of the source rows
    groups: list[str]  # the unit of each text, resampled for intervals
    unit: str  # description of the units
    distribution: dict[str, dict[str, int]]  # number of source texts of each label by split
    notes: list[str]  # facts that qualify the scores, such as repeated texts


@dataclass(frozen=True)
class Choice:
    """The comparison of systems on the validation split by `method=auto`."""

    metric: str  # the score that it chose by
    chosen: str  # the method whose model is exported
    systems: list[Compared]  # by method; the best one is the first
    settings: dict[str, dict[str, float]]  # chosen settings of each fitted method
    notes: list[str]  # which systems were left out, and why

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

    The systems are the model; then the model on the first chunk only, if any text has several; then
    the others.
    """

    test: TestSet
    systems: list[Compared]
    scores: dict[str, float]  # the loss and the scores of the model, as in `metrics.jsonl`
    folded: int  # texts with more than one chunk
    choice: Choice | None = None  # how the model was chosen

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
        """Precision, recall, F1 and number of texts of each label, of the model."""
        columns = self.systems[0].confusion.by_label()
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return {
            label: dict(zip(columns, row, strict=True))
            for label, row in zip(self.test.labels, rows, strict=True)
        }

    def as_dict(self) -> dict[str, Any]:
        """Converts it to plain values for JSON.

        Of a confusion matrix, it has the cells that are not 0: true label, predicted label and
        number of texts.
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
    values: dict[str, Any] = {}
    for name, score in system.scores.items():
        values[name] = {"value": score.value, "interval": astuple(score.interval)}
        if name in system.differences:
            difference = system.differences[name]
            values[name]["minus_model"] = difference.value
            values[name]["minus_model_interval"] = astuple(difference.interval)

    cells = system.confusion
    values["confusion"] = np.stack([cells.true, cells.predicted, cells.counts], 1).tolist()
    return values


def compute_results(
    test: TestSet,
    scored: Scored,
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
        others: The predictions of the other systems, int64 [texts] by their names.
        resamples, seed: See `compare`.
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
    return Results(test, systems, scores, folded, choice)
