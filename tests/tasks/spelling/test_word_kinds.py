"""The kinds of words, by which false alarms are reported."""

from __future__ import annotations

import pytest

from bsmeta.tasks.spelling.noise import is_editable
from bsmeta.tasks.spelling.word_kinds import find_word_kind


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("lower case", "the (the), it's well-Known e.g. don’t"),
        ("capitalized", "The ``I A O'Neil"),
        ("acronym", "NATO, H.M. CDs FBI's CONSTITUTION"),
        ("inner capitals", "kW McDonald US-led"),
        ("non-ASCII letters", "café Łódź"),
        ("digits or symbols", "C++ R&D AT&T's and/or x_y 3rd °C"),
        ("", "12 ... —"),
    ],
)
def test_words_are_classified_by_their_characters(kind: str, words: str) -> None:
    assert {find_word_kind(word) for word in words.split()} == {kind}


def test_acronyms_and_words_with_symbols_are_never_misspelled() -> None:
    words = "NATO, H.M. CDs C++ R&D and/or 3rd kW CONSTITUTION the"
    assert [*filter(is_editable, words.split())] == ["kW", "CONSTITUTION", "the"]
