"""Hashes samples of a file, which identify its copies on any machine."""

from __future__ import annotations

from typing import BinaryIO

import xxhash

from bsmeta.core.progress import report_progress

NUM_SAMPLES = 4
_SAMPLE_BYTES = 1 << 14


def hash_samples(file: BinaryIO, size: int) -> str:
    """Hashes the beginning and the end of a file and samples in between (xxh3, hexadecimal).

    Args:
        size: Size of the file in bytes.
    """
    samples_hash = xxhash.xxh3_64()
    last_start = max(size - _SAMPLE_BYTES, 0)
    for sample in range(NUM_SAMPLES):
        file.seek(last_start * sample // (NUM_SAMPLES - 1))
        samples_hash.update(file.read(_SAMPLE_BYTES))
        report_progress()
    return samples_hash.hexdigest()
