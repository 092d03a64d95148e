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

ALL = "all"


class _Line(msgspec.Struct, gc=False):
    content_spans: msgspec.Raw = msgspec.Raw(b"null")


_LINE_DECODER = ForeignDecoder(_Line)


def read_content_spans(line: Line, content: str) -> Spans:
    """Returns the spans of a line's text that are trained on; none if the extractor failed.

    Args:
        content: The value of `data_config.content`.

    Raises:
        BadDocument: `no_content_spans` if the extractor was not run; `wrong_type` or `not_json`.
    """
    try:
        text = line.text if isinstance(line, PartialLine) else line
        value = _LINE_DECODER.decode(text).content_spans
    except UNREADABLE as error:
        raise BadDocument("wrong_type", f"{CONTENT_SPANS}: {error}") from error

    column = decode_content_spans(value)
    names = (content,) if content in EXTRACTORS else EXTRACTORS
    missing = [name for name in names if name not in (column or {})]
    if column is None or missing:
        raise BadDocument(
            "no_content_spans",
            f"the row has no {CONTENT_SPANS} of {' and '.join(missing)}, which data_config.content="
            f"{content} needs: annotate its page with annotators=[…, content]",
        )

    extracted = [column[name] or [] for name in names]
    if len(extracted) == 1:
        return extracted[0]
    return _combine_spans(extracted, min_lists=1 if content == "union" else len(extracted))


def _combine_spans(lists: Sequence[Spans], min_lists: int) -> Spans:
    """Returns the spans that are covered by at least `min_lists` of several lists of spans.

    Args:
        lists: Lists of disjoint spans.
    """
    edges: list[tuple[int, int]] = []  # (position, 1) for a start, (position, -1) for an end
    for spans in lists:
        for start, end in spans:
            edges += (start, 1), (end, -1)
    edges.sort()

    combined: Spans = []
    num_open = 0  # spans that cover the current position
    begin = 0
    for position, change in edges:
        previous_num_open = num_open
        num_open += change
        if previous_num_open < min_lists <= num_open:
            begin = position
        elif num_open < min_lists <= previous_num_open and begin < position:
            combined.append((begin, position))
    return combined


class KeptText:
    """The spans of an original text that are kept, joined to a new text.

    Two spans are joined with a line break if there is one between them in the original text, or
    with a space if there is other white space, or else directly.

    Attributes:
        text: The new text.

    Raises:
        BadDocument: `bad_content_spans` if the spans are out of order, overlap, or are out of
            bounds.
    """

    def __init__(self, text: str, spans: Spans) -> None:
        self._length = len(text)
        parts: list[str] = []
        rows: list[tuple[int, int, int]] = []  # start, end, and start in the new text
        length = 0  # of the new text
        previous_end = 0
        for start, end in spans:
            if not previous_end <= start <= end <= len(text):
                detail = f"{start}..{end} after {previous_end}, in a text of {len(text)} characters"
                raise BadDocument("bad_content_spans", detail)
            if start == end:
                continue

            if rows:
                separator = _choose_separator(text[previous_end:start])
                parts.append(separator)
                length += len(separator)
            parts.append(text[start:end])
            rows.append((start, end, length))
            length += end - start
            previous_end = end

        self.text = "".join(parts)
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
        local = [record for record in records if record.is_local()]
        clipped = [record for record in records if not record.is_local()]
        clipped += self._clip_local(key, local) if local else []

        if find_type(key).measures_text:
            for record in clipped:
                start = record.char_start_idx
                end = record.char_end_idx
                length = len(self.text) if start is None or end is None else end - start
                record.value = str(length) if isinstance(record.value, str) else length
        return clipped

    def _clip_local(self, key: str, local: Sequence[Record]) -> list[Record]:
        """Changes the spans of local records in place, and returns the kept records."""
        spans = read_spans(key, local, self._length)
        new_spans, is_kept = self._translate_spans(spans)
        records = [local[row] for row in np.flatnonzero(is_kept).tolist()]
        for record, (start, end) in zip(records, new_spans[is_kept].tolist(), strict=True):
            record.char_start_idx = start
            record.char_end_idx = end

        relative = read_relative_positions(key, local)
        if relative is not None:
            relative = _rank_positions(spans[is_kept], relative[is_kept], new_spans[is_kept])
            for record, (start, end) in zip(records, relative.tolist(), strict=True):
                record.relative_start_pos = start
                record.relative_end_pos = end
        return records

    def _translate_spans(self, spans: Int64) -> tuple[Int64, NDArray[np.bool_]]:
        """Translates spans of the original text into spans of the kept text.

        Returns:
            The new spans (int64 [n, 2]), and whether each overlaps the kept text (bool [n]).
        """
        new_spans = np.zeros_like(spans)
        if not len(self._starts):
            return new_spans, np.zeros(len(spans), np.bool_)

        start, end = spans.T
        is_empty = start == end

        # For each span, the first kept span that ends after its start (an empty one may lie at the
        # end of a kept span), and the last kept span that starts before its end.
        first = np.where(
            is_empty,
            np.searchsorted(self._ends, start, "left"),
            np.searchsorted(self._ends, start, "right"),
        )
        last = np.where(is_empty, first, np.searchsorted(self._starts, end, "left") - 1)
        is_kept = (first < len(self._starts)) & (last >= 0) & (first <= last)
        first = np.where(is_kept, first, 0)
        last = np.where(is_kept, last, 0)
        is_kept &= ~is_empty | (self._starts[first] <= start)

        offset_in_first = np.maximum(start - self._starts[first], 0)
        offset_in_last = np.minimum(end, self._ends[last]) - self._starts[last]
        new_spans[:, 0] = self._new_starts[first] + offset_in_first
        new_spans[:, 1] = self._new_starts[last] + offset_in_last
        return new_spans, is_kept


def _choose_separator(between: str) -> str:
    """Returns the white space to put between two kept spans instead of the text between them."""
    if "\n" in between:
        return "\n"
    return " " if any(map(str.isspace, between)) else ""


def _rank_positions(old_spans: Int64, relative: Int64, new_spans: Int64) -> Int64:
    """Computes new relative positions: ranks from 0 at each position in the kept text.

    The ranks keep the order by (old position, old relative position); ties stay ties.

    Args:
        old_spans: int64 [n, 2], spans in the original text.
        relative: int64 [n, 2], the relative start and end positions in it.
        new_spans: int64 [n, 2], spans in the kept text.

    Returns:
        int64 [n, 2].
    """
    new_positions = new_spans.reshape(-1)
    old_positions = old_spans.reshape(-1)
    old_relative = relative.reshape(-1)
    order = np.lexsort((old_relative, old_positions, new_positions))
    rows = np.stack((new_positions, old_positions, old_relative))[:, order]

    # Count distinct rows, from 0 at each new position.
    is_change = (rows[:, 1:] != rows[:, :-1]).any(axis=0)
    counts = np.concatenate(([0], np.cumsum(is_change)))
    is_first = np.concatenate(([True], rows[0, 1:] != rows[0, :-1]))
    first_rows = np.maximum.accumulate(np.where(is_first, np.arange(len(counts)), 0))

    ranks = np.empty_like(old_relative)
    ranks[order] = counts - counts[first_rows]
    return ranks.reshape(-1, 2)
