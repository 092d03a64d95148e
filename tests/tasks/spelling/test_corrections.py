"""Metrics of corrections on literal cases, corrections in a text, and their forms."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from bsmeta.core.errors import DataError
from bsmeta.tasks.spelling.corrections import (
    Correction,
    Flag,
    apply_corrections,
    compare_f1,
    compute_edit_costs,
    count_correction_outcomes,
    count_corrections,
    count_detection_outcomes,
    find_corrections,
    find_matching_words,
    highlight_corrections,
    make_record,
    make_unified_diff,
    render_changes,
)
from tests.conftest import REPOSITORY

CASES = REPOSITORY.parent / "shared" / "data" / "spelling" / "metric_cases" / "sec.json"

prose = st.text(
    st.one_of(st.sampled_from("aZ.!? \n\t\r\u00a0\u2028e\u0301👩\u200d🚀"), st.characters()),
    max_size=200,
)


def test_the_published_example_of_corrections() -> None:
    """From M. Hertel's master's thesis, also a unit test of the published code."""
    counts = count_correction_outcomes(
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
    assert find_matching_words(predicted.split(), correct.split()) == matching


@pytest.mark.skipif(not CASES.is_file(), reason="../shared/data/spelling/metric_cases is absent")
def test_every_case_of_the_published_evaluation() -> None:
    """400 lines, 300 of them of repeated words, with the metrics of the published code."""
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    lines = ([case[name]] for case in cases for name in ("corrupt", "predicted", "correct"))
    counts = [count_correction_outcomes(*line) for line in zip(*[lines] * 3, strict=True)]
    found = [(c.f1, c.precision, c.recall) for c in counts]
    published = [(case["f1"], case["precision"], case["recall"]) for case in cases]
    assert len(cases) == 400
    np.testing.assert_allclose(found, published, rtol=0, atol=1e-9)


def test_the_f1_of_each_line_is_averaged() -> None:
    """A line without errors and changes counts 1; one with a false positive alone counts 0."""
    lines = ["teh cat", "the cat", "the cat", "teh cta"]
    predicted = ["the cat", "the cat", "the hat", "the cta"]
    counts = count_correction_outcomes(lines, predicted, ["the cat"] * 4)
    assert counts.sequence_f1 == pytest.approx((1 + 1 + 0 + 2 / 3) / 4)


def test_edit_distance_is_divided_by_the_longer_length() -> None:
    predicted = ["this is a test", "we do no match", "Just a wrong sequence", "one last examples"]
    correct = ["this is a test", "we do not match", "just a wrong sequence", "one last example"]
    counts = count_correction_outcomes(predicted, predicted, correct)
    assert counts.mean_distance == pytest.approx((1 / 15 + 1 / 21 + 1 / 17) / 4)


words = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=5).map(" ".join)


@settings(max_examples=150)
@given(words, words)
def test_perfect_corrections_have_no_errors_and_unchanged_text_no_changes(
    corrupt: str, correct: str
) -> None:
    everything = count_corrections(corrupt, correct, correct)
    assert (everything.false_positives, everything.false_negatives) == (0, 0)
    nothing = count_corrections(corrupt, corrupt, correct)
    assert (nothing.false_positives, nothing.changed) == (0, 0)


@settings(max_examples=150)
@given(st.text("ab ", max_size=9), st.text("ab ", max_size=9))
def test_alignment_costs_are_those_of_the_plain_recursion(source: str, target: str) -> None:
    """A space is replaced only by a deletion and an insertion."""
    cost = compute_edit_costs(source, target)[-1, -1]
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


def test_detected_words_are_counted() -> None:
    counts = count_detection_outcomes([[1, 0, 1], [0, 0]], [[1, 1, 0], [0, 0]])
    assert (counts.precision, counts.recall, counts.f1) == (0.5, 0.5, 0.5)
    assert counts.accuracy == 3 / 5
    assert counts.false_positives.tolist() == [1, 0]


def test_detected_sequences_are_counted() -> None:
    counts = count_detection_outcomes([[1], [1], [0], [1]], [[1], [0], [0], [1]])
    assert (counts.precision, counts.recall, counts.accuracy) == (2 / 3, 1.0, 0.75)
    assert counts.f1 == pytest.approx(0.8)


def test_false_alarms_on_clean_text() -> None:
    clean = count_detection_outcomes([[0, 0, 1], [0, 0]], [[0, 0, 0], [0, 0]])
    assert clean.flagged_rate == 1 / 5
    assert clean.f1 == 0.0
    text = ["the cat sat", "on the mat"]
    assert count_correction_outcomes(text, ["the hat sat", "on mat"], text).flagged_rate == 3 / 6


@pytest.mark.parametrize(
    ("predicted", "correct", "message"),
    [
        ([[1]], [[1], [0]], "numbers of lines differ .predicted: 1, correct: 2"),
        ([[1], [1, 0]], [[1], [1]], "line 2 has 2 predictions, but 1 labels"),
    ],
)
def test_labels_of_another_length_are_refused(
    predicted: list[list[int]], correct: list[list[int]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        count_detection_outcomes(predicted, correct)


def test_systems_are_compared_in_pairs() -> None:
    labels = [[1, 0, 0, 1]] * 40
    better = count_detection_outcomes([[1, 0, 0, 1]] * 30 + [[0, 0, 0, 1]] * 10, labels)
    worse = count_detection_outcomes([[1, 0, 1, 0]] * 40, labels)
    (f1, _), (own, found) = compare_f1([better, worse], resamples=1000, seed=0)
    assert found.value == pytest.approx(better.f1 - 0.5)
    assert found.interval.excludes_zero
    assert found.low < found.value < found.high
    assert not own.interval.excludes_zero
    assert f1.value == better.f1
    assert f1.low < better.f1 < f1.high


@pytest.mark.parametrize(
    ("text", "corrected", "changes"),
    [
        ("teh  cat", "the cat", [Correction(0, 3, "teh", "the")]),
        (
            "a teh\ncta b",
            "a the cat b",
            [Correction(2, 5, "teh", "the"), Correction(6, 9, "cta", "cat")],
        ),
        ("the ca t sat", "the cat sat", [Correction(4, 8, "ca t", "cat")]),
        (
            "teh ca\tt",
            "the cat",
            [Correction(0, 3, "teh", "the"), Correction(4, 8, "ca\tt", "cat")],
        ),
        (
            "a\nthecat",
            "an the cat",
            [Correction(0, 1, "a", "an"), Correction(2, 8, "thecat", "the cat")],
        ),
        ("thecat sat", "the cat sat", [Correction(0, 6, "thecat", "the cat")]),
        ("the sat", "the cat sat", [Correction(3, 3, "", " cat")]),
        ("cat", "the cat", [Correction(0, 0, "", "the ")]),
        ("the the cat", "the cat", [Correction(4, 7, "the", "")]),
        ("  ", "a", [Correction(2, 2, "", "a")]),
        ("same \n text", "same text", []),
    ],
)
def test_corrections_have_character_offsets(
    text: str, corrected: str, changes: list[Correction]
) -> None:
    assert find_corrections(text, corrected) == changes


@settings(max_examples=300)
@given(prose, st.lists(st.sampled_from(["a", "Z.", "👩", "aZ"]), max_size=8))
def test_applied_corrections_are_the_corrected_words(text: str, other: list[str]) -> None:
    for corrected in (other, text.split()[1:], [*text.split(), "Z"]):
        changes = find_corrections(text, " ".join(corrected))
        assert apply_corrections(text, changes).split() == corrected
    assert apply_corrections(text, find_corrections(text, text)) == text


def test_a_record_has_offsets_and_the_same_columns_with_and_without_changes() -> None:
    text = "teh\ncat"
    record = make_record(text, find_corrections(text, "the cat"), corrects=True)
    assert record == {
        "corrected": "the\ncat",
        "changes": [{"start": 0, "end": 3, "text": "teh", "correction": "the"}],
    }
    assert make_record(text, [], corrects=True) == {"corrected": text, "changes": []}
    assert make_record(text, [Flag(0, 3, "teh", 0.75)], corrects=False) == {
        "changes": [{"start": 0, "end": 3, "text": "teh", "probability": 0.75}]
    }
    assert make_record(text, [], corrects=False) == {"changes": []}


def test_colors_mark_what_is_wrong_and_what_is_right() -> None:
    text = "a [b]teh\tca\r\nt"
    changes = find_corrections(text, "a [b]the cat")
    assert highlight_corrections(text, changes) == (
        "a \x1b[9;31m[b]teh\x1b[0m\x1b[32m[b]the\x1b[0m\t"
        "\x1b[9;31mca\x1b[0m\r\n\x1b[9;31mt\x1b[0m\x1b[32mcat\x1b[0m"
    )
    flag = Flag(0, 3, "teh", 0.9)
    assert highlight_corrections("teh cat", [flag]) == "\x1b[4;31mteh\x1b[0m cat"


def test_the_forms_of_a_text() -> None:
    text = "teh\tcat\r\n"
    changes = find_corrections(text, "the cat")
    assert render_changes(text, changes, "text", "a.txt", corrects=True) == "the\tcat\r\n"
    record = json.loads(render_changes(text, [], "json", "a.txt", corrects=False))
    assert record == {"text": text, "changes": []}
    diff = render_changes(text, changes, "diff", "a.txt", corrects=True)
    assert diff.endswith("@@ -1 +1 @@\n-teh\tcat\r\n+the\tcat\r\n")


@pytest.mark.parametrize("ending", ["", "\n"])
def test_the_diff_can_be_applied_by_patch(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "text.txt"
    text, corrected = f"one\nteh \u2028cat{ending}", f"one\nthe \u2028cat{ending}"
    file.write_text(text)
    diff = make_unified_diff(text, corrected, "text.txt")
    assert diff.startswith("--- a/text.txt\n+++ b/text.txt\n@@ -1,2 +1,2 @@\n one\n-teh ")
    subprocess.run(["patch", "-p1"], input=diff, text=True, cwd=tmp_path, check=True)
    assert file.read_text() == corrected
    assert make_unified_diff(text, text, "text.txt") == ""
