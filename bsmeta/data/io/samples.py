"""The hash of samples of a file, by which it is recognized wherever it was copied."""

from __future__ import annotations

from typing import BinaryIO

import xxhash

from bsmeta.core.progress import report_progress

SAMPLES, _SAMPLE_BYTES = 4, 1 << 14


def hash_of_samples(file: BinaryIO, size: int) -> str:
    """The xxh3 (hexadecimal) of the beginning and end of a file and a few places in between."""
    found = xxhash.xxh3_64()
    last = max(size - _SAMPLE_BYTES, 0)
    for place in range(SAMPLES):
        file.seek(last * place // (SAMPLES - 1))
        found.update(file.read(_SAMPLE_BYTES))
        report_progress()
    return found.hexdigest()
