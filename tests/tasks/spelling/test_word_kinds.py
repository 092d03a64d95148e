"""The kinds of words, by which false alarms are reported."""

from __future__ import annotations

import pytest

from bsmeta.tasks.spelling.false_alarms import (
    FalseAlarms,
    count_false_alarms,
    flag_changed_words,
)
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


def test_false_alarms_are_counted_by_kind() -> None:
    lines = ["The cat saw NATO 12", "A C++ café"]
    alarms = count_false_alarms(lines, [[0, 1, 0, 1, 1], [0, 0, 1]])
    assert alarms == {
        "lower case": FalseAlarms(2, 1),
        "capitalized": FalseAlarms(2, 0),
        "acronym": FalseAlarms(1, 1),
        "inner capitals": FalseAlarms(0, 0),
        "non-ASCII letters": FalseAlarms(1, 1),
        "digits or symbols": FalseAlarms(1, 0),
    }
    assert [alarm.rate for alarm in alarms.values()] == [0.5, 0.0, 1.0, 0.0, 1.0, 0.0]


def test_changed_words_of_a_corrected_line_are_flagged() -> None:
    lines = ["the  cat sat on amat", "a b"]
    assert flag_changed_words(lines, ["the bat sat on a mat", "a b"]) == [
        [0, 1, 0, 0, 1],
        [0, 0],
    ]
