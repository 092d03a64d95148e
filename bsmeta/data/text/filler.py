"""Tokens without content, which replace those of a prefix (`metadata_values`).

A prefix keeps its length and its closing separator, so that the text after it has the same tokens,
chunks and place in its sequence as after the document's own metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import xxhash
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from bsmeta.metadata.substitutes import CONSTANT, RANDOM, WORDS

Ids = NDArray[np.int32]
Filler = Callable[[int, str], Ids]
"""So many tokens (int32 [n]) for the prefix of a text."""


def make_filler(tokenizer: PreTrainedTokenizerBase, values: str) -> Filler | None:
    """The filler of `metadata_values`; None for values that are rendered."""
    if values == CONSTANT:
        ids = tokenizer.encode(" ".join(WORDS), add_special_tokens=False)
        return partial(_constant, np.array(ids, np.int32))
    if values == RANDOM:
        special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
        plain = sorted(set(tokenizer.get_vocab().values()) - special)
        return partial(_random, np.array(plain, np.int32))
    return None


def _constant(ids: Ids, count: int, text: str) -> Ids:
    """The first tokens of one text, repeated where it ends; the document does not matter."""
    return np.resize(ids, count)


def _random(ids: Ids, count: int, text: str) -> Ids:
    """Tokens drawn for a text: in every epoch the same, as its own metadata would be.

    They are raw words of PCG64, whose stream NumPy guarantees to be stable.
    """
    seed = xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
    return ids[np.random.PCG64(seed).random_raw(count) % len(ids)]
