"""The counts of a stream: sums for the log that accompany the tokens.

From the window to the micro-batch, they are an array in the order of `list_count_names`: all
documents, documents by metadata type, documents left out by reason, metadata left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bsmeta.data.stream.reasons import NOT_BAD, list_reasons

LEFT_OUT = "metadata_tokens_left_out"
"""Metadata tokens that did not fit into their row (`row_budget=text`)."""

WITH_METADATA = "documents_with_metadata"
"""Documents that were given at least one metadata type."""

# Columns of the counts; see `list_count_names`.
_DOCUMENTS = 0
_WITH_METADATA = 1
_FIRST_TYPE = 2


def list_count_names(keys: Sequence[str]) -> list[str]:
    """Returns the names of the counts, which are the same in every batch of a run."""
    types = [f"documents/{key}" for key in keys]
    bad = [f"bad_documents/{reason}" for reason in list_reasons(keys)]
    return ["documents", WITH_METADATA, *types, *bad, *NOT_BAD, LEFT_OUT]


def count_documents(types: np.ndarray, is_first: np.ndarray, keys: Sequence[str]) -> np.ndarray:
    """Computes each chunk's contribution to the counts: a document counts with its first chunk.

    Args:
        types: int32[chunks], metadata types of each chunk's document (bit i: keys[i]).
        is_first: bool[chunks], whether the chunk is its document's first.

    Returns:
        float64[chunks, counts].
    """
    counts = np.zeros((len(types), len(list_count_names(keys))))
    counts[:, _DOCUMENTS] = is_first
    counts[:, _WITH_METADATA] = is_first & (types != 0)
    bits = np.arange(len(keys), dtype=np.int32)
    has_type = types[:, None] >> bits & 1
    counts[:, _FIRST_TYPE : _FIRST_TYPE + len(keys)] = has_type * is_first[:, None]
    return counts


def count_skipped(skipped: Counter[str], keys: Sequence[str]) -> np.ndarray:
    """Returns the counts that skipped documents add (float64[counts])."""
    by_reason = [float(skipped[reason]) for reason in (*list_reasons(keys), *NOT_BAD)]
    assert sum(by_reason) == skipped.total(), skipped
    metadata_tokens_left_out = 0.0
    return np.array([0.0] * (_FIRST_TYPE + len(keys)) + by_reason + [metadata_tokens_left_out])
