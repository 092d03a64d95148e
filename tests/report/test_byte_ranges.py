"""Parts of a document are named by both ends."""

from __future__ import annotations

from bsmeta.report.byte_ranges import name_byte_ranges


def test_every_range_except_the_last_has_two_ends() -> None:
    assert name_byte_ranges([0, 128, 512, 2048]) == [
        "0–127",
        "128–511",
        "512–2,047",
        "2,048 and on",
    ]
    assert name_byte_ranges([0]) == ["0 and on"]
    assert name_byte_ranges([]) == []
