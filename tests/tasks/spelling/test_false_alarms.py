"""False alarms by kind of word."""

from __future__ import annotations

from bsmeta.tasks.spelling.false_alarms import (
    FalseAlarms,
    count_false_alarms,
    flag_changed_words,
)


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
