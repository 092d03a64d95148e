"""Sentences are found in a time that grows with the length of the text."""

from __future__ import annotations

import pytest

from bsmeta.data.text.sentences import sentences
from tests.growth import LIMIT, measure_growth

LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 16)


@pytest.mark.parametrize("unit", ["the cat sat on the mat. ", "a. ", ".", "e.g. ", ". \n"])
def test_the_time_of_sentences_grows_with_the_length(unit: str) -> None:
    def split(text: str) -> list[tuple[int, int]]:
        return list(sentences(text, "rules"))

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
    assert [text[start:end] for start, end in sentences(text, "rules")] == expected
