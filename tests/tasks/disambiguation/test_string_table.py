"""Strings and lists by their numbers, read from arrays that may be damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder, ArrayWriter
from bsmeta.tasks.disambiguation.string_table import (
    Names,
    Strings,
    check_lists,
    check_names,
    check_numbers,
    check_strings,
    find_list_range,
    make_name_layout,
)

TITLES = ("Sets", "", "Café 😀", "Maps")
NAME = "titles"


class Facts(msgspec.Struct):
    """Nothing is known about the arrays besides their values."""


def write_names(folder: Path, **changes: np.ndarray) -> ArrayFolder[Any]:
    """Writes `TITLES` as strings that are looked up; `changes` replace arrays."""
    encoded = [title.encode() for title in TITLES]
    hashes = np.array([xxhash.xxh3_64_intdigest(title) for title in encoded], np.uint64)
    order = np.argsort(hashes)
    arrays = {
        NAME: np.frombuffer(b"".join(encoded), np.uint8),
        f"{NAME}_ends": np.cumsum([len(title) for title in encoded]),
        f"{NAME}_hashes": hashes[order],
        f"{NAME}_order": order.astype(np.int32),
        **changes,
    }

    folder.mkdir()
    writer = ArrayWriter(folder, make_name_layout(NAME))
    for name, values in arrays.items():
        writer.append(name, values)
    writer.commit(Facts())
    return ArrayFolder(folder, make_name_layout(NAME), Facts)


def test_strings_are_read_by_their_numbers(tmp_path: Path) -> None:
    strings = Strings(write_names(tmp_path / "table"), NAME)
    assert len(strings) == 4
    assert tuple(strings) == TITLES
    assert strings[2] == "Café 😀"
    assert bytes(strings.utf8(2)) == "Café 😀".encode()


def test_names_are_found_by_their_text(tmp_path: Path) -> None:
    names = Names(write_names(tmp_path / "table"), NAME)
    assert [names.find(title) for title in TITLES] == [0, 1, 2, 3]
    assert names.find("sets") == -1


def test_names_of_the_same_hash_are_told_apart_by_their_text(tmp_path: Path) -> None:
    digest = xxhash.xxh3_64_intdigest(b"Maps")
    arrays = write_names(
        tmp_path / "table",
        **{
            f"{NAME}_hashes": np.full(4, digest, np.uint64),
            f"{NAME}_order": np.arange(4, dtype=np.int32),
        },
    )
    assert Names(arrays, NAME).find("Maps") == 3


def test_the_values_of_a_number_end_where_those_of_the_next_begin() -> None:
    ends = np.array([2, 2, 5])
    assert [find_list_range(ends, number) for number in range(3)] == [
        slice(0, 2), slice(2, 2), slice(2, 5)
    ]  # fmt: skip


def test_an_intact_table_passes_all_checks(tmp_path: Path) -> None:
    arrays = write_names(tmp_path / "table")
    assert check_lists(arrays, NAME) == 4
    assert check_strings(arrays, NAME, 4) == 4
    assert check_names(arrays, NAME, 4) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titles_ends": np.array([4, 2, 13, 17])}, "titles_ends does not increase"),
        ({"titles_ends": np.array([4, 4, 14, 16])}, "titles_ends ends at 16, but titles has 18"),
        ({"titles_ends": np.array([4, 4, 18])}, "titles_ends has 3 values, expected 4"),
        ({"titles_ends": np.array([4, 8, 14, 18])}, "titles_ends divides a character of titles"),
        ({"titles": np.full(18, 0xFF, np.uint8)}, "titles is not UTF-8: "),
        ({"titles_hashes": np.zeros(3, np.uint64)}, "titles_hashes has 3 values, expected 4"),
        (
            {"titles_order": np.array([0, 1, 2, 4], np.int32)},
            "titles_order has values from 0 to 4, expected 0 to 3",
        ),
    ],
)
def test_a_damaged_table_is_refused(
    tmp_path: Path, changes: dict[str, np.ndarray], message: str
) -> None:
    arrays = write_names(tmp_path / "table", **changes)
    with pytest.raises(DataError) as error:
        check_names(arrays, NAME, 4)
    assert message in str(error.value)


def test_numbers_below_zero_are_refused(tmp_path: Path) -> None:
    order = np.array([0, -1, 2, 3], np.int32)
    arrays = write_names(tmp_path / "table", titles_order=order)
    with pytest.raises(DataError, match="titles_order has values from -1 to 3, expected 0 to 3"):
        check_numbers(arrays, f"{NAME}_order", 4)
