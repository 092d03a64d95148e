"""The counts of a stream: sums for the log, such as documents and left-out documents.

From the window to the micro-batch, they accompany the tokens as an array in the order of
`list_count_names`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bsmeta.data.stream.reasons import GOOD_DOCUMENT_REASONS, list_reasons

METADATA_LEFT_OUT = "metadata_tokens_left_out"
"""Metadata tokens that did not fit into their row (`row_budget=text`)."""

WITH_METADATA = "documents_with_metadata"
"""Documents that were rendered with at least one metadata type."""

# Columns of the counts; see `list_count_names`.
_DOCUMENTS = 0
_WITH_METADATA = 1
_FIRST_TYPE = 2


def list_count_names(keys: Sequence[str]) -> list[str]:
    """Returns the names of the counts, in their order.

    These are all documents, documents by metadata type, left-out documents by reason, and left-out
    metadata tokens.

    Args:
        keys: The metadata types of the run.
    """
    types = [f"documents/{key}" for key in keys]
    bad = [f"bad_documents/{reason}" for reason in list_reasons(keys)]
    return ["documents", WITH_METADATA, *types, *bad, *GOOD_DOCUMENT_REASONS, METADATA_LEFT_OUT]


def count_documents(types: np.ndarray, is_first: np.ndarray, keys: Sequence[str]) -> np.ndarray:
    """Computes the contribution of each chunk to the counts: a document counts in its first chunk.

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
    """Returns the contribution of skipped documents to the counts (float64[counts]).

    Args:
        skipped: Number of skipped documents, by reason.
        keys: The metadata types of the run.
    """
    reasons = [*list_reasons(keys), *GOOD_DOCUMENT_REASONS]
    by_reason = [float(skipped[reason]) for reason in reasons]
    assert sum(by_reason) == skipped.total(), skipped
    used_documents = [0.0] * (_FIRST_TYPE + len(keys))
    metadata_left_out = [0.0]
    return np.array(used_documents + by_reason + metadata_left_out)
