"""Sampled hashes of files: equal for copies, whatever their size."""

from __future__ import annotations

import io

import pytest
import xxhash

from bsmeta.data.io.samples import NUM_SAMPLES, hash_samples

SAMPLE_BYTES = 16_384


@pytest.mark.parametrize("content", [b"", b"short", bytes(SAMPLE_BYTES)])
def test_every_sample_of_a_short_file_is_the_whole_file(content: bytes) -> None:
    whole_file = xxhash.xxh3_64(content * NUM_SAMPLES).hexdigest()
    assert hash_samples(io.BytesIO(content), len(content)) == whole_file


@pytest.mark.parametrize(
    ("position", "is_sampled"),
    [(0, True), (SAMPLE_BYTES, False), (300_000, True), (600_000, True), (-1, True)],
)
def test_a_long_file_is_sampled_at_both_ends_and_two_positions_between(
    position: int, is_sampled: bool
) -> None:
    content = bytes(900_000 + SAMPLE_BYTES)
    changed = bytearray(content)
    changed[position] = 1
    hashes = {hash_samples(io.BytesIO(data), len(data)) for data in (content, changed)}
    assert len(hashes) == (2 if is_sampled else 1)
