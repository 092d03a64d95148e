"""Sums two scored readings of a text over identical bytes.

A text is tokenized differently with and without metadata (a tag splits a word, a space moves to
another token), and each reading leaves some tokens unscored (the first of a window, those that
share characters with metadata). The character positions at which *both* readings have a token
boundary split the text into segments; a segment counts if both readings score all of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BYTES, TOKENS, NATS_WITHOUT, NATS_WITH, TOKENS_WITH = range(5)
"""Columns of the sums: text bytes, tokens without, nats without and with metadata, tokens with."""

COLUMNS = 5

DOCUMENT, CONTEXT = range(2)
"""The two ways to bin segments: by byte offset in the document, or by bytes of preceding text in
the window (both count the same segments, so the bins of either add up to the total)."""


@dataclass(slots=True)
class Reading:
    """The tokens of one text in one arm, in any order; every character is in at most one.

    Attributes:
        starts: int32 [n], first character of each token in the original text.
        ends: int32 [n], character after its last (greater than `starts`).
        nats: float64 [n], -ln p of each token; NaN if it is not scored.
        shown_from: int32 [n], first character of the text in the token's window.
    """

    starts: np.ndarray
    ends: np.ndarray
    nats: np.ndarray
    shown_from: np.ndarray


def utf8_lengths(text: str) -> np.ndarray:
    """UTF-8 length of each character in bytes: int64 [len(text)]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    wide = (points > 0x7F).astype(np.int64)
    return 1 + wide + (points > 0x7FF) + (points > 0xFFFF)


def paired_sums(
    without: Reading, with_metadata: Reading, text: str, edges: np.ndarray
) -> np.ndarray:
    """Sum both readings over the segments that count, by position in the document and by context.

    Args:
        edges: int [bins], byte positions at which the position bins begin; the first is 0.

    Returns:
        float64 [2, bins, COLUMNS]: the columns of each bin, by DOCUMENT and by CONTEXT (in the
        reading without metadata); a segment belongs to the bin in which it begins.
    """
    sums = np.zeros((2, len(edges), COLUMNS))
    if not text:
        return sums
    lengths = utf8_lengths(text)
    segment = _segment_of_characters(without, with_metadata, len(text))
    count = int(segment[-1]) + 1
    bad = np.bincount(segment, _unscored(without, len(text)), minlength=count)
    bad += np.bincount(segment, _unscored(with_metadata, len(text)), minlength=count)
    first = np.flatnonzero(np.diff(segment, prepend=-1))  # first character of each segment
    offsets = np.cumsum(lengths) - lengths
    shown_from = np.zeros(len(text), dtype=np.int64)
    shown_from[without.starts] = without.shown_from
    position = offsets[first]
    context = position - offsets[shown_from[first]]
    good = bad == 0
    columns = {
        BYTES: np.bincount(segment, lengths, minlength=count),
        TOKENS: np.bincount(segment[without.starts], minlength=count).astype(np.float64),
        NATS_WITHOUT: _nats_of_segments(without, segment, count),
        NATS_WITH: _nats_of_segments(with_metadata, segment, count),
        TOKENS_WITH: np.bincount(segment[with_metadata.starts], minlength=count).astype(np.float64),
    }
    for axis, place in ((DOCUMENT, position), (CONTEXT, context)):
        bins = np.searchsorted(edges, place[good], side="right") - 1
        for column, values in columns.items():
            sums[axis, :, column] = np.bincount(bins, values[good], minlength=len(edges))
    return sums


def _segment_of_characters(first: Reading, second: Reading, size: int) -> np.ndarray:
    """Index of the segment that each character belongs to: int64 [size]."""
    crossing = np.zeros(size + 2, dtype=np.int64)
    for reading in (first, second):  # tokens that extend across each position
        crossing += np.bincount(reading.starts + 1, minlength=size + 2)
        crossing -= np.bincount(reading.ends, minlength=size + 2)
    is_boundary = np.cumsum(crossing)[:size] == 0
    return np.cumsum(is_boundary) - 1


def _unscored(reading: Reading, size: int) -> np.ndarray:
    """1.0 for each character that is in no token or in an unscored token: float64 [size]."""
    covered = _coverage(reading.starts, reading.ends, size)
    missing = np.isnan(reading.nats)
    unscored = _coverage(reading.starts[missing], reading.ends[missing], size)
    return ((covered == 0) | (unscored > 0)).astype(np.float64)


def _coverage(starts: np.ndarray, ends: np.ndarray, size: int) -> np.ndarray:
    """Number of spans that contain each character: int64 [size]."""
    steps = np.bincount(starts, minlength=size + 1) - np.bincount(ends, minlength=size + 1)
    return np.cumsum(steps)[:size]


def _nats_of_segments(reading: Reading, segment: np.ndarray, count: int) -> np.ndarray:
    nats = np.nan_to_num(reading.nats, nan=0.0)
    return np.bincount(segment[reading.starts], nats, minlength=count)
