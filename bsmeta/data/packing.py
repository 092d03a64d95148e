"""Pack chunks into sequences: best fit over the chunks of a window.

Packing only depends on lengths. Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve
Language Modeling") fills sequences almost completely and never splits a chunk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packs chunks into as few sequences as best-fit decreasing finds.

    Each chunk, longest first, goes where it leaves the least room; a new sequence is opened only
    if it fits nowhere. The sequences with `room` tokens left are in `by_room[room]`, and bit
    `room` of `rooms` is set if there are any, so that the best fit is found directly.

    Args:
        lengths: Lengths in tokens, each from 1 to `capacity`.
        capacity: Tokens of a sequence.

    Returns:
        For each sequence, the indices of its chunks.
    """
    sequences: list[list[int]] = []
    by_room: defaultdict[int, list[int]] = defaultdict(list)
    rooms = 0
    for piece in np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist():
        length = lengths[piece]
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            sequence = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
            sequences[sequence].append(piece)
        else:
            room = capacity
            sequence = len(sequences)
            sequences.append([piece])
        left = room - length
        if left:
            by_room[left].append(sequence)
            rooms |= 1 << left
    return sequences


def one_each(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """One chunk per sequence, regardless of the room left (`packing: pad`)."""
    return [[piece] for piece in range(len(lengths))]
