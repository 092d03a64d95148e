"""Defines which texts are the same: those that differ in white space at most.

Tools change line ends, indents and double spaces, and strip texts; a copy made by one is still a
copy.
"""

from __future__ import annotations

import xxhash


def hash_text(text: str) -> int:
    """Returns a hash of a text that ignores differences in white space (xxh3, 64 bits)."""
    return xxhash.xxh3_64_intdigest(" ".join(text.split()).encode())
