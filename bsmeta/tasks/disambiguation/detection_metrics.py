"""Precision, recall and F1 of the detection of mentions, with intervals, as metrics and in reports.

A detected mention is right if lines mark a mention with the same first and last character. Mentions
with weak labels count neither way: they are not asked for, and detecting them is not an error.

Intervals are 95% bootstrap intervals over documents; all systems are compared on the same
resamples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bsmeta.config.metric_table import MetricDefinition
from bsmeta.report.cells import Cell
from bsmeta.report.inference import Estimate, compute_central_interval, resample_ratios
from bsmeta.report.page import Column, Section, Table
from bsmeta.tasks.disambiguation.metrics import format_percent, format_points

TextSpan = tuple[int, int]
"""Start and end of a mention in a text, in characters."""


class MarkedSpans(NamedTuple):
    """The mentions that a line marks."""

    gold: frozenset[TextSpan]
    weak: frozenset[TextSpan]  # only with weak labels


class Fraction(NamedTuple):
    """Numerator and denominator of a metric, int64 [documents] each."""

    numerator: np.ndarray
    denominator: np.ndarray

    @property
    def value(self) -> float:
        """The ratio of the sums over all documents; NaN if it is undefined."""
        total = int(self.denominator.sum())
        return int(self.numerator.sum()) / total if total else math.nan


@dataclass(frozen=True)
class SpanCounts:
    """Counts of mentions, int64 [documents] each.

    Attributes:
        right: Detected ones that lines mark.
        detected: Detected ones, without those that overlap a weak label.
        marked: Gold mentions.
        unlinked: Detected spans without an alias, which are in none of the other counts.
    """

    right: np.ndarray
    detected: np.ndarray
    marked: np.ndarray
    unlinked: np.ndarray

    @property
    def precision(self) -> Fraction:
        return Fraction(self.right, self.detected)

    @property
    def recall(self) -> Fraction:
        return Fraction(self.right, self.marked)

    @property
    def f1(self) -> Fraction:
        """The harmonic mean of precision and recall."""
        return Fraction(2 * self.right, self.detected + self.marked)


MENTION_METRICS = {
    "mention_precision": MetricDefinition[SpanCounts](
        label="precision",
        better="max",
        format=format_percent,
        format_difference=format_points,
        compute=lambda counts: counts.precision.value,
    ),
    "mention_recall": MetricDefinition[SpanCounts](
        label="recall",
        better="max",
        format=format_percent,
        format_difference=format_points,
        compute=lambda counts: counts.recall.value,
    ),
    "mention_f1": MetricDefinition[SpanCounts](
        label="F1",
        better="max",
        format=format_percent,
        format_difference=format_points,
        compute=lambda counts: counts.f1.value,
    ),
}
"""The metrics of a model with a mention detector, by name."""


def count_spans(
    marked: Sequence[MarkedSpans],
    detected: Sequence[Sequence[TextSpan]],
    unlinked: Sequence[int],
    documents: np.ndarray,
) -> SpanCounts:
    """Counts the detected and marked mentions of texts by document.

    Args:
        marked, detected: The mentions of each text.
        unlinked: Number of detected spans of each text that have no alias.
        documents: Index of the document of each text, int64 [texts].
    """
    right = []
    detected_counts = []
    for marks, spans in zip(marked, detected, strict=True):
        is_right = [span in marks.gold for span in spans]
        is_counted = [span in marks.gold or not _overlaps_any(span, marks.weak) for span in spans]
        right.append(sum(is_right))
        detected_counts.append(sum(is_counted))

    gold_counts = [len(marks.gold) for marks in marked]
    count = int(documents.max(initial=-1)) + 1
    sums = [
        np.bincount(documents, values, minlength=count).astype(np.int64)
        for values in (right, detected_counts, gold_counts, unlinked)
    ]
    return SpanCounts(*sums)


def _overlaps_any(span: TextSpan, others: frozenset[TextSpan]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in others)


@dataclass(frozen=True)
class DetectionResult:
    """The result of a system, the estimates with 95% intervals."""

    precision: Estimate
    recall: Estimate
    f1: Estimate
    f1_gain: Estimate  # F1 minus that of the first system
    right: int
    detected: int
    marked: int
    unlinked: int


def compute_detection_results(
    counts: Mapping[str, SpanCounts], *, resamples: int, seed: int
) -> dict[str, DetectionResult]:
    """Computes the results of systems, by name.

    Args:
        counts: The counts of each system on the same documents; gains are over the first.
        resamples: Number of bootstrap resamples of the documents.
    """
    fractions: list[Fraction] = []
    for system in counts.values():
        fractions += [system.precision, system.recall, system.f1]
    ratios = resample_ratios(
        np.array([fraction.numerator for fraction in fractions], float),
        np.array([fraction.denominator for fraction in fractions], float),
        resamples=resamples,
        seed=seed,
    )

    results = {}
    for number, (name, system) in enumerate(counts.items()):
        columns = ratios[:, 3 * number : 3 * number + 3].T
        precision, recall, f1 = (
            Estimate(fraction.value, compute_central_interval(column))
            for fraction, column in zip(fractions[3 * number :], columns, strict=False)
        )
        gain = f1.value - fractions[2].value
        results[name] = DetectionResult(
            precision=precision,
            recall=recall,
            f1=f1,
            f1_gain=Estimate(gain, compute_central_interval(columns[2] - ratios[:, 2])),
            right=int(system.right.sum()),
            detected=int(system.detected.sum()),
            marked=int(system.marked.sum()),
            unlinked=int(system.unlinked.sum()),
        )
    return results


def make_detection_section(results: Mapping[str, DetectionResult]) -> Section:
    """Builds the section of a report that compares the systems."""
    first, *others = results
    rows: list[list[Cell]] = []
    for name, result in results.items():
        gain = None if name == first else result.f1_gain
        rows.append(
            [name, result.detected, result.precision, result.recall, result.f1, gain,
             result.unlinked]
        )  # fmt: skip

    precision, recall, f1 = MENTION_METRICS.values()
    columns = [
        Column("system"),
        Column("detected", "{:,.0f}".format),
        Column(precision.label, precision.format),
        Column(recall.label, recall.format),
        Column(f1.label, f1.format),
        Column(f"F1 gain over {first}", f1.format_difference),
        Column("without an alias", "{:,.0f}".format),
    ]
    note = (
        f"Of {results[first].marked:,} marked mentions, in percent; in brackets: 95% intervals, "
        "bootstrap over documents. A mention is right if lines mark the same characters, so "
        "mentions that lines leave out count as wrong. Without an alias: spans that the detector "
        "tags, but that no entity is a candidate of; they are not detected mentions."
    )
    table = Table("Detection of mentions", note, columns, rows)
    return Section(tables=[table], lines=[_describe_gain(name, results[name]) for name in others])


def _describe_gain(name: str, result: DetectionResult) -> str:
    gain = result.f1_gain
    distinct = "" if gain.interval.excludes_zero else ": not distinguishable on these documents"
    return (
        f"Detection by {name}: F1 {result.f1.value:.1%}, {format_points(gain.value)} points over "
        f"the dictionary (95% interval {format_points(gain.low)} to {format_points(gain.high)}"
        f"{distinct})."
    )
