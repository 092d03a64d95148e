"""Restricts the text and records of a page to its content.

A shard of `annotate.py` has the whole text of each page. Its column `content_spans` has the spans
that each extractor classifies as the page's content. The spans to train on (`data_config.content`)
are chosen when a line is decoded, and text and records are restricted to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bsmeta.config.data import EXTRACTORS
from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.metadata.annotated_columns import CONTENT_SPANS, Spans, decode_content_spans
from bsmeta.metadata.processors import find_type
from bsmeta.metadata.records import UNREADABLE, BadDocument, Line, PartialLine, Record
from bsmeta.metadata.spans import Int64, read_relative_positions, read_spans

WHOLE_TEXT = "all"
"""The `data_config.content` that keeps the whole text of a page."""


class _Line(msgspec.Struct, gc=False):
    """The only column of a line that is decoded here."""

    content_spans: msgspec.Raw = msgspec.Raw(b"null")


_LINE_DECODER = ForeignDecoder(_Line)


def read_content_spans(line: Line, content: str) -> Spans:
    """Returns the spans of a line's text to train on; an empty list if the extractor failed.

    Args:
        content: An extractor, `union` or `intersection` (the value of `data_config.content`).

    Raises:
        BadDocument: `no_content_spans` if the extractor was not run; `wrong_type` or `not_json`.
    """
    try:
        text = line.text if isinstance(line, PartialLine) else line
        value = _LINE_DECODER.decode(text).content_spans
    except UNREADABLE as error:
        raise BadDocument("wrong_type", f"{CONTENT_SPANS}: {error}") from error

    spans_by_extractor = decode_content_spans(value) or {}
    extractors = (content,) if content in EXTRACTORS else EXTRACTORS
    missing = [name for name in extractors if name not in spans_by_extractor]
    if missing:
        raise BadDocument(
            "no_content_spans",
            f"the row has no {CONTENT_SPANS} of {' and '.join(missing)}, which data_config.content="
            f"{content} needs: annotate its page with annotators=[…, content]",
        )

    span_lists = [spans_by_extractor[name] or [] for name in extractors]
    if len(span_lists) == 1:
        return span_lists[0]
    return _combine_spans(span_lists, min_lists=1 if content == "union" else len(span_lists))


def _combine_spans(span_lists: Sequence[Spans], min_lists: int) -> Spans:
    """Returns the spans that at least `min_lists` of several lists cover.

    Args:
        span_lists: The spans of each extractor; disjoint within a list.
    """
    edges: list[tuple[int, int]] = []  # (position, 1) for a start, (position, -1) for an end
    for spans in span_lists:
        for start, end in spans:
            edges += (start, 1), (end, -1)
    edges.sort()

    combined: Spans = []
    num_covering = 0  # spans that cover the current position
    begin = 0
    for position, change in edges:
        was_covered = num_covering >= min_lists
        num_covering += change
        is_covered = num_covering >= min_lists

        if is_covered and not was_covered:
            begin = position
        elif was_covered and not is_covered and begin < position:
            combined.append((begin, position))
    return combined


class KeptText:
    """The kept spans of an original text, joined into a new text.

    Where the original text has a line break between two spans, a line break joins them; where it
    has other white space, a space; elsewhere they are joined directly.

    Args:
        text: The original text.
        spans: The spans to keep.

    Attributes:
        text: The new text.

    Raises:
        BadDocument: `bad_content_spans` if the spans are out of order, overlap, or are out of
            bounds.
    """

    def __init__(self, text: str, spans: Spans) -> None:
        self._length = len(text)
        chunks: list[str] = []
        rows: list[tuple[int, int, int]] = []  # start, end, and start in the new text
        new_length = 0
        previous_end = 0
        for start, end in spans:
            if not previous_end <= start <= end <= len(text):
                detail = f"{start}..{end} after {previous_end}, in a text of {len(text)} characters"
                raise BadDocument("bad_content_spans", detail)
            if start == end:
                continue

            if rows:
                separator = _choose_separator(text[previous_end:start])
                chunks.append(separator)
                new_length += len(separator)
            chunks.append(text[start:end])
            rows.append((start, end, new_length))
            new_length += end - start
            previous_end = end

        self.text = "".join(chunks)
        self._starts, self._ends, self._new_starts = np.array(rows, np.int64).reshape(-1, 3).T

    def clip(self, key: str, records: Sequence[Record]) -> list[Record]:
        """Translates the spans of records into offsets in the kept text; drops records outside it.

        Tags at the same position keep their order.

        Args:
            key: The type of the records.

        Returns:
            Copies of the records.

        Raises:
            BadDocument: If a span is out of bounds in the original text.
        """
        records = [msgspec.structs.replace(record) for record in records]  # types may share them
        local_records = [record for record in records if record.is_local()]
        clipped = [record for record in records if not record.is_local()]
        if local_records:
            clipped += self._clip_local(key, local_records)

        if find_type(key).measures_text:
            for record in clipped:
                start = record.char_start_idx
                end = record.char_end_idx
                length = len(self.text) if start is None or end is None else end - start
                record.value = str(length) if isinstance(record.value, str) else length
        return clipped

    def _clip_local(self, key: str, records: Sequence[Record]) -> list[Record]:
        """Changes the spans of local records in place, and returns the kept records."""
        spans = read_spans(key, records, self._length)
        new_spans, is_kept = self._translate_spans(spans)
        kept_records = [records[row] for row in np.flatnonzero(is_kept).tolist()]
        for record, (start, end) in zip(kept_records, new_spans[is_kept].tolist(), strict=True):
            record.char_start_idx = start
            record.char_end_idx = end

        relative = read_relative_positions(key, records)
        if relative is not None:
            ranks = _rank_positions(spans[is_kept], relative[is_kept], new_spans[is_kept])
            for record, (start, end) in zip(kept_records, ranks.tolist(), strict=True):
                record.relative_start_pos = start
                record.relative_end_pos = end
        return kept_records

    def _translate_spans(self, spans: Int64) -> tuple[Int64, NDArray[np.bool_]]:
        """Translates spans of the original text into spans of the kept text.

        Returns:
            The new spans (int64 [n, 2]), and whether each overlaps the kept text (bool [n]).
        """
        new_spans = np.zeros_like(spans)
        if not len(self._starts):
            return new_spans, np.zeros(len(spans), np.bool_)

        starts, ends = spans.T
        first, last, is_kept = self._find_kept_spans(starts, ends)

        offsets_in_first = np.maximum(starts - self._starts[first], 0)
        offsets_in_last = np.minimum(ends, self._ends[last]) - self._starts[last]
        new_spans[:, 0] = self._new_starts[first] + offsets_in_first
        new_spans[:, 1] = self._new_starts[last] + offsets_in_last
        return new_spans, is_kept

    def _find_kept_spans(
        self, starts: Int64, ends: Int64
    ) -> tuple[Int64, Int64, NDArray[np.bool_]]:
        """Finds the kept spans that each span of the original text overlaps.

        An empty span overlaps a kept span that contains its position or ends there.

        Returns:
            The index of the first and of the last kept span that each overlaps (int64 [n], 0 if it
            overlaps none), and whether it overlaps any (bool [n]).
        """
        is_empty = starts == ends
        num_ended = np.searchsorted(self._ends, starts, "right")
        num_ended_before = np.searchsorted(self._ends, starts, "left")
        num_begun = np.searchsorted(self._starts, ends, "left")
        first = np.where(is_empty, num_ended_before, num_ended)
        last = np.where(is_empty, first, num_begun - 1)

        is_kept = (first < len(self._starts)) & (last >= 0) & (first <= last)
        first = np.where(is_kept, first, 0)
        last = np.where(is_kept, last, 0)
        is_kept &= ~is_empty | (self._starts[first] <= starts)
        return first, last, is_kept


def _choose_separator(between: str) -> str:
    """Returns the white space that replaces the text between two kept spans."""
    if "\n" in between:
        return "\n"
    has_space = any(character.isspace() for character in between)
    return " " if has_space else ""


def _rank_positions(old_spans: Int64, relative: Int64, new_spans: Int64) -> Int64:
    """Computes the relative positions in the kept text: ranks from 0 at each position.

    The ranks preserve the order by old position, then by old relative position; ties stay ties.

    Args:
        old_spans: int64 [n, 2], spans in the original text.
        relative: int64 [n, 2], the relative start and end positions in it.
        new_spans: int64 [n, 2], spans in the kept text.

    Returns:
        The new relative start and end positions: int64 [n, 2].
    """
    new_positions = new_spans.reshape(-1)
    old_positions = old_spans.reshape(-1)
    old_relative = relative.reshape(-1)
    order = np.lexsort((old_relative, old_positions, new_positions))
    columns = np.stack((new_positions, old_positions, old_relative))[:, order]

    # The rank is the number of distinct columns before a column, at the same new position.
    is_change = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
    counts = np.concatenate(([0], np.cumsum(is_change)))
    is_first = np.concatenate(([True], columns[0, 1:] != columns[0, :-1]))
    first_at_position = np.maximum.accumulate(np.where(is_first, np.arange(len(counts)), 0))

    ranks = np.empty_like(old_relative)
    ranks[order] = counts - counts[first_at_position]
    return ranks.reshape(-1, 2)
