"""A chunk: pages that are annotated, compressed and written together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from isal import igzip

from bsmeta.annotate.annotator import (
    BASE_COLUMNS,
    NO_TEXT,
    AnnotationError,
    Annotator,
    Columns,
    InputRecord,
    Row,
)
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.page import PageError
from bsmeta.annotate.registry import ANNOTATORS
from bsmeta.annotate.sources import Item, decode, unusable

ERRORS = "annotation_errors"
PAGE_STEP = -1
"""The step in which the text of a page is made; step k is that of annotator k."""

Failures = dict[tuple[int, int], str]
"""Steps of items that are not run because they are known to fail: reasons by item and step."""

_LEVEL = 2  # of isal: six times as fast as level 4 of zlib, for files that are 12% larger
_ROW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_RECORDS = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw] | None)
_STRING = msgspec.json.Decoder(str)
_ERRORS = msgspec.json.Decoder(dict[str, str])


class Dropped(NamedTuple):
    """A page that has no row in the shard that is updated: the reason, and its address."""

    reason: str
    url: str


class Chunk(msgspec.Struct):
    """Consecutive records of an input file; without records it only marks the end of the file.

    Attributes:
        shard: Number of the file.
        items: The records.
        rows: For each its row in the shard that is updated, or why it has none there; None: there
            is no such shard.
        names: The annotators to run.
        keeps_html: Whether rows keep the raw page.
        position: Bytes of the file that had been read after the last record.
        problem: At the end of a file that is damaged: the message.
    """

    shard: int
    items: list[Item] = []
    names: frozenset[str] = frozenset()
    keeps_html: bool = False
    rows: list[bytes | Dropped | None] = []
    position: int = 0
    problem: str = ""


class Counts(msgspec.Struct):
    """What was found in pages; adds up over chunks and shards.

    Attributes:
        pages: Records read.
        dropped: Pages without a row, by reason.
        errors: Failures by annotator and reason.
        present: Pages with at least one record, by annotator.
        records: Records by annotator.
        lengths: Pages by the number of binary digits of the number of characters of their text.
        cpu_s: CPU seconds.
    """

    pages: int = 0
    dropped: dict[str, int] = {}
    errors: dict[str, dict[str, int]] = {}
    present: dict[str, int] = {}
    records: dict[str, int] = {}
    lengths: dict[int, int] = {}
    cpu_s: float = 0.0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.pages - sum(self.dropped.values())

    def add(self, other: Counts) -> None:
        """Adds the counts of other pages."""
        self.pages += other.pages
        self.cpu_s += other.cpu_s
        for name in ("dropped", "present", "records", "lengths"):
            setattr(self, name, dict(Counter(getattr(self, name)) + Counter(getattr(other, name))))
        for annotator, reasons in other.errors.items():
            found = Counter(self.errors.get(annotator, {}))
            self.errors[annotator] = dict(found + Counter(reasons))


class Written(msgspec.Struct):
    """An annotated chunk.

    Attributes:
        data: Its rows as a gzip member; empty without rows.
        dropped: Number in the chunk, reason and address of each page without a row.
        counts: What was found.
    """

    data: bytes
    dropped: list[tuple[int, str, str]]
    counts: Counts


class Annotation:
    """Annotates chunks.

    Args:
        config: The configuration.
        annotators: In the order in which they run.
    """

    def __init__(self, config: AnnotateConfig, annotators: Sequence[Annotator]) -> None:
        self._config = config
        self._annotators = list(annotators)
        self._page_bytes = int(config.page_mb * 1e6)
        kinds: list[type[Annotator]] = [*ANNOTATORS.values(), *map(type, annotators)]
        self._columns = list(dict.fromkeys(column for kind in kinds for column in kind.columns))

    def __call__(self, chunk: Chunk, failures: Failures, status: Any) -> Written:
        """Annotates a chunk.

        Args:
            chunk: The chunk.
            failures: What is known to fail.
            status: Where item, step and start (see `pool.Status`) are noted.
        """
        begin = time.process_time()
        written = Written(b"", [], Counts(pages=len(chunk.items)))
        lines = []
        for number, item in enumerate(chunk.items):
            old = chunk.rows[number]
            if isinstance(old, Dropped):  # a row of these annotators alone would lack the others
                written.dropped.append((number, *old))
                continue
            status.begin(number)
            failure = failures.get((number, PAGE_STEP), "")
            record = unusable(item, failure) if failure else decode(item, self._page_bytes)
            existing = {} if old is None else _ROW.decode(old)
            try:
                row = self._start(record, existing)
            except (AnnotationError, PageError) as error:
                written.dropped.append((number, error.reason, record.url))
                continue
            columns = self._annotate(row, existing, chunk.names, number, failures, status)
            lines.append(self._encoded(row, record, columns, chunk.keeps_html))
            self._count(columns, row, written.counts)
        status.end()
        if lines:
            data = b"\n".join([*lines, b""])
            written.data = igzip.compress(data, _LEVEL, mtime=0)
        written.counts.dropped = dict(Counter(reason for _, reason, _ in written.dropped))
        written.counts.cpu_s = time.process_time() - begin
        return written

    def _start(self, record: InputRecord, existing: Columns) -> Row:
        """The row of a record, with its text: that of the existing row, if there is one.

        Raises:
            AnnotationError, PageError: The page cannot have a row.
        """
        if record.problem:
            raise AnnotationError(record.problem)
        text = _STRING.decode(existing["text"]) if existing else None
        row = Row(record, self._config.profile, text)
        try:
            if not row.text:
                raise AnnotationError(NO_TEXT)
        except (AnnotationError, PageError):
            raise
        except Exception as error:  # the parser's, on a page that nobody has foreseen
            raise AnnotationError(_reason(error), str(error)) from error
        return row

    def _annotate(
        self,
        row: Row,
        existing: Columns,
        names: frozenset[str],
        number: int,
        failures: Failures,
        status: Any,
    ) -> Columns:
        """Runs annotators; returns the row's columns, those of the existing row included."""
        row.columns |= {name: one for name, one in existing.items() if name not in BASE_COLUMNS}
        errors = _ERRORS.decode(existing[ERRORS]) if ERRORS in existing else {}
        for step, annotator in enumerate(self._annotators):
            if annotator.name not in names:
                continue
            errors.pop(annotator.name, None)
            status.step(step)
            try:
                if (number, step) in failures:
                    raise AnnotationError(failures[number, step])
                made = annotator.annotate(row)
                made = {column: made.get(column, []) for column in annotator.columns}
            except Exception as error:
                errors[annotator.name] = _reason(error)
                if isinstance(error, AnnotationError):
                    row.columns |= error.columns
                for column in annotator.columns:
                    row.columns.setdefault(column, [])
            else:
                row.columns |= made
        row.columns[ERRORS] = errors
        return row.columns

    def _encoded(self, row: Row, record: InputRecord, columns: Columns, keeps_html: bool) -> bytes:
        """The row as JSON; columns that an annotator made of other values are left empty."""
        try:
            return msgspec.json.encode(self._finished(row, record, columns, keeps_html))
        except (TypeError, ValueError):
            for annotator in self._annotators:
                for column in annotator.columns:
                    try:
                        msgspec.json.encode(columns.get(column))
                    except (TypeError, ValueError) as error:
                        columns[column] = []
                        columns[ERRORS][annotator.name] = _reason(error)
            return msgspec.json.encode(self._finished(row, record, columns, keeps_html))

    def _finished(
        self, row: Row, record: InputRecord, columns: Columns, keeps_html: bool
    ) -> Columns:
        """The row as it is written: text, columns of the input, columns of annotators, errors."""
        finished: Columns = {"text": row.text, "url": row.url, "c4_timestamp": row.timestamp}
        if record.html is not None and (keeps_html or record.text is not None):
            finished["html"] = record.html
        own = {ERRORS, *self._columns}
        finished |= {name: value for name, value in columns.items() if name not in own}
        finished |= {name: columns[name] for name in self._columns if name in columns}
        finished[ERRORS] = columns[ERRORS]
        return finished

    def _count(self, columns: Columns, row: Row, counts: Counts) -> None:
        size = len(row.text).bit_length()
        counts.lengths[size] = counts.lengths.get(size, 0) + 1
        for annotator in self._annotators:
            records = sum(_number(columns.get(column)) for column in annotator.columns)
            if records:
                counts.present[annotator.name] = counts.present.get(annotator.name, 0) + 1
            counts.records[annotator.name] = counts.records.get(annotator.name, 0) + records
        for name, reason in columns[ERRORS].items():
            reasons = counts.errors.setdefault(name, {})
            reasons[reason] = reasons.get(reason, 0) + 1


def _number(column: Any) -> int:
    """The number of records of a column, which may be undecoded."""
    if isinstance(column, msgspec.Raw):
        column = _RAW_RECORDS.decode(column)
    return len(column) if isinstance(column, list | dict) else 0


def _reason(error: Exception) -> str:
    """The reason by which a failure is counted."""
    if isinstance(error, AnnotationError | PageError):
        return error.reason
    return "memory" if isinstance(error, MemoryError) else f"error_{type(error).__name__}"
