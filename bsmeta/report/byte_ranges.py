"""Names of the parts of a document between byte offsets, for tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def name_byte_ranges(edges: Sequence[int]) -> list[str]:
    """Names each part by its first and last byte; the last part has no end.

    Args:
        edges: The first byte of each part, ascending.
    """
    if not edges:
        return []

    bounded_names = [f"{first:,}–{following - 1:,}" for first, following in pairwise(edges)]
    return [*bounded_names, f"{edges[-1]:,} and on"]
