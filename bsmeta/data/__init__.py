"""Turns files into micro-batches.

`io` reads the lines of shards, `text` encodes documents, `stream` yields the endless, deterministic
training stream for language modeling, and `table` the rows of a finite table in epochs. `batch`
defines the micro-batches that a stream yields.

The functions here seed every random choice about the data with a hash of the values that identify
the choice. No generator is shared or global. So a choice depends neither on the order in which
documents are read nor on the process that reads them.
"""

from __future__ import annotations

import random

import numpy as np
import xxhash


def derive_seed(*parts: int | str) -> int:
    """Returns a 64-bit seed (xxh3) from values that identify a choice: (seed, epoch, shard, 7)."""
    return xxhash.xxh3_64_intdigest("\0".join(map(str, parts)).encode())


def make_document_generator(seed: int, epoch: int, shard: str, document: int) -> random.Random:
    """Returns the generator for all choices about a document in an epoch.

    Args:
        document: The document's number in the shard.
    """
    return random.Random(derive_seed(seed, epoch, shard, document))


def permute(length: int, seed: int) -> np.ndarray:
    """Returns a permutation (int64[length]) that depends only on the arguments.

    It sorts raw 64-bit words of PCG64, because NumPy guarantees that this stream is stable, unlike
    `Generator.permutation`.
    """
    words = np.random.PCG64(seed).random_raw(length)
    return np.argsort(words, kind="stable")
