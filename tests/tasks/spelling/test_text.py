"""Long texts are cut and joined without loss, and corrections are placed by character."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.data.text.sentences import core, cut, words
from bsmeta.tasks.spelling.corrections import (
    Correction,
    Flag,
    apply_corrections,
    as_record,
    find_corrections,
    highlighted,
    render,
    unified_diff,
)

prose = st.text(
    st.one_of(st.sampled_from("aZ.!? \n\t\r\u00a0\u2028e\u0301👩\u200d🚀"), st.characters()),
    max_size=200,
)


def test_text_is_cut_at_sentences_and_long_sentences_between_words() -> None:
    text = "It is so. And so on!\n\nThe e.g. case, a much longer sentence, goes on. End"
    assert cut(text, 24) == [
        "It is so. And so on!\n\n",
        "The e.g. case, a much ",
        "longer sentence, goes ",
        "on. End",
    ]
    assert cut("short", 24) == ["short"]
    assert cut("", 24) == []
    assert cut("a " + "x" * 30 + " b", 10) == ["a ", "x" * 30 + " ", "b"]


@settings(max_examples=300)
@given(prose, st.integers(1, 40))
def test_chunks_joined_are_the_text(text: str, limit: int) -> None:
    chunks = cut(text, limit)
    assert "".join(chunks) == text
    assert [word for chunk in chunks for word in chunk.split()] == text.split()
    assert all(len(chunk.strip()) <= limit or len(chunk.split()) == 1 for chunk in chunks)
    assert not text.strip() or all(map(str.strip, chunks))


@settings(max_examples=100)
@given(prose)
def test_words_are_those_of_split(text: str) -> None:
    assert [text[start:end] for start, end in words(text)] == text.split()


@pytest.mark.parametrize(
    ("word", "inside"), [("(«word»),", "word"), ("it's.", "it's"), ("--", None), ("3rd", "rd")]
)
def test_the_core_of_a_word(word: str, inside: str | None) -> None:
    span = core(word)
    assert inside == (None if span is None else word[span.start : span.end])


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
def test_corrections_have_places(text: str, corrected: str, changes: list[Correction]) -> None:
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
    record = as_record(text, find_corrections(text, "the cat"), corrects=True)
    assert record == {
        "corrected": "the\ncat",
        "changes": [{"start": 0, "end": 3, "text": "teh", "correction": "the"}],
    }
    assert as_record(text, [], corrects=True) == {"corrected": text, "changes": []}
    assert as_record(text, [Flag(0, 3, "teh", 0.75)], corrects=False) == {
        "changes": [{"start": 0, "end": 3, "text": "teh", "probability": 0.75}]
    }
    assert as_record(text, [], corrects=False) == {"changes": []}


def test_colors_mark_what_is_wrong_and_what_is_right() -> None:
    text = "a [b]teh\tca\r\nt"
    changes = find_corrections(text, "a [b]the cat")
    assert highlighted(text, changes) == (
        "a \x1b[9;31m[b]teh\x1b[0m\x1b[32m[b]the\x1b[0m\t"
        "\x1b[9;31mca\x1b[0m\r\n\x1b[9;31mt\x1b[0m\x1b[32mcat\x1b[0m"
    )
    flag = Flag(0, 3, "teh", 0.9)
    assert highlighted("teh cat", [flag]) == "\x1b[4;31mteh\x1b[0m cat"


def test_the_forms_of_a_text() -> None:
    text = "teh\tcat\r\n"
    changes = find_corrections(text, "the cat")
    assert render(text, changes, "text", "a.txt", corrects=True) == "the\tcat\r\n"
    record = json.loads(render(text, [], "json", "a.txt", corrects=False))
    assert record == {"text": text, "changes": []}
    diff = render(text, changes, "diff", "a.txt", corrects=True)
    assert diff.endswith("@@ -1 +1 @@\n-teh\tcat\r\n+the\tcat\r\n")


@pytest.mark.parametrize("ending", ["", "\n"])
def test_the_diff_can_be_applied_by_patch(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "text.txt"
    text, corrected = f"one\nteh \u2028cat{ending}", f"one\nthe \u2028cat{ending}"
    file.write_text(text)
    diff = unified_diff(text, corrected, "text.txt")
    assert diff.startswith("--- a/text.txt\n+++ b/text.txt\n@@ -1,2 +1,2 @@\n one\n-teh ")
    subprocess.run(["patch", "-p1"], input=diff, text=True, cwd=tmp_path, check=True)
    assert file.read_text() == corrected
    assert unified_diff(text, text, "text.txt") == ""
