"""Bands, and the groups of pages that share one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH

from bsmeta.annotate.duplicates.bands import MIN_RECALL, BandLayout, choose_bands, group_pages
from bsmeta.annotate.duplicates.signatures import (
    NO_TEXT,
    ONLY_EXACT,
    SIGNED,
    Records,
    make_record_type,
)


@pytest.mark.parametrize(
    ("threshold", "permutations", "layout"),
    [
        (0.8, 128, BandLayout(21, 6)),
        (0.5, 128, BandLayout(42, 3)),
        (0.95, 128, BandLayout(8, 16)),
        (1.0, 128, BandLayout(1, 128)),
        (0.5, 16, BandLayout(16, 1)),
    ],
)
def test_bands_are_as_long_as_the_recall_allows(
    threshold: float, permutations: int, layout: BandLayout
) -> None:
    chosen = choose_bands(threshold, permutations)
    assert chosen == layout
    assert 1 - (1 - threshold**chosen.rows) ** chosen.bands >= MIN_RECALL


def make_records(signatures: np.ndarray, texts: list[int], states: list[int]) -> Records:
    records = np.zeros(len(texts), make_record_type(signatures.shape[1]))
    records["signature"] = signatures
    records["text"][:, 0] = texts
    records["state"] = states
    return records


def test_groups_are_numbered_in_each_band(tmp_path: Path) -> None:
    signatures = np.array([[1, 2, 3, 4], [1, 2, 0, 0], [5, 6, 3, 4], [1, 2, 3, 4], [9, 9, 9, 9]])
    records = make_records(
        signatures, [7, 7, 8, 9, 7], [SIGNED, SIGNED, SIGNED, ONLY_EXACT, NO_TEXT]
    )
    sources = [records[:2], records[:0], records[2:]]
    with group_pages(sources, BandLayout(2, 2), tmp_path / "scratch") as groups:
        assert groups.count == 3
        assert groups.numbers.tolist() == [
            [1, 1, 0, 0, 0],  # the same text; not of a page without text
            [2, 2, 0, 0, 0],  # not of a page without a signature
            [3, 0, 3, 0, 0],
        ]
        assert list(tmp_path.iterdir()) == []  # a killed process leaves nothing


def test_an_empty_corpus_has_no_groups(tmp_path: Path) -> None:
    with group_pages([], BandLayout(2, 2), tmp_path / "scratch") as groups:
        assert (groups.numbers.shape, groups.count) == ((3, 0), 0)


def test_pages_share_a_group_exactly_if_the_library_finds_them(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    signatures = generator.integers(0, 2, (300, 32), np.uint32)
    records = make_records(signatures, [*range(300)], [SIGNED] * 300)
    index = MinHashLSH(num_perm=32, params=(4, 8))
    minhashes = [MinHash(32, hashvalues=row, scheme="affine32") for row in signatures]
    for number, minhash in enumerate(minhashes):
        index.insert(number, minhash)

    with group_pages([records], BandLayout(4, 8), tmp_path / "scratch") as groups:
        numbers = np.array(groups.numbers)
    for page, minhash in enumerate(minhashes):
        shared = (numbers == numbers[:, page : page + 1]) & (numbers[:, page : page + 1] > 0)
        assert {*np.flatnonzero(shared.any(axis=0))} | {page} == {*index.query(minhash)}
