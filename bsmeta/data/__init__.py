"""Turns files into micro-batches.

`io` reads the lines of shards, `text` encodes documents, `stream` yields the endless, deterministic
training stream for language modeling, and `table` the rows of a finite table in epochs. `batch`
defines the micro-batches that a stream yields.

Every random choice about the data is seeded with a hash of the values that identify the choice, so
it depends neither on the order in which documents are read nor on the process that reads them. The
functions here compute these seeds; no generator is shared or global.
"""

from __future__ import annotations

import random

import numpy as np
import xxhash


def derive_seed(*parts: int | str) -> int:
    """Hashes values that identify a random choice, such as (seed, "rows", epoch), to 64 bits."""
    return xxhash.xxh3_64_intdigest("\0".join(map(str, parts)).encode())


def make_document_generator(seed: int, epoch: int, shard: str, document: int) -> random.Random:
    """Returns the random generator for all choices about a document in an epoch.

    Args:
        document: The document's number in the shard, from 0.
    """
    return random.Random(derive_seed(seed, epoch, shard, document))


def permute(length: int, seed: int) -> np.ndarray:
    """Returns a random permutation of `range(length)` (int64[length]).

    It is the same under every version of NumPy: the raw 64-bit words of PCG64 are guaranteed to be
    stable, unlike `Generator.permutation`.
    """
    sort_keys = np.random.PCG64(seed).random_raw(length)
    return np.argsort(sort_keys, kind="stable")
