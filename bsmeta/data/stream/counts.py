"""Sums that travel with the sequences to the log: documents by type, documents skipped by reason.

They are an array, in the order of `count_names`, from the window to the micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bsmeta.data.stream.bad_documents import REASONS

TEST_OVERLAP = "test_overlap"
"""Training documents dropped because they are held out."""

EMPTY_TEXT = "empty_text"
"""Documents without text: pages may be empty, which is not an error in the data."""

HALF_USED = "half_used_at_phase_switch"
"""Documents whose unused rest was dropped when the metadata schedule switched phases."""

NOT_BAD = (TEST_OVERLAP, EMPTY_TEXT, HALF_USED)
"""Reasons why good documents, or parts of them, are left out."""

WITH_METADATA = "documents_with_metadata"
"""Documents that got at least one metadata type."""


def count_names(keys: Sequence[str]) -> list[str]:
    """Names of the counts; the same in every batch of a run.

    Args:
        keys: `metadata_list`.
    """
    types = [f"documents/{key}" for key in keys]
    bad = [f"bad_documents/{reason}" for reason in REASONS]
    return ["documents", WITH_METADATA, *types, *bad, *NOT_BAD]


SOURCE_COUNTS = ("source_sequences", "source_tokens", "source_epochs")
"""What is counted for each source of a mixture; epochs on average over its streams."""


def source_count_names(sources: Sequence[str]) -> list[str]:
    """Names of the counts of a mixture, which follow those of `count_names`."""
    return [f"{what}/{name}" for name in sources for what in SOURCE_COUNTS]


def source_counts(source: int, sources: int, tokens: int, epochs: float) -> np.ndarray:
    """What a sequence adds to the counts of a mixture (float64).

    Args:
        source: Index of its source.
        sources: Number of sources.
        tokens: Its tokens.
        epochs: The share of the source's documents whose next epoch begins with it.
    """
    counts = np.zeros((sources, len(SOURCE_COUNTS)))
    counts[source] = 1.0, tokens, epochs
    return counts.reshape(-1)


def document_counts(types: np.ndarray, opens: np.ndarray, keys: Sequence[str]) -> np.ndarray:
    """What each chunk adds to the counts: a document is counted with its first chunk.

    Args:
        types: int32[chunks], metadata types of each chunk's document (bit i: keys[i]).
        opens: bool[chunks], whether the chunk is its document's first.
        keys: `metadata_list`.

    Returns:
        float64[chunks, counts].
    """
    counts = np.zeros((len(types), len(count_names(keys))))
    bits = np.arange(len(keys), dtype=np.int32)
    counts[:, 0] = opens
    counts[:, 1] = opens & (types != 0)
    counts[:, 2 : 2 + len(keys)] = (types[:, None] >> bits & 1) * opens[:, None]
    return counts


def skipped_counts(skipped: Counter[str], keys: Sequence[str]) -> np.ndarray:
    """The counts of skipped documents alone (float64[counts])."""
    reasons = [float(skipped[reason]) for reason in (*REASONS, *NOT_BAD)]
    return np.array([0.0] * (2 + len(keys)) + reasons)
