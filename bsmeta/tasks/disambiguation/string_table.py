"""Lists and strings of different lengths in the arrays of a folder, by their numbers.

The array `NAME` has the concatenated values of all lists, and `NAME_ends` the end offset of each.
Strings are lists of UTF-8 bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from bsmeta.core.progress import report_progress
from bsmeta.tasks.disambiguation.array_folder import ArrayFolder, make_damaged_folder_error

_BLOCK_VALUES = 1 << 20  # checked at a time


def make_list_layout(name: str, dtype: str) -> dict[str, str]:
    """Returns the layout of lists with values of a type."""
    return {name: dtype, f"{name}_ends": "<i8"}


def make_string_layout(name: str) -> dict[str, str]:
    """Returns the layout of strings."""
    return make_list_layout(name, "|u1")


def make_name_layout(name: str) -> dict[str, str]:
    """Returns the layout of `Names`: strings that are looked up by their hashes."""
    return {**make_string_layout(name), f"{name}_hashes": "<u8", f"{name}_order": "<i4"}


class Strings:
    """Strings by their numbers, from 0."""

    def __init__(self, arrays: ArrayFolder[Any], name: str) -> None:
        self._text = arrays[name].data
        self._ends = arrays[f"{name}_ends"]

    def __len__(self) -> int:
        return len(self._ends)

    def utf8(self, number: int) -> memoryview:
        """Returns a string as UTF-8."""
        return self._text[find_list_range(self._ends, number)]

    def __getitem__(self, number: int) -> str:
        return str(self.utf8(number), "utf-8")

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))


class Names(Strings):
    """Distinct strings that are looked up by their hashes.

    `NAME_hashes` has the sorted hashes, and `NAME_order` the number of the string of each hash.
    """

    def __init__(self, arrays: ArrayFolder[Any], name: str) -> None:
        super().__init__(arrays, name)
        self._hashes = arrays[f"{name}_hashes"]
        self._order = arrays[f"{name}_order"]

    def find(self, string: str) -> int:
        """Returns the number of a string; -1 if there is none."""
        data = string.encode()
        string_hash = np.uint64(xxhash.xxh3_64_intdigest(data))

        # Several strings may have the same hash.
        position = int(self._hashes.searchsorted(string_hash))
        while position < len(self._hashes) and self._hashes[position] == string_hash:
            number = int(self._order[position])
            if self.utf8(number) == data:
                return number
            position += 1
        return -1


def find_list_range(ends: np.ndarray, number: int) -> slice:
    """Returns the range of a list in the concatenated values.

    Args:
        ends: The end offset of each list.
        number: The number of the list.
    """
    start = int(ends[number - 1]) if number else 0
    return slice(start, int(ends[number]))


def replace_list_ends(ends: np.ndarray, replaced: Mapping[int, Sequence[int]]) -> np.ndarray:
    """Returns the end offsets of lists after some lists are replaced, by number."""
    lengths = np.diff(ends, prepend=0)
    for number, values in replaced.items():
        lengths[number] = len(values)
    return np.cumsum(lengths)


def replace_list_values(
    values: np.ndarray, ends: np.ndarray, replaced: Mapping[int, Sequence[int]]
) -> np.ndarray:
    """Returns the concatenated values of lists after some lists are replaced, by number."""
    parts = []
    copied = 0
    for number in sorted(replaced):
        positions = find_list_range(ends, number)
        new_values = np.array([*replaced[number]], values.dtype)
        parts += [values[copied : positions.start], new_values]
        copied = positions.stop
    return np.concatenate([*parts, values[copied:]])


def check_lists(arrays: ArrayFolder[Any], name: str, count: int | None = None) -> int:
    """Checks the end offsets of lists; returns the number of lists.

    Args:
        count: The required number of lists; None: any.

    Raises:
        DataError: If an end is before the previous one, or beyond the values.
    """
    ends = arrays[f"{name}_ends"]
    if count is not None:
        check_length(arrays, f"{name}_ends", count)

    previous = 0
    for start in range(0, len(ends), _BLOCK_VALUES):
        block = ends[start : start + _BLOCK_VALUES]
        if block[0] < previous or (np.diff(block) < 0).any():
            raise make_damaged_folder_error(arrays.folder, f"{name}_ends does not increase")
        previous = int(block[-1])
        report_progress()

    if previous != len(arrays[name]):
        raise make_damaged_folder_error(
            arrays.folder, f"{name}_ends ends at {previous:,}, but {name} has {len(arrays[name]):,}"
        )
    return len(ends)


def check_strings(arrays: ArrayFolder[Any], name: str, count: int | None = None) -> int:
    """Checks that strings have valid end offsets and are UTF-8; returns the number of strings.

    Raises:
        DataError: If they are damaged.
    """
    number = check_lists(arrays, name, count)
    text = arrays[name]

    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(text), _BLOCK_VALUES):
            decoder.decode(text[start : start + _BLOCK_VALUES].tobytes())
            report_progress()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise make_damaged_folder_error(arrays.folder, f"{name} is not UTF-8: {error}") from error

    # The concatenated text is UTF-8, so each string is UTF-8 if none starts inside a character.
    ends = arrays[f"{name}_ends"]
    starts = ends[ends < len(text)]
    if ((text[starts] & 0xC0) == 0x80).any():
        raise make_damaged_folder_error(arrays.folder, f"{name}_ends divides a character of {name}")
    return number


def check_names(arrays: ArrayFolder[Any], name: str, count: int | None = None) -> int:
    """Checks the arrays of `Names`; returns the number of strings.

    Raises:
        DataError: If they are damaged.
    """
    num_strings = check_strings(arrays, name, count)
    check_length(arrays, f"{name}_hashes", num_strings)
    check_length(arrays, f"{name}_order", num_strings)
    check_numbers(arrays, f"{name}_order", num_strings)
    return num_strings


def check_numbers(arrays: ArrayFolder[Any], name: str, count: int) -> None:
    """Checks that every value of an array is in the range from 0 to `count` - 1.

    Raises:
        DataError: If a value is not.
    """
    values = arrays[name]
    if len(values) and not (values.min() >= 0 and values.max() < count):
        raise make_damaged_folder_error(
            arrays.folder,
            f"{name} has values from {values.min()} to {values.max()}, expected 0 to {count - 1}",
        )


def check_length(arrays: ArrayFolder[Any], name: str, length: int) -> None:
    """Checks the length of an array.

    Raises:
        DataError: If it differs.
    """
    if len(arrays[name]) != length:
        raise make_damaged_folder_error(
            arrays.folder, f"{name} has {len(arrays[name]):,} values, expected {length:,}"
        )
