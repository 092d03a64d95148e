"""Sentences, chunks and words of a text; sentences are found in linear time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.data.text.sentences import cut_text, find_sentences, find_word_core, find_words
from tests.growth import LIMIT, measure_growth

LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 16)

prose = st.text(
    st.one_of(st.sampled_from("aZ.!? \n\t\r\u00a0\u2028e\u0301👩\u200d🚀"), st.characters()),
    max_size=200,
)


@pytest.mark.parametrize("unit", ["the cat sat on the mat. ", "a. ", ".", "e.g. ", ". \n"])
def test_the_time_of_sentences_grows_with_the_length(unit: str) -> None:
    def split(text: str) -> list[tuple[int, int]]:
        return list(find_sentences(text, "rules"))

    assert measure_growth(split, lambda length: unit * (length // len(unit)), LENGTHS) <= LIMIT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A cat. the mat. B.", ["A cat. the mat.", "B."]),
        (
            "See e.g. this. Dr. No... so it is. OK?!",
            ["See e.g. this.", "Dr. No...", "so it is.", "OK?!"],
        ),
        ("A.B.C. \u201cD.\u201d E", ["A.B.C.", "\u201cD.\u201d", "E"]),
        ("x.y. Z....A. B", ["x.y.", "Z....A.", "B"]),
    ],
)
def test_rules_split_at_ends_of_sentences(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in find_sentences(text, "rules")] == expected


def test_text_is_cut_at_sentences_and_long_sentences_between_words() -> None:
    text = "It is so. And so on!\n\nThe e.g. case, a much longer sentence, goes on. End"
    assert cut_text(text, 24) == [
        "It is so. And so on!\n\n",
        "The e.g. case, a much ",
        "longer sentence, goes ",
        "on. End",
    ]
    assert cut_text("short", 24) == ["short"]
    assert cut_text("", 24) == []
    assert cut_text("a " + "x" * 30 + " b", 10) == ["a ", "x" * 30 + " ", "b"]


@settings(max_examples=300)
@given(prose, st.integers(1, 40))
def test_chunks_joined_are_the_text(text: str, limit: int) -> None:
    chunks = cut_text(text, limit)
    assert "".join(chunks) == text
    assert [word for chunk in chunks for word in chunk.split()] == text.split()
    assert all(len(chunk.strip()) <= limit or len(chunk.split()) == 1 for chunk in chunks)
    assert not text.strip() or all(map(str.strip, chunks))


@settings(max_examples=100)
@given(prose)
def test_words_equal_the_result_of_split(text: str) -> None:
    assert [text[start:end] for start, end in find_words(text)] == text.split()


@pytest.mark.parametrize(
    ("word", "inside"), [("(«word»),", "word"), ("it's.", "it's"), ("--", None), ("3rd", "rd")]
)
def test_the_core_of_a_word_excludes_punctuation(word: str, inside: str | None) -> None:
    span = find_word_core(word)
    assert inside == (None if span is None else word[span.start : span.end])
