"""Inserts the strings of local records into a text.

A local record inserts an opening string at the start of its span and a closing string at its end
(`processors` renders them). Strings at the same position are ordered as in the BigScience
`metadata` repository:

1. closing strings of spans with content,
2. empty spans, and every string of a type with relative positions,
3. opening strings of spans with content.

Closing strings are ordered by type as in `metadata_list` and opening strings in reverse, so that
the first type is the innermost. Within a type with relative positions, these alone decide the
order; within any other type, a span that ends earlier is nested deeper.

That code cannot render ties between relative positions. Here nesting breaks them: closing, empty,
opening; the outer of two spans opens first and closes last, and of two equal spans the earlier
record is the outer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bsmeta.metadata.records import BadDocument, Record

Int64 = NDArray[np.int64]

_MAX_TOKEN_TYPES = 256

_PACKED_RELATIVE_LIMIT = 1 << 24
"""Relative positions below this fit into one sort key with the position; others are sorted by
several keys."""

# The zones of a position, in the order of their strings in the text.
_CLOSING = 0
_EMPTY_OPENING = 1
_EMPTY_CLOSING = 2
_OPENING = 3
_NUM_ZONES = 4


@dataclass(frozen=True, slots=True)
class LocalTags:
    """The strings that a type's local records insert, one row per record, in the original order.

    Attributes:
        token_type: 1 + the type's index in `metadata_list`.
        spans: Starts and ends in characters of the text: int64 [n, 2].
        relative: Relative start and end positions: int64 [n, 2]; None unless all records have them.
        openings: The string to insert at the start of each span; may be empty.
        closings: The string to insert at the end of each span; may be empty.
    """

    token_type: int
    spans: Int64
    relative: Int64 | None
    openings: Sequence[str]
    closings: Sequence[str]


@dataclass(frozen=True, slots=True)
class Insertions:
    """Strings to insert into a text, in their order.

    Attributes:
        positions: Number of text characters before each string: int64 [m], non-decreasing.
        token_types: The token type of each string: uint8 [m].
        strings: The strings: object [m], none of them empty.
        is_wrapper: Whether a string comes from the configuration instead of a record: bool [m];
            None if no string does.
    """

    positions: Int64
    token_types: NDArray[np.uint8]
    strings: NDArray[np.object_]
    is_wrapper: NDArray[np.bool_] | None = None


def read_spans(key: str, records: Sequence[Record], text_length: int) -> Int64:
    """Returns the spans of local records, in characters: int64 [n, 2].

    Args:
        key: The type of the records, for messages.
        text_length: Number of characters in the text.

    Raises:
        BadDocument: `missing_position`, `negative_position`, `end_before_start` or
            `position_beyond_text`.
    """
    try:
        starts = np.array([record.char_start_idx for record in records], np.int64)
        ends = np.array([record.char_end_idx for record in records], np.int64)
    except (TypeError, OverflowError):  # None, or too large for an array
        raise _make_bad_span_error(key, records, text_length) from None
    if starts.min() < 0 or ends.max() > text_length or (ends < starts).any():
        raise _make_bad_span_error(key, records, text_length)
    return _stack_columns(starts, ends)


def _stack_columns(starts: Int64, ends: Int64) -> Int64:
    """Stacks two arrays [n] into one [n, 2]; with few records, np.stack would take most time."""
    spans = np.empty((len(starts), 2), np.int64)
    spans[:, 0] = starts
    spans[:, 1] = ends
    return spans


def _make_bad_span_error(key: str, records: Sequence[Record], text_length: int) -> BadDocument:
    """Returns the error for the first record with an invalid span, which must exist."""
    for row, record in enumerate(records):
        start = record.char_start_idx
        end = record.char_end_idx
        if start is None or end is None:
            reason = "missing_position"
        elif min(start, end) < 0:
            reason = "negative_position"
        elif end < start:
            reason = "end_before_start"
        elif end > text_length:
            reason = "position_beyond_text"
        else:
            continue

        detail = f"{key} record {row} spans {start}..{end} in a text of {text_length} characters"
        return BadDocument(reason, detail)
    raise AssertionError("every span is valid")


def read_relative_positions(key: str, records: Sequence[Record]) -> Int64 | None:
    """Returns the relative positions of local records: int64 [n, 2]; None if any record lacks them.

    Args:
        key: The type of the records, for messages.

    Raises:
        BadDocument: `relative_position_too_large`, if one does not fit into 64 bits.
    """
    starts = [record.relative_start_pos for record in records]
    ends = [record.relative_end_pos for record in records]
    if None in starts or None in ends:
        return None
    try:
        return np.array((starts, ends), np.int64).T
    except OverflowError as error:
        raise BadDocument("relative_position_too_large", f"{key}: {error}") from error


def arrange_insertions(tags: Sequence[LocalTags]) -> Insertions:
    """Sorts the strings of all types into the order in which they appear in the text."""
    all_strings: list[str] = []
    for tag in tags:
        all_strings += tag.openings
        all_strings += tag.closings
    strings = np.array(all_strings, np.object_)
    positions = np.concatenate([tag.spans.T.reshape(-1) for tag in tags])
    token_types = np.concatenate(
        [np.full(2 * len(tag.spans), tag.token_type, np.uint8) for tag in tags]
    )

    order = _order_by_position(positions, tags)
    if order is None:
        keys = np.concatenate([_compute_sort_keys(tag) for tag in tags], axis=1)
        keys[-1] += positions * (_NUM_ZONES * 2 * _MAX_TOKEN_TYPES)
        order = np.lexsort(keys)

    has_empty_strings = not all(all_strings)
    if has_empty_strings:
        order = order[strings[order] != ""]
    return Insertions(positions[order], token_types[order], strings[order])


def _order_by_position(positions: Int64, tags: Sequence[LocalTags]) -> Int64 | None:
    """Sorts the strings of a single type by position, then by relative position.

    This is the usual case of html, and takes a third of the time of sorting by all keys.

    Returns:
        The indices of the strings in order: int64 [2n]; None if there are several types, if the
        type has no suitable relative positions, or if two strings have the same.
    """
    relative = tags[0].relative
    if len(tags) > 1 or relative is None or not len(relative):
        return None
    if relative.min() < 0 or relative.max() >= _PACKED_RELATIVE_LIMIT:
        return None

    keys = positions * _PACKED_RELATIVE_LIMIT + relative.T.reshape(-1)
    order = np.argsort(keys)
    keys = keys[order]
    has_ties = (keys[1:] == keys[:-1]).any()
    return None if has_ties else order


def _compute_sort_keys(tag: LocalTags) -> Int64:
    """Computes the sort keys of a type's openings, then of its closings: int64 [4, 2n].

    The rows are, from the least to the most significant key: record order, nesting, relative
    position, and zone with type, to which the caller adds the position.
    """
    count = len(tag.spans)
    starts, ends = tag.spans.T
    has_content = starts < ends
    rows = np.arange(count)
    keys = np.zeros((4, 2, count), np.int64)
    record_order, nesting, relative_position, zone_and_type = keys  # views: [2, n] each

    if tag.relative is None:
        zones = np.where(
            has_content, [[_OPENING], [_CLOSING]], [[_EMPTY_OPENING], [_EMPTY_CLOSING]]
        )
        record_order[:] = -rows, rows
        nesting[0] = -ends
    else:
        zones = np.full((2, count), _EMPTY_OPENING)
        record_order[:] = np.where(has_content, (rows, -rows), [[0], [1]])
        # At the same position and relative position: closing, empty, opening. Of two openings, the
        # span that ends later is outside, so it comes first; of two closings, the span that began
        # later is inside, so it comes first.
        beyond = np.int64(1) << 40  # larger than any position and any number of records
        nesting[:] = np.where(has_content, (beyond - ends, -beyond - starts), rows)
        relative_position[:] = tag.relative.T

    # The first type is the innermost: closings are in the order of types, openings in reverse.
    is_closing = (zones == _CLOSING) | (zones == _EMPTY_CLOSING)
    type_order = np.where(is_closing, tag.token_type, _MAX_TOKEN_TYPES - tag.token_type)
    zone_and_type[:] = zones * (2 * _MAX_TOKEN_TYPES) + type_order
    return keys.reshape(4, -1)


def wrap_runs(
    insertions: Insertions, before: Mapping[int, str], after: Mapping[int, str]
) -> Insertions:
    """Inserts special tokens around each run: consecutive strings of one type at one position.

    Args:
        before: The special token to insert before a run, by token type.
        after: The special token to insert after a run, by token type.
    """
    positions = insertions.positions
    token_types = insertions.token_types
    if not len(token_types) or not (before or after):
        return insertions

    is_new_run = np.ones(len(token_types) + 1, np.bool_)
    is_new_run[1:-1] = (positions[1:] != positions[:-1]) | (token_types[1:] != token_types[:-1])

    has_before = np.zeros(_MAX_TOKEN_TYPES, np.bool_)
    has_before[list(before)] = True
    has_after = np.zeros(_MAX_TOKEN_TYPES, np.bool_)
    has_after[list(after)] = True
    gets_before = is_new_run[:-1] & has_before[token_types]
    gets_after = is_new_run[1:] & has_after[token_types]

    # Each string is repeated to make room for its wrappers, which replace the copies.
    num_copies = 1 + gets_before + gets_after
    strings = insertions.strings.repeat(num_copies)
    ends = num_copies.cumsum()  # of the copies of each string
    before_rows = (ends - num_copies)[gets_before]
    after_rows = ends[gets_after] - 1
    strings[before_rows] = [before[token_type] for token_type in token_types[gets_before].tolist()]
    strings[after_rows] = [after[token_type] for token_type in token_types[gets_after].tolist()]

    is_wrapper = np.zeros(len(strings), np.bool_)
    is_wrapper[before_rows] = True
    is_wrapper[after_rows] = True
    return Insertions(
        positions.repeat(num_copies), token_types.repeat(num_copies), strings, is_wrapper
    )


def insert_strings(text: str, insertions: Insertions) -> tuple[str, NDArray[np.int32]]:
    """Inserts strings into a text.

    Returns:
        The resulting text, and the span of each string in it (int32 [m, 2]).
    """
    strings = insertions.strings.tolist()
    positions = insertions.positions
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    ends = positions + lengths.cumsum()

    follows_text = np.ones(len(strings), np.bool_)
    follows_text[:1] = positions[:1] != 0
    follows_text[1:] = positions[1:] != positions[:-1]
    rows = np.flatnonzero(follows_text)

    # The text between two positions is put before the first string at the second position.
    chunks = strings.copy()
    begin = 0
    for row, end in zip(rows.tolist(), positions[rows].tolist(), strict=True):
        chunks[row] = text[begin:end] + strings[row]
        begin = end
    chunks.append(text[begin:])
    return "".join(chunks), _stack_columns(ends - lengths, ends).astype(np.int32)
