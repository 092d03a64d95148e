"""Readings, the scored tokens of a text in one arm, and sums of two readings over the same bytes.

A text is tokenized differently with and without metadata (a tag splits a word, a space moves to
another token), and each reading leaves some tokens unscored (the first of a window, and tokens that
share characters with metadata). The character positions at which *both* readings have a token
boundary split the text into segments; a segment counts if both readings score all of its tokens.
Both readings are therefore summed over identical bytes. A segment with characters that the
tokenizer loses is left out, and its bytes are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bsmeta.data.text.characters import count_coverage, measure_utf8_lengths
from bsmeta.tasks.causal_lm.evaluation.windows import Window

BYTES, TOKENS, NATS_WITHOUT, NATS_WITH, TOKENS_WITH = range(5)
"""Columns of the sums: text bytes, tokens without, nats without and with metadata, tokens with."""

COLUMNS = 5

DOCUMENT, CONTEXT = range(2)
"""The two ways to bin segments: by byte offset in the document, or by bytes of preceding text in
the window. Both count the same segments, so the bins of either add up to the total."""


@dataclass(slots=True)
class Reading:
    """The tokens of one text in one arm, in any order; every character is in at most one token.

    Attributes:
        starts: int32 [n], first character of each token in the original text.
        ends: int32 [n], character after its last (greater than `starts`).
        nats: float64 [n], -ln p of each token; NaN if it is not scored.
        shown_from: int32 [n], first character of the text in the token's window.
        lost: bool [characters], characters that decoding the tokens does not restore; None: none.
    """

    starts: np.ndarray
    ends: np.ndarray
    nats: np.ndarray
    shown_from: np.ndarray
    lost: np.ndarray | None = None


def make_reading(
    windows: list[Window], scores: list[np.ndarray], lost: np.ndarray | None
) -> Reading:
    """Collects the text tokens of a document with their nats.

    Args:
        windows: All windows of the document in one arm.
        scores: For each window, the log-probabilities of its scored tokens, float64.
        lost: The lost characters of the document (`EncodedDocument.lost`).
    """
    # Each list begins with an empty array, for documents without windows.
    starts = [np.zeros(0, np.int32)]
    ends = [np.zeros(0, np.int32)]
    nats = [np.zeros(0)]
    shown_from = [np.zeros(0, np.int32)]

    for window, log_probabilities in zip(windows, scores, strict=True):
        window_nats = np.full(len(window.ids), np.nan)
        window_nats[window.scored] = -log_probabilities

        holds_text = window.ends > window.starts
        first_character = int(window.starts[np.argmax(holds_text)]) if holds_text.any() else 0

        is_new_text = holds_text.copy()
        is_new_text[: window.first_new] = False
        starts.append(window.starts[is_new_text])
        ends.append(window.ends[is_new_text])
        nats.append(window_nats[is_new_text])
        shown_from.append(np.full(int(is_new_text.sum()), first_character, np.int32))

    return Reading(
        starts=np.concatenate(starts),
        ends=np.concatenate(ends),
        nats=np.concatenate(nats),
        shown_from=np.concatenate(shown_from),
        lost=lost,
    )


def sum_paired(
    text_reading: Reading, metadata_reading: Reading, text: str, edges: np.ndarray
) -> np.ndarray:
    """Sums both readings over the counted segments, by position in the document and by context.

    Args:
        text_reading: The reading without metadata.
        metadata_reading: The reading with metadata.
        edges: int [bins], byte positions at which the position bins begin; the first is 0.

    Returns:
        float64 [2, bins, COLUMNS]: the columns of each bin, by DOCUMENT and by CONTEXT (in the
        reading without metadata); a segment belongs to the bin in which it begins.
    """
    sums = np.zeros((2, len(edges), COLUMNS))
    if not text:
        return sums

    lengths = measure_utf8_lengths(text)
    readings = (text_reading, metadata_reading)
    segments = _number_segments(readings, len(text))
    num_segments = int(segments[-1]) + 1
    is_counted = _find_counted_segments(readings, segments, num_segments)

    def sum_by_segment(numbers: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(numbers, values, minlength=num_segments)

    token_segments = segments[text_reading.starts]
    token_segments_with = segments[metadata_reading.starts]
    columns = {
        BYTES: sum_by_segment(segments, lengths),
        TOKENS: sum_by_segment(token_segments),
        NATS_WITHOUT: sum_by_segment(token_segments, np.nan_to_num(text_reading.nats)),
        NATS_WITH: sum_by_segment(token_segments_with, np.nan_to_num(metadata_reading.nats)),
        TOKENS_WITH: sum_by_segment(token_segments_with),
    }
    for axis, positions in _locate_segments(text_reading, segments, lengths).items():
        bins = np.searchsorted(edges, positions[is_counted], side="right") - 1
        for column, values in columns.items():
            sums[axis, :, column] = np.bincount(bins, values[is_counted], minlength=len(edges))
    return sums


def _find_counted_segments(
    readings: Sequence[Reading], segments: np.ndarray, num_segments: int
) -> np.ndarray:
    """Finds the segments in which both readings score every character and lose none.

    Args:
        segments: The segment of each character (`_number_segments`).

    Returns:
        bool [segments].
    """
    is_counted = np.ones(num_segments, bool)
    for reading in readings:
        is_missing = _mark_unscored(reading, len(segments))
        if reading.lost is not None:
            is_missing = is_missing | reading.lost
        is_counted &= np.bincount(segments, is_missing, minlength=num_segments) == 0
    return is_counted


def _locate_segments(
    text_reading: Reading, segments: np.ndarray, lengths: np.ndarray
) -> dict[int, np.ndarray]:
    """Returns the byte offset of each segment in the DOCUMENT, and in its window's text (CONTEXT).

    Args:
        segments: The segment of each character (`_number_segments`).
        lengths: Bytes of each character.
    """
    first_characters = np.flatnonzero(np.diff(segments, prepend=-1))
    offsets = np.cumsum(lengths) - lengths
    shown_from = np.zeros(len(lengths), dtype=np.int64)
    shown_from[text_reading.starts] = text_reading.shown_from
    positions = offsets[first_characters]
    return {DOCUMENT: positions, CONTEXT: positions - offsets[shown_from[first_characters]]}


def count_lost_bytes(text_reading: Reading, metadata_reading: Reading, text: str) -> int:
    """Counts the bytes that `sum_paired` leaves out because a reading loses text."""
    readings = (text_reading, metadata_reading)
    losses = [reading.lost for reading in readings if reading.lost is not None]
    if not losses:
        return 0

    segments = _number_segments(readings, len(text))
    is_left_out = np.bincount(segments, np.logical_or.reduce(losses)) > 0
    return int(measure_utf8_lengths(text)[is_left_out[segments]].sum())


def _number_segments(readings: Sequence[Reading], size: int) -> np.ndarray:
    """Returns the index of each character's segment: int64 [size].

    A segment begins at each character that no token extends into.
    """
    inside = sum(count_coverage(reading.starts + 1, reading.ends, size) for reading in readings)
    return np.cumsum(inside == 0) - 1


def _mark_unscored(reading: Reading, size: int) -> np.ndarray:
    """Marks the characters that are in no token or in an unscored one: bool [size]."""
    is_unscored = np.isnan(reading.nats)
    num_tokens = count_coverage(reading.starts, reading.ends, size)
    num_unscored = count_coverage(reading.starts[is_unscored], reading.ends[is_unscored], size)
    return (num_tokens == 0) | (num_unscored > 0)
