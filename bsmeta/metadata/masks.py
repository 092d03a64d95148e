"""Masks: where metadata stands in a rendered text, carried over to its tokens.

Last step of the flow: `rendering` gives character spans of metadata, a tokenizer gives character
spans of tokens; these functions join the two. Array operations only, linear in text and tokens.

Spans are int32 [m, 2] (start, end) of characters, sorted and disjoint, one row an inserted
string. Kinds are uint8: 0 is text, 1 + i the i-th type of `metadata_list`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bsmeta.config.metadata import MetadataConfig

Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]
Bools = NDArray[np.bool_]


def token_runs(starts: Int32, ends: Int32, spans: Int32) -> Int32:
    """Which inserted string each token belongs to.

    Args:
        starts: int32 [n], first character of each token.
        ends: int32 [n], the character after its last one.
        spans: int32 [m, 2], the inserted strings.

    Returns:
        int32 [n]: the row of `spans` of the token's first metadata character; -1 where it has
        none (also for a token without characters).
    """
    if not len(spans) or not len(starts):
        return np.full(len(starts), -1, np.int32)
    # The row of the first span that ends after each character, up to the last token's start.
    last = max(int(starts.max()) + 1, int(spans[-1, 1]))
    lengths = np.diff(spans[:, 1], prepend=0, append=last)
    next_row = np.repeat(np.arange(len(spans) + 1, dtype=np.int32), lengths)
    rows = next_row[starts]
    begins = np.append(spans[:, 0], np.iinfo(np.int32).max)
    touched = (begins[rows] < ends) & (ends > starts)
    return np.where(touched, rows, np.int32(-1))


def token_kinds(starts: Int32, ends: Int32, spans: Int32, kinds: UInt8) -> UInt8:
    """The kind of each token: that of its first metadata character, 0 for pure text.

    Args:
        starts: int32 [n], first character of each token.
        ends: int32 [n], the character after its last one.
        spans: int32 [m, 2], the inserted strings.
        kinds: uint8 [m], their kinds.

    Returns:
        uint8 [n].
    """
    return np.append(kinds, np.uint8(0))[token_runs(starts, ends, spans)]


def inside_span(positions: Int32, spans: Int32) -> Bools:
    """Whether a cut before these characters would split an inserted string.

    Args:
        positions: int32 [n], character positions.
        spans: int32 [m, 2], the inserted strings.

    Returns:
        bool [n]: true strictly between a span's start and its end.
    """
    if not len(spans):
        return np.zeros(len(positions), np.bool_)
    rows = np.searchsorted(spans[:, 0], positions, side="left") - 1
    ends = np.append(spans[:, 1], np.int32(-1))  # row -1: before the first span
    return positions < ends[rows]


def text_positions(positions: Int32, spans: Int32) -> Int32:
    """Positions in the rendered body as positions in the text without its metadata.

    Args:
        positions: int32 [n], character positions in the body, the body's end included.
        spans: int32 [m, 2], the inserted strings.

    Returns:
        int32 [n]: the number of text characters before each position.
    """
    if not len(spans):
        return positions
    lengths = spans[:, 1] - spans[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)))
    rows = np.searchsorted(spans[:, 0], positions, side="right")
    overhang = np.maximum(np.append(spans[:, 1], 0)[rows - 1] - positions, 0)
    overhang[rows == 0] = 0
    return (positions - before[rows] + overhang).astype(np.int32)


def loss_tables(config: MetadataConfig) -> tuple[Bools, Bools]:
    """Of which kinds of tokens loss is taken.

    Args:
        config: `loss_on_metadata`, `loss_on_metadata_types` and
            `treat_local_metadata_as_regular_text` decide.

    Returns:
        Two bool [256] tables to index with kinds: for tokens of the prefix or suffix, and for
        tokens of the body. Kind 0 (text) is always trained on.
    """
    wanted = config.loss_on_metadata_types
    outside = np.zeros(256, np.bool_)
    outside[0] = True
    for kind, key in enumerate(config.metadata_list, start=1):
        outside[kind] = config.loss_on_metadata and (wanted is None or key in wanted)
    body = outside.copy()
    if config.treat_local_metadata_as_regular_text:
        body[:] = True
    return outside, body
