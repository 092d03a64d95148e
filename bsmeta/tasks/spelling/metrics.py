"""Metrics of spelling correction and error detection, from counts per line.

Every metric is a ratio of sums over lines, so the bootstrap of `bsmeta.report.inference` applies,
and two systems can be compared on the same draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from rapidfuzz.distance import Levenshtein

from bsmeta.core.errors import DataError
from bsmeta.report.inference import Estimate, Interval, central, resampled
from bsmeta.tasks.spelling.corrections import count_corrections


@dataclass(frozen=True)
class Counts:
    """What a system got right and wrong in each line; float64 [lines] each.

    Attributes:
        true_positives: Errors that it found (corrected, for a correction).
        false_positives: Correct units that it flagged (words changed wrongly, for a correction).
        false_negatives: Errors that it missed.
        flagged: Units that it flagged (all words that it changed, for a correction).
        units: Words, or lines, that it judged.
        distance: Normalized edit distance to the correct text; 0 for detection.
    """

    true_positives: np.ndarray
    false_positives: np.ndarray
    false_negatives: np.ndarray
    flagged: np.ndarray
    units: np.ndarray
    distance: np.ndarray

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float]]) -> Counts:
        """Counts from one row per line, with the values in the order of the attributes."""
        return cls(*np.array(rows, dtype=np.float64).reshape(len(rows), len(fields(cls))).T)

    @property
    def precision(self) -> float:
        """Share of the flagged units that are errors; 0 if none is flagged."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """Share of the errors that are found; 0 if there are none."""
        return _ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall over all units (micro); 0 without any error."""
        return _ratio(*self.f1_terms)

    @property
    def f1_terms(self) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator of F1 per line: float64 [lines] each."""
        found = 2 * self.true_positives
        return found, found + self.false_positives + self.false_negatives

    @property
    def sequence_f1(self) -> float:
        """Mean of the F1 of each line, as the published evaluation of corrections averages it: 1
        for a line without errors and changes, 0 for another line without a true positive.
        """
        top, bottom = self.f1_terms
        errors = self.true_positives + self.false_negatives
        is_untouched = (errors == 0) & (self.flagged == 0)
        rows = np.where(is_untouched, 1.0, top / np.maximum(bottom, 1))
        return float(rows.mean()) if len(rows) else 0.0

    @property
    def accuracy(self) -> float:
        """Share of the units that are judged right, for detection."""
        return _ratio(self.units - self.false_positives - self.false_negatives, self.units)

    @property
    def mean_distance(self) -> float:
        """Mean normalized edit distance of the lines (edit distance / length of the longer)."""
        return float(self.distance.mean()) if len(self.distance) else 0.0

    @property
    def flagged_rate(self) -> float:
        """Share of the units that are flagged: on clean text, the rate of false alarms."""
        return _ratio(self.flagged, self.units)


def detection_counts(
    predicted: Sequence[Sequence[int]], correct: Sequence[Sequence[int]]
) -> Counts:
    """Counts of error detection.

    Args:
        predicted: Per line the flags of its words (1: an error), or one flag for the whole line.
        correct: The labels, in the same form.

    Raises:
        DataError: If the number of lines, or of flags in a line, differs.
    """
    _check_lines(predicted=len(predicted), correct=len(correct))
    rows = []
    for number, (flags, labels) in enumerate(zip(predicted, correct, strict=True), start=1):
        if len(flags) != len(labels):
            raise DataError(
                f"line {number} has {len(flags)} predictions, but {len(labels)} labels; expected "
                "one label (0 or 1) for each word"
            )
        pairs = list(zip(map(bool, flags), map(bool, labels), strict=True))
        found, alarms = pairs.count((True, True)), pairs.count((True, False))
        missed = pairs.count((False, True))
        rows.append((found, alarms, missed, found + alarms, len(pairs), 0))
    return Counts.from_rows(rows)


def correction_counts(
    corrupt: Sequence[str], predicted: Sequence[str], correct: Sequence[str]
) -> Counts:
    """Counts of spelling correction.

    Whitespace at the ends of a line, and its amount between words, does not matter. The units are
    the words of the corrupt line.

    Args:
        corrupt: The lines with errors.
        predicted: The corrected lines of the system.
        correct: The lines without errors.

    Raises:
        DataError: If the number of lines differs.
    """
    _check_lines(corrupt=len(corrupt), predicted=len(predicted), correct=len(correct))
    rows = []
    for lines in zip(corrupt, predicted, correct, strict=True):
        wrong, guess, right = (" ".join(line.split()) for line in lines)
        counts = count_corrections(wrong, guess, right)
        distance = Levenshtein.normalized_distance(guess, right)
        rows.append((*counts, len(wrong.split()), distance))
    return Counts.from_rows(rows)


def f1_interval(counts: Counts, *, resamples: int, seed: int) -> Interval:
    """95% bootstrap interval of F1 over lines."""
    top, bottom = counts.f1_terms
    draws = resampled(top[None], bottom[None], resamples=resamples, seed=seed)
    return central(draws[:, 0])


def f1_difference(system: Counts, other: Counts, *, resamples: int, seed: int) -> Estimate:
    """F1 of a system minus that of another, on the same lines, with its bootstrap interval.

    Raises:
        DataError: If the number of lines differs.
    """
    _check_lines(system=len(system.units), other=len(other.units))
    tops, bottoms = zip(system.f1_terms, other.f1_terms, strict=True)
    draws = resampled(np.stack(tops), np.stack(bottoms), resamples=resamples, seed=seed)
    return Estimate(system.f1 - other.f1, central(draws[:, 0] - draws[:, 1]))


@dataclass(frozen=True)
class Calibration:
    """The threshold from which a score counts as an error, chosen for a wanted precision.

    Attributes:
        wanted: The wanted precision.
        threshold: The lowest score that is flagged; None if no threshold has that precision.
        precision: The precision with the threshold; if it is None, the highest that any has.
        recall: The recall at that precision.
        flagged: Number of flagged units at that precision.
    """

    wanted: float
    threshold: float | None
    precision: float
    recall: float
    flagged: int

    def __str__(self) -> str:
        if self.threshold is None:
            return (
                f"no threshold has a precision of {self.wanted:.3f}: the highest is "
                f"{self.precision:.3f}, at recall {self.recall:.3f}; nothing is flagged"
            )
        return (
            f"threshold {self.threshold:.4f}: precision {self.precision:.3f} (wanted: "
            f"{self.wanted:.3f}), recall {self.recall:.3f}"
        )


def calibrate(scores: np.ndarray, labels: np.ndarray, precision: float) -> Calibration:
    """Chooses the threshold with the highest recall among those that have the wanted precision.

    Args:
        scores: Scores of held-out units, higher for likelier errors: float [units].
        labels: 1 for an error, otherwise 0: [units].
        precision: The wanted precision.
    """
    order = np.argsort(-scores, kind="stable")
    ordered, errors = scores[order], np.asarray(labels)[order].astype(bool)
    if not errors.any():
        return Calibration(precision, None, 0.0, 0.0, 0)
    found, flagged = np.cumsum(errors), np.arange(1, len(errors) + 1)
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # equal scores together
    precisions = found[ends] / flagged[ends]
    reaches = np.flatnonzero(precisions >= precision)
    # The last that reaches it has the highest recall; if none does, the best, and its last tie.
    best = reaches[-1] if len(reaches) else np.flatnonzero(precisions == precisions.max())[-1]
    end = ends[best]
    return Calibration(
        wanted=precision,
        threshold=float(ordered[end]) if len(reaches) else None,
        precision=float(precisions[best]),
        recall=float(found[end] / found[-1]),
        flagged=int(flagged[end]),
    )


def _ratio(top: np.ndarray, bottom: np.ndarray) -> float:
    total = float(bottom.sum())
    return float(top.sum()) / total if total else 0.0


def _check_lines(**lines: int) -> None:
    if len(set(lines.values())) > 1:
        found = ", ".join(f"{name}: {count}" for name, count in lines.items())
        raise DataError(f"the numbers of lines differ ({found}); expected the same number of each")
