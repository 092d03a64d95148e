"""Groups pages that may be near duplicates, because a band of their signatures is equal.

Locality-sensitive hashing (Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", section 3.4):
a signature is divided into bands, and pages that agree in all values of a band are candidates. The
groups of all bands are kept on disk, because they may exceed the memory; one band at a time is
sorted in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bsmeta.annotate.duplicates.shingles import mix_bits
from bsmeta.annotate.duplicates.signatures import NO_TEXT, SIGNED, Records

MIN_RECALL = 0.99
"""Minimum probability that two texts whose similarity equals the threshold share a band."""

_BLOCK_RECORDS = 1 << 13  # records whose keys are computed at a time
_MULTIPLIER = np.uint64(0xD1342543DE82EF95)

Groups = NDArray[np.uint64]


class BandLayout(NamedTuple):
    """Division of a signature into bands; only its first `bands * rows` values are used."""

    bands: int
    rows: int  # values per band


def choose_bands(threshold: float, permutations: int) -> BandLayout:
    """Chooses the longest bands that find pairs at the threshold with `MIN_RECALL`.

    Longer bands give fewer false candidates. The signatures of two texts with similarity s agree in
    at least one of b bands of r values with probability 1 - (1 - s^r)^b.

    Args:
        threshold: Similarity from which texts are duplicates.
        permutations: Number of values in a signature.
    """
    for rows in range(permutations, 0, -1):
        bands = permutations // rows
        if 1 - (1 - threshold**rows) ** bands >= MIN_RECALL:
            return BandLayout(bands, rows)
    return BandLayout(permutations, 1)


@dataclass(frozen=True)
class GroupTable:
    """The group of each page in each band.

    Attributes:
        numbers: uint64 [1 + bands, pages]. The first row numbers the groups of pages with equal
            text hashes, the others the groups of each band; 0: no other page is in the group.
        count: Number of groups, which is also the highest group number.
    """

    numbers: Groups
    count: int


@contextmanager
def group_pages(
    sources: Sequence[Records], layout: BandLayout, scratch: Path
) -> Iterator[GroupTable]:
    """Groups the pages of all sources, which are numbered consecutively.

    Args:
        scratch: Path of a temporary file of 8 bytes per page and band. It is unlinked at once, so
            its space is freed when the context or the process ends.

    Raises:
        OSError: If the disk is full.
    """
    pages = sum(len(records) for records in sources)
    shape = (1 + layout.bands, max(pages, 1))
    with open(scratch, "wb+") as file:
        scratch.unlink()
        # Without room on the disk, writing to mapped memory would kill the process.
        os.posix_fallocate(file.fileno(), 0, 8 * shape[0] * shape[1])
        table: Groups = np.memmap(file, np.uint64, "r+", 0, shape)[:, :pages]
        states = np.concatenate([np.empty(0, np.uint8), *(_write_keys(sources, layout, table))])

        count = 0
        for band, keys in enumerate(table):
            is_member = states != NO_TEXT if band == 0 else states == SIGNED
            table[band], count = _number_groups(np.array(keys), np.flatnonzero(is_member), count)
        yield GroupTable(table, count)


def _write_keys(
    sources: Sequence[Records], layout: BandLayout, table: Groups
) -> Iterator[NDArray[np.uint8]]:
    """Writes the key of each page in each band to `table`; yields the states of the pages."""
    start = 0
    for records in sources:
        for block_start in range(0, len(records), _BLOCK_RECORDS):
            block = np.array(records[block_start : block_start + _BLOCK_RECORDS])
            end = start + len(block)
            table[0, start:end] = block["text"][:, 0]
            used_values = block["signature"][:, : layout.bands * layout.rows]
            values = used_values.reshape(-1, layout.bands, layout.rows).astype(np.uint64)
            table[1:, start:end] = _compute_keys(values).T
            yield block["state"].astype(np.uint8)
            start = end


def _compute_keys(values: Groups) -> Groups:
    """Hashes the values of each band: uint64 [pages, bands, rows] -> [pages, bands]."""
    keys = np.zeros(values.shape[:2], np.uint64)
    for row in range(values.shape[2]):
        keys = mix_bits(keys * _MULTIPLIER + values[:, :, row] + np.uint64(1))
    return keys


def _number_groups(keys: Groups, members: NDArray[np.intp], count: int) -> tuple[Groups, int]:
    """Numbers the groups of at least two members with equal keys, starting at `count + 1`.

    Args:
        keys: uint64 [pages].
        members: Pages that may be in a group.
        count: The highest group number in use.

    Returns:
        The group of each page (0: none), uint64 [pages], and the new highest group number.
    """
    numbers = np.zeros(len(keys), np.uint64)
    order = members[np.argsort(keys[members], kind="stable")]
    if not len(order):
        return numbers, count

    # Members with equal keys are adjacent in the sorted order: a run.
    sorted_keys = keys[order]
    is_first = np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1]))
    runs = np.cumsum(is_first) - 1
    is_group = np.bincount(runs) > 1
    run_numbers = np.where(is_group, count + np.cumsum(is_group), 0)
    numbers[order] = run_numbers[runs]
    return numbers, count + int(is_group.sum())
