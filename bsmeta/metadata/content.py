"""The part of a page that is its content: text and records are cut to it.

A shard of `annotate.py` has the whole text of each page, and in the column `content_spans` the
spans of it that each extractor takes for the page's content. Which of them is trained on
(`data_config.content`) is decided when a line is decoded: text and records are cut to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bsmeta.config.data import EXTRACTORS
from bsmeta.core.parsing import JSONDecoder
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import UNREADABLE, BadDocument, Line, PartialLine, Record
from bsmeta.metadata.spans import Int64, record_relatives, record_spans

COLUMN = "content_spans"
ALL = "all"

Spans = list[tuple[int, int]]


class _Line(msgspec.Struct, gc=False):
    content_spans: dict[str, Spans | None] | list[Any] | None = None


_LINES = JSONDecoder(_Line)


def content_spans(line: Line, content: str) -> Spans:
    """The spans of a line's text that are trained on; none if the extractor failed.

    Raises:
        BadDocument: `no_content_spans` if the extractor was not run, or `wrong_type`.
    """
    try:
        text = line.text if isinstance(line, PartialLine) else line
        column = _LINES.decode(text).content_spans
    except UNREADABLE as error:
        raise BadDocument("wrong_type", f"{COLUMN}: {error}") from error
    names = (content,) if content in EXTRACTORS else EXTRACTORS
    if isinstance(column, list):  # the annotator failed; `annotation_errors` has the reason
        return []
    missing = [name for name in names if name not in (column or {})]
    if column is None or missing:
        raise BadDocument(
            "no_content_spans",
            f"the row has no {COLUMN} of {' and '.join(missing)}, which data_config.content="
            f"{content} needs: annotate its page with annotators=[…, content]",
        )
    found = [column[name] or [] for name in names]
    if len(found) == 1:
        return found[0]
    return _combined(found, 1 if content == "union" else len(found))


def _combined(spans: Sequence[Spans], least: int) -> Spans:
    """The spans that at least a given number of several lists of disjoint spans cover."""
    edges = sorted(
        [(start, 1) for some in spans for start, _ in some]
        + [(end, -1) for some in spans for _, end in some]
    )
    combined: Spans = []
    depth = begin = 0
    for place, change in edges:
        was, depth = depth, depth + change
        if was < least <= depth:
            begin = place
        elif depth < least <= was and begin < place:
            combined.append((begin, place))
    return combined


class KeptText:
    """The part of a text that is kept.

    Between spans that are kept, a line break is kept if there is one between them, or else a space
    if there is any white space.

    Raises:
        BadDocument: `bad_content_spans` if they are not in order and disjoint, or not in the text.
    """

    def __init__(self, text: str, spans: Spans) -> None:
        self._length = len(text)
        parts: list[str] = []
        kept: list[tuple[int, int, int]] = []  # start and end, and the new start
        length = end = 0
        for start, stop in spans:
            if not end <= start <= stop <= len(text):
                found = f"{start}..{stop} after {end}, in a text of {len(text)} characters"
                raise BadDocument("bad_content_spans", found)
            if start == stop:
                continue
            if kept:
                between = text[end:start]
                has_space = any(map(str.isspace, between))
                separator = "\n" if "\n" in between else " " if has_space else ""
                parts.append(separator)
                length += len(separator)
            parts.append(text[start:stop])
            kept.append((start, stop, length))
            length += stop - start
            end = stop
        self.text = "".join(parts)
        self._starts, self._ends, self._new = np.array(kept, np.int64).reshape(-1, 3).T

    def clip(self, key: str, records: Sequence[Record]) -> list[Record]:
        """The records with their spans in the text that is kept, without those that lie outside.

        The order of tags at one place stays that of the whole text.

        Raises:
            BadDocument: If a span is not one of the whole text.
        """
        records = [msgspec.structs.replace(record) for record in records]  # types may share them
        local = [record for record in records if record.is_local()]
        clipped = [record for record in records if not record.is_local()]
        clipped += self._clipped(key, local) if local else []
        if type_of(key).measures_text:
            for record in clipped:
                start, end = record.char_start_idx, record.char_end_idx
                length = len(self.text) if start is None or end is None else end - start
                record.value = str(length) if isinstance(record.value, str) else length
        return clipped

    def _clipped(self, key: str, local: Sequence[Record]) -> list[Record]:
        spans = record_spans(key, local, self._length)
        new, is_kept = self._moved(spans)
        kept = [local[row] for row in np.flatnonzero(is_kept).tolist()]
        for record, (start, end) in zip(kept, new[is_kept].tolist(), strict=True):
            record.char_start_idx, record.char_end_idx = start, end
        relative = record_relatives(key, local)
        if relative is not None:
            relative = _renumbered(spans[is_kept], relative[is_kept], new[is_kept])
            for record, (start, end) in zip(kept, relative.tolist(), strict=True):
                record.relative_start_pos, record.relative_end_pos = start, end
        return kept

    def _moved(self, spans: Int64) -> tuple[Int64, NDArray[np.bool_]]:
        """The new spans, and which of them have something in the text that is kept."""
        new = np.zeros_like(spans)
        if not len(self._starts):
            return new, np.zeros(len(spans), np.bool_)
        start, end = spans.T
        is_empty = start == end
        # The first span that ends after the start (an empty record may lie at the end of one), and
        # the last that starts before the end.
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
        new[:, 0] = self._new[first] + np.maximum(start - self._starts[first], 0)
        new[:, 1] = self._new[last] + np.minimum(end, self._ends[last]) - self._starts[last]
        return new, is_kept


def _renumbered(old: Int64, relative: Int64, new: Int64) -> Int64:
    """Renumbers the relative positions at each new place, in order; equal ones stay equal."""
    places, before, numbers = new.reshape(-1), old.reshape(-1), relative.reshape(-1)
    order = np.lexsort((numbers, before, places))
    rows = np.stack((places, before, numbers))[:, order]
    changes = (rows[:, 1:] != rows[:, :-1]).any(axis=0)
    counts = np.concatenate(([0], np.cumsum(changes)))
    is_first = np.concatenate(([True], rows[0, 1:] != rows[0, :-1]))
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(counts)), 0))
    renumbered = np.empty_like(numbers)
    renumbered[order] = counts - counts[begins]
    return renumbered.reshape(-1, 2)
