"""The counts of a stream: sums for the log that travel beside the tokens.

They are an array in the order of `count_names`, from the window to the micro-batch: all documents,
documents by metadata type, documents left out by reason, metadata left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bsmeta.data.stream.reasons import NOT_BAD, list_reasons

LEFT_OUT = "metadata_tokens_left_out"
"""Metadata tokens that did not fit into their row (`row_budget=text`)."""

WITH_METADATA = "documents_with_metadata"
"""Documents that got at least one metadata type."""

# Columns of the counts; see `count_names`.
_DOCUMENTS = 0
_WITH_METADATA = 1
_FIRST_TYPE = 2


def count_names(keys: Sequence[str]) -> list[str]:
    """Lists the names of the counts; the same in every batch of a run."""
    types = [f"documents/{key}" for key in keys]
    bad = [f"bad_documents/{reason}" for reason in list_reasons(keys)]
    return ["documents", WITH_METADATA, *types, *bad, *NOT_BAD, LEFT_OUT]


def count_documents(types: np.ndarray, opens: np.ndarray, keys: Sequence[str]) -> np.ndarray:
    """Computes each chunk's contribution to the counts: a document counts with its first chunk.

    Args:
        types: int32[chunks], metadata types of each chunk's document (bit i: keys[i]).
        opens: bool[chunks], whether the chunk is its document's first.

    Returns:
        float64[chunks, counts].
    """
    counts = np.zeros((len(types), len(count_names(keys))))
    counts[:, _DOCUMENTS] = opens
    counts[:, _WITH_METADATA] = opens & (types != 0)
    bits = np.arange(len(keys), dtype=np.int32)
    has_type = types[:, None] >> bits & 1
    counts[:, _FIRST_TYPE : _FIRST_TYPE + len(keys)] = has_type * opens[:, None]
    return counts


def count_skipped(skipped: Counter[str], keys: Sequence[str]) -> np.ndarray:
    """Returns the counts of skipped documents alone (float64[counts])."""
    by_reason = [float(skipped[reason]) for reason in (*list_reasons(keys), *NOT_BAD)]
    assert sum(by_reason) == skipped.total(), skipped
    metadata_tokens_left_out = 0.0
    return np.array([0.0] * (_FIRST_TYPE + len(keys)) + by_reason + [metadata_tokens_left_out])
