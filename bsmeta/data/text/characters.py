"""Computes lengths and counts per character, from which evaluations sum losses and lost text."""

from __future__ import annotations

import numpy as np


def measure_utf8_lengths(text: str) -> np.ndarray:
    """Computes the number of UTF-8 bytes of each character: int64 [len(text)]."""
    code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    is_multibyte = (code_points > 0x7F).astype(np.int64)
    return 1 + is_multibyte + (code_points > 0x7FF) + (code_points > 0xFFFF)


def count_coverage(starts: np.ndarray, ends: np.ndarray, size: int) -> np.ndarray:
    """Counts the spans that contain each of the first `size` characters: int64 [size].

    Args:
        starts: int [spans].
        ends: int [spans], exclusive.
    """
    changes = np.bincount(starts, minlength=size + 1) - np.bincount(ends, minlength=size + 1)
    return np.cumsum(changes)[:size]
