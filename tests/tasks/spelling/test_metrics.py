"""Metrics on literal cases."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from bsmeta.core.errors import DataError
from bsmeta.tasks.spelling.corrections import (
    compare_f1,
    correction_counts,
    count_corrections,
    detection_counts,
    edit_costs,
    matching_blocks,
)
from bsmeta.tasks.spelling.task import calibrate
from tests.conftest import REPOSITORY

CASES = REPOSITORY.parent / "shared" / "data" / "spelling" / "metric_cases" / "sec.json"


def test_the_published_example_of_corrections() -> None:
    """From M. Hertel's master's thesis, also a unit test of the published code."""
    counts = correction_counts(
        ["Te cute cteats delicious fi sh."],
        ["The cute act eats delicate fi sh."],
        ["The cute cat eats delicious fish."],
    )
    assert (counts.precision, counts.recall, counts.f1) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("corrupt", "predicted", "correct", "counts"),
    [
        ("teh cat", "the cat", "the cat", (1, 0, 0, 1)),
        ("teh cat", "teh cat", "the cat", (0, 0, 1, 0)),
        ("teh cat", "ten cat", "the cat", (0, 1, 1, 1)),
        ("the cat", "the hat", "the cat", (0, 1, 0, 1)),
        ("the cat", "the cat", "the cat", (0, 0, 0, 0)),
        ("thecat sat", "the cat sat", "the cat sat", (2, 0, 0, 1)),
        ("the ca t sat", "the cat sat", "the cat sat", (1, 0, 0, 2)),
        ("the cat sat", "thecat sat", "the cat sat", (0, 2, 0, 2)),
        ("the cat sat", "the c at sat", "the cat sat", (0, 1, 0, 1)),
        ("on the mat", "on mat", "on the mat", (0, 0, 0, 2)),
        ("the cat", "", "the cat", (0, 2, 0, 2)),
        ("", "a", "", (0, 1, 0, 1)),
        ("", "", "", (0, 0, 0, 0)),
    ],
)
def test_corrections_are_counted(
    corrupt: str, predicted: str, correct: str, counts: tuple[int, int, int, int]
) -> None:
    assert count_corrections(corrupt, predicted, correct) == counts


@pytest.mark.parametrize(
    ("predicted", "correct", "matching"),
    [
        ("a b a", "a", ({2}, {0})),  # going backwards, a match is taken where there is one
        ("a", "a b a", ({0}, {2})),
        ("b a", "a b c", ({0}, {1})),  # both words are passed before one alone
        ("a b", "b a", ({1}, {0})),  # one of the correct line is passed first
    ],
)
def test_of_equally_long_subsequences_the_one_of_the_published_code_is_taken(
    predicted: str, correct: str, matching: tuple[set[int], set[int]]
) -> None:
    assert matching_blocks(predicted.split(), correct.split()) == matching


@pytest.mark.skipif(not CASES.is_file(), reason="../shared/data/spelling/metric_cases is absent")
def test_every_case_of_the_published_evaluation() -> None:
    """400 lines, 300 of them of repeated words, with the metrics of the published code."""
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    lines = ([case[name]] for case in cases for name in ("corrupt", "predicted", "correct"))
    counts = [correction_counts(*line) for line in zip(*[lines] * 3, strict=True)]
    found = [(c.f1, c.precision, c.recall) for c in counts]
    published = [(case["f1"], case["precision"], case["recall"]) for case in cases]
    assert len(cases) == 400
    np.testing.assert_allclose(found, published, rtol=0, atol=1e-9)


def test_the_f1_of_each_line_is_averaged() -> None:
    """A line without errors and changes counts 1; one with a false positive alone counts 0."""
    lines = ["teh cat", "the cat", "the cat", "teh cta"]
    predicted = ["the cat", "the cat", "the hat", "the cta"]
    counts = correction_counts(lines, predicted, ["the cat"] * 4)
    assert counts.sequence_f1 == pytest.approx((1 + 1 + 0 + 2 / 3) / 4)


def test_edit_distance_is_divided_by_the_longer_length() -> None:
    predicted = ["this is a test", "we do no match", "Just a wrong sequence", "one last examples"]
    correct = ["this is a test", "we do not match", "just a wrong sequence", "one last example"]
    counts = correction_counts(predicted, predicted, correct)
    assert counts.mean_distance == pytest.approx((1 / 15 + 1 / 21 + 1 / 17) / 4)


words = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=5).map(" ".join)


@settings(max_examples=150)
@given(words, words)
def test_correcting_everything_and_nothing(corrupt: str, correct: str) -> None:
    everything = count_corrections(corrupt, correct, correct)
    assert (everything.false_positives, everything.false_negatives) == (0, 0)
    nothing = count_corrections(corrupt, corrupt, correct)
    assert (nothing.false_positives, nothing.changed) == (0, 0)


@settings(max_examples=150)
@given(st.text("ab ", max_size=9), st.text("ab ", max_size=9))
def test_alignment_costs(source: str, target: str) -> None:
    """A space is replaced only by a deletion and an insertion."""
    cost = edit_costs(source, target)[-1, -1]
    assert cost == _plain_cost(source, target)
    assert cost >= Levenshtein.distance(source, target)


def _plain_cost(source: str, target: str) -> int:
    if not source or not target:
        return len(source) + len(target)
    row = list(range(len(target) + 1))
    for i, one in enumerate(source, start=1):
        previous, row = row, [i]
        for j, other in enumerate(target, start=1):
            replaced = 0 if one == other else 2 if " " in (one, other) else 1
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + replaced))
    return row[-1]


def test_detection_of_words() -> None:
    counts = detection_counts([[1, 0, 1], [0, 0]], [[1, 1, 0], [0, 0]])
    assert (counts.precision, counts.recall, counts.f1) == (0.5, 0.5, 0.5)
    assert counts.accuracy == 3 / 5
    assert counts.false_positives.tolist() == [1, 0]


def test_detection_of_sequences() -> None:
    counts = detection_counts([[1], [1], [0], [1]], [[1], [0], [0], [1]])
    assert (counts.precision, counts.recall, counts.accuracy) == (2 / 3, 1.0, 0.75)
    assert counts.f1 == pytest.approx(0.8)


def test_false_alarms_on_clean_text() -> None:
    clean = detection_counts([[0, 0, 1], [0, 0]], [[0, 0, 0], [0, 0]])
    assert clean.flagged_rate == 1 / 5
    assert clean.f1 == 0.0
    text = ["the cat sat", "on the mat"]
    assert correction_counts(text, ["the hat sat", "on mat"], text).flagged_rate == 3 / 6


@pytest.mark.parametrize(
    ("predicted", "correct", "message"),
    [
        ([[1]], [[1], [0]], "numbers of lines differ .predicted: 1, correct: 2"),
        ([[1], [1, 0]], [[1], [1]], "line 2 has 2 predictions, but 1 labels"),
    ],
)
def test_lengths_must_agree(
    predicted: list[list[int]], correct: list[list[int]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        detection_counts(predicted, correct)


def test_systems_are_compared_in_pairs() -> None:
    labels = [[1, 0, 0, 1]] * 40
    better = detection_counts([[1, 0, 0, 1]] * 30 + [[0, 0, 0, 1]] * 10, labels)
    worse = detection_counts([[1, 0, 1, 0]] * 40, labels)
    (f1, _), (own, found) = compare_f1([better, worse], resamples=1000, seed=0)
    assert found.value == pytest.approx(better.f1 - 0.5)
    assert found.interval.excludes_zero
    assert found.low < found.value < found.high
    assert not own.interval.excludes_zero
    assert f1.value == better.f1
    assert f1.low < better.f1 < f1.high


def test_the_threshold_with_the_wanted_precision_and_the_highest_recall() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.6, 0.1])
    labels = np.array([1, 0, 1, 1, 0, 1])
    found = calibrate(scores, labels, 0.6)
    assert (found.threshold, found.precision, found.recall, found.flagged) == (0.1, 4 / 6, 1.0, 6)
    strict = calibrate(scores, labels, 0.9)
    assert (strict.threshold, strict.precision, strict.recall) == (0.9, 1.0, 0.25)


def test_a_precision_that_no_threshold_has() -> None:
    found = calibrate(np.array([0.9, 0.5, 0.2]), np.array([0, 1, 0]), 0.95)
    assert (found.threshold, found.precision, found.recall) == (None, 0.5, 1.0)
    assert calibrate(np.array([0.9]), np.array([0]), 0.5).threshold is None
