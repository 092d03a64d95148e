"""Precision, recall and F1 of detected mentions, and their comparison."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bsmeta.config.metric_table import compute_values
from bsmeta.tasks.disambiguation.detection_metrics import (
    MENTION_METRICS,
    MarkedSpans,
    SpanCounts,
    compute_detection_results,
    count_spans,
    make_detection_section,
)


def test_mentions_are_counted_by_document_and_weak_labels_count_neither_way() -> None:
    marked = [
        MarkedSpans(frozenset({(0, 3), (5, 9)}), frozenset({(12, 15)})),
        MarkedSpans(frozenset({(2, 4)}), frozenset({(2, 8)})),
        MarkedSpans(frozenset(), frozenset()),
    ]
    detected = [
        [(0, 3), (5, 8), (14, 20)],  # right, a wrong end, overlapping a weak label
        [(2, 4), (8, 9)],  # right, although a weak label overlaps it; beside the weak label
        [(0, 1)],
    ]
    counts = count_spans(marked, detected, [0, 2, 1], np.array([1, 0, 1]))
    assert counts.right.tolist() == [1, 1]
    assert counts.detected.tolist() == [2, 3]
    assert counts.marked.tolist() == [1, 2]
    assert counts.unlinked.tolist() == [2, 1]
    assert compute_values(MENTION_METRICS, counts) == {
        "mention_precision": 2 / 5, "mention_recall": 2 / 3, "mention_f1": 4 / 8,
    }  # fmt: skip


def test_a_metric_without_mentions_is_undefined() -> None:
    counts = count_spans([MarkedSpans(frozenset(), frozenset())], [[]], [0], np.array([0]))
    assert all(map(math.isnan, compute_values(MENTION_METRICS, counts).values()))


def repeat(right: int, detected: int, marked: int, documents: int = 30) -> SpanCounts:
    columns = [np.full(documents, count, np.int64) for count in (right, detected, marked, 0)]
    return SpanCounts(*columns)


def test_systems_are_compared_on_the_same_resamples() -> None:
    counts = {"dictionary": repeat(6, 10, 8), "detector": repeat(6, 6, 8)}
    results = compute_detection_results(counts, resamples=50, seed=1)
    detector = results["detector"]
    # Documents are alike, so all resamples are.
    assert (detector.precision.value, detector.precision.low, detector.precision.high) == (1, 1, 1)
    assert detector.recall.value == 0.75
    assert detector.f1.value == pytest.approx(12 / 14)
    for gain in (detector.f1_gain.value, detector.f1_gain.low, detector.f1_gain.high):
        assert gain == pytest.approx(12 / 14 - 12 / 18)
    assert results["dictionary"].f1_gain.value == 0
    assert (detector.right, detector.detected, detector.marked) == (180, 180, 240)


def test_the_section_has_a_row_for_each_system_and_a_sentence_for_each_comparison() -> None:
    counts = {
        "dictionary": repeat(6, 10, 8),
        "detector": repeat(6, 6, 8),
        "both": repeat(6, 10, 8),
    }
    section = make_detection_section(compute_detection_results(counts, resamples=50, seed=1))
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["dictionary", "detector", "both"]
    assert "Of 240 marked mentions" in table.note
    assert section.lines == [
        "Detection by detector: F1 85.7%, +19.0 points over the dictionary (95% interval +19.0 to "
        "+19.0).",
        "Detection by both: F1 66.7%, +0.0 points over the dictionary (95% interval +0.0 to +0.0: "
        "not distinguishable on these documents).",
    ]
