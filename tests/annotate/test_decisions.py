"""Decisions on the duplicates of a file, as they are stored and used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.decisions import (
    Decisions,
    Duplicate,
    looks_for_duplicates,
    marks_duplicates,
    read_duplicates,
    read_identity,
    write_duplicates,
)

DUPLICATES = [
    Duplicate(3, "exact_duplicate", "a:1", 1.0),
    Duplicate(64, "near_duplicate", "a:2", 0.875),
    Duplicate(70, "held_out_copy", "h:0", 0.9),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of `DUPLICATES`."""
    write_duplicates(tmp_path / "b.duplicates", "id", DUPLICATES)
    return tmp_path / "b.duplicates"


def test_duplicates_round_trip(path: Path) -> None:
    assert read_duplicates(path) == ("id", DUPLICATES)
    assert read_identity(path) == "id"


def test_missing_and_damaged_files_have_no_identity(path: Path) -> None:
    assert read_identity(path.with_name("none")) is None
    path.write_bytes(b"{")
    assert read_identity(path) is None


@pytest.mark.parametrize(
    ("settings", "looks", "marks", "dropped"),
    [
        ({}, False, False, []),
        ({"duplicates": "mark"}, True, True, [70]),
        ({"duplicates": "drop"}, True, False, [3, 64, 70]),
        ({"held_out": "h"}, True, False, [70]),
        ({"held_out": "h", "held_out_copies": "mark"}, True, True, []),
        ({"held_out": "h", "held_out_copies": "mark", "duplicates": "drop"}, True, True, [3, 64]),
    ],
)
def test_the_configuration_decides_what_is_dropped(
    settings: dict[str, Any], looks: bool, marks: bool, dropped: list[int], path: Path
) -> None:
    config = AnnotateConfig(**settings)
    assert (looks_for_duplicates(config), marks_duplicates(config)) == (looks, marks)
    decisions = Decisions.read(config, path)
    duplicates = decisions.duplicates.values()
    assert [each.number for each in duplicates if each.is_dropped] == dropped
    assert bool(decisions.hash_dropped()) == bool(dropped)
    assert bool(decisions.hash_marked()) == (len(duplicates) > len(dropped))


def test_a_chunk_gets_only_its_duplicates(path: Path) -> None:
    decisions = Decisions.read(AnnotateConfig(duplicates="mark"), path)
    assert {k: each.kept for k, each in decisions.select(64, 8).items()} == {0: "a:2", 6: "h:0"}
    assert decisions.select(4, 60) == {}
