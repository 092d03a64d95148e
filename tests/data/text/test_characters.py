"""Characters and their bytes."""

from __future__ import annotations

from bsmeta.data.text.characters import utf8_lengths


def test_bytes_of_characters() -> None:
    assert utf8_lengths("aé€😀").tolist() == [1, 2, 3, 4]
