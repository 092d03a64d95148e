"""Sequences of token ids, as a stream packs them."""

from __future__ import annotations

import numpy as np

from bsmeta.data.stream.plan import Position
from bsmeta.data.text.chunks import PackedSequence


def sequence(first: int, *lengths: int, types: list[int]) -> PackedSequence:
    """A sequence of chunks of these lengths whose ids count from `first` on."""
    size = sum(lengths)
    return PackedSequence(
        ids=np.arange(first, first + size, dtype=np.int32),
        token_types=np.ones(size, np.uint8),
        loss_mask=np.ones(size, np.bool_),
        lengths=np.array(lengths),
        types=np.array(types, np.int32),
        documents=(f"a:{first}",),
        counts=np.array([1.0]),
        stream=0,
        position_after=Position(sequence=first),
    )
