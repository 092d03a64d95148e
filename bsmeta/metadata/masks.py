"""Masks: positions in a text without its metadata, and which tokens contribute to the loss.

Last stage of the flow: `rendering` returns the spans of metadata in characters, and the document
encoder maps them to tokens.

Spans are int32 [m, 2] (start, end) of characters, sorted and disjoint, one row per inserted
string. Token types (`kinds`) are uint8: 0 is text, 1 + i the i-th type of `metadata_list`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bsmeta.config.metadata import MetadataConfig

Int32 = NDArray[np.int32]
Bools = NDArray[np.bool_]


def text_positions(positions: Int32, spans: Int32) -> Int32:
    """Map positions in the rendered body to positions in the text without its metadata.

    Args:
        positions: int32 [n], character positions in the body, which may include the body's end.
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
    """Which token types contribute to the loss.

    Args:
        config: `loss_on_metadata`, `loss_on_metadata_types` and
            `treat_local_metadata_as_regular_text` decide.

    Returns:
        Two bool [256] tables indexed by token type: for tokens of the prefix or suffix, and for
        tokens of the body. Token type 0 (text) is always trained on.
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
