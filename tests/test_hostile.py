"""`tests.hostile` reports every way in which a read can end, and names the input."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from bsmeta.core.errors import DataError
from tests.hostile import (
    Ending,
    Limits,
    changed_bytes,
    failures,
    random_changes,
    read_all,
)

LIMITS = Limits(memory_bytes=50 << 20, cpu_s=1, idle_s=1)


def obey(path: Path) -> None:
    """Obeys the command in the file."""
    match path.read_bytes():
        case b"refuse":
            raise DataError(f"{path.name} is damaged")
        case b"raise":
            raise ValueError("not of the package")
        case b"exit":
            sys.exit(3)
        case b"end":
            os._exit(3)
        case b"abort":
            os.write(2, b"terminate called")
            os.abort()
        case b"spin":
            while True:
                pass
        case b"wait":
            time.sleep(1e6)
        case b"use memory":
            bytearray(100 << 20)
        case b"use all memory":
            bytearray(1 << 40)
        case b"use some memory":
            bytearray(30 << 20)


def require(word: bytes, path: Path) -> None:
    """Reads the file and another file beside it."""
    if path.read_bytes() + (path.parent / "inner/other").read_bytes() != word:
        raise DataError("another word")


@pytest.mark.long
def test_every_ending_is_reported_with_its_input() -> None:
    expected = [
        (b"read", Ending.OK, ""),
        (b"refuse", Ending.REFUSED, "a.bin is damaged"),
        (b"raise", Ending.TRACEBACK, "ValueError: not of the package"),
        (b"exit", Ending.TRACEBACK, "SystemExit: 3"),
        (b"end", Ending.ABORTED, "exit code 3"),
        (b"read", Ending.OK, ""),
        (b"abort", Ending.ABORTED, "SIGABRT\nterminate called"),
        (b"abort", Ending.ABORTED, "in obey"),
        (b"spin", Ending.HUNG, "too much time of the processor"),
        (b"wait", Ending.HUNG, "it waited without an end"),
        (b"use memory", Ending.MEMORY, "bytes; ok"),
        (b"use all memory", Ending.MEMORY, "MemoryError"),
        (b"use some memory", Ending.OK, ""),
        (b"read", Ending.OK, ""),
    ]
    inputs = [content for content, _, _ in expected]
    outcomes = [*read_all(obey, inputs, intact=b"read", name="a.bin", limits=LIMITS)]
    assert [(outcome.number, outcome.content) for outcome in outcomes] == [*enumerate(inputs)]
    assert [outcome.ending for outcome in outcomes] == [ending for _, ending, _ in expected]
    for outcome, (_, _, detail) in zip(outcomes, expected, strict=True):
        assert detail in outcome.detail
    assert [outcome.peak_bytes > 20 << 20 for outcome in outcomes[10:]] == [
        True,
        False,
        True,
        False,
    ]
    assert [text.split(":")[0] for text in failures(outcomes, limit=3)] == [
        "input 2",
        "input 3",
        "input 4",
    ]


def test_crashes_among_many_inputs_are_attributed_correctly() -> None:
    inputs = [b"abort" if number % 700 == 7 else b"read" for number in range(2500)]
    outcomes = [*read_all(obey, inputs, intact=b"read", name="a.bin", limits=LIMITS)]
    assert [outcome.number for outcome in outcomes] == [*range(2500)]
    bad = [outcome.number for outcome in outcomes if outcome.ending is Ending.ABORTED]
    assert bad == [7, 707, 1407, 2107]
    assert failures([outcome for outcome in outcomes if outcome.number not in bad]) == []


@pytest.mark.parametrize("intact", [b"refuse", b"abort"])
def test_an_intact_file_that_is_not_read_fails(intact: bytes) -> None:
    with pytest.raises(AssertionError, match="the intact file is not read"):
        list(read_all(obey, [b"read"], intact=intact, name="a.bin"))


def test_other_files_are_beside_the_input(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/other").write_bytes(b"b")
    reader = partial(require, b"ab")
    outcomes = read_all(reader, [b"c", b"a"], intact=b"a", name="x", beside=tmp_path)
    assert [outcome.ending for outcome in outcomes] == [Ending.REFUSED, Ending.OK]
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]


def test_changed_bytes_covers_every_byte_and_bit() -> None:
    changed = {*changed_bytes(b"\x00a", values=(0, 255))}
    first = {bytes([value]) + b"a" for value in (255, 1, 2, 4, 8, 16, 32, 64, 128)}
    second = {b"\0" + bytes([value]) for value in (0, 255, *(97 ^ 1 << bit for bit in range(8)))}
    assert changed == first | second


def test_random_changes_depend_on_the_seed() -> None:
    content = bytes(range(256)) * 4
    changed = [*random_changes(content, 300)]
    assert changed == [*random_changes(content, 300)]
    assert changed != [*random_changes(content, 300, seed=1)]
    assert len({*changed} - {content}) > 280
    assert {len(other) < len(content) for other in changed} == {True, False}
    assert [*random_changes(b"", 3)]
