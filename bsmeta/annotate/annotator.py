"""What an annotator is, what it works on (the row of a page, to which it adds columns), and how a
chunk of pages is annotated.

A subclass of `Annotator` makes the columns of one metadata type.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import msgspec
import xxhash
from isal import igzip

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.page import Page, PageError, parse_page
from bsmeta.annotate.pool import PAGE_STEP, Chunk, Failures, Status
from bsmeta.annotate.shard import Counts, Dropped, Written
from bsmeta.annotate.sources import InputRecord, decode
from bsmeta.annotate.tags import Profile, TagRecord
from bsmeta.core.parsing import JSONDecoder, decode_json
from bsmeta.metadata.records import Record

Columns = dict[str, Any]
"""Names and values of columns; a value that is only carried along is `msgspec.Raw` JSON."""
BASE_COLUMNS = ("text", "url", "c4_timestamp", "html")
"""The columns of a row that no annotator makes."""
ERRORS = "annotation_errors"

NO_HTML = "no_html"
NO_URL = "no_url"
NO_TEXT = "no_text"
OTHER_TEXT = "other_text"

_LEVEL = 2  # of isal: six times as fast as level 4 of zlib, for files that are 12% larger
_RECORDS = JSONDecoder(list[Record] | None)
_ROW = JSONDecoder(dict[str, msgspec.Raw])
_RAW_RECORDS = JSONDecoder(list[msgspec.Raw] | dict[str, msgspec.Raw] | None)
_STRING = JSONDecoder(str)
_ERRORS = JSONDecoder(dict[str, str])


class AnnotationError(ValueError):
    """An annotator cannot make its records for a page; it may have made some columns.

    Failures are counted by their `reason`, a short slug such as `no_url`.
    """

    def __init__(self, reason: str, detail: str = "", columns: Columns | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.columns = columns or {}


class Row:
    """The row of a page, to which annotators add columns.

    Attributes:
        url: The address of the page; may be empty.
        timestamp: When the page was crawled, from the input.
        html: The raw page, if there is one.
        columns: The columns that the row has so far, without `text` and `url`.
    """

    def __init__(self, record: InputRecord, profile: str, text: str | None = None) -> None:
        self.url = record.url
        self.timestamp = record.timestamp
        self.html = record.html
        self.columns: Columns = dict(record.columns)
        self._profile = cast(Profile, profile)
        self._text = record.text if text is None else text
        self._page: Page | None = None
        self._page_error: Exception | None = None

    @property
    def page(self) -> Page:
        """The parsed page.

        Raises:
            AnnotationError: `no_html` if the row has only text.
            PageError: The page cannot be parsed.
        """
        if self._page_error is not None:
            raise self._page_error
        if self._page is None:
            if self.html is None:
                raise AnnotationError(NO_HTML)
            try:
                self._page = parse_page(self.html, profile=self._profile)
            except PageError as error:
                self._page_error = error
                raise
            if self._text is not None and self._text != self._page.text:
                self._page_error = AnnotationError(OTHER_TEXT, "the input's text is not the page's")
                raise self._page_error
        return self._page

    @property
    def tags(self) -> Sequence[TagRecord | Record]:
        """The tags in the text: of the page, or of the column `metadata_html` of the input."""
        if self.html is not None:
            return self.page.tags
        column = self.columns.get("metadata_html")
        return (_RECORDS.decode(column) or []) if isinstance(column, msgspec.Raw) else column or []

    @property
    def text(self) -> str:
        """The text: that of the input, or else that of the page (and the errors of `page`)."""
        if self._text is None:
            self._text = self.page.text
        return self._text

    def needed_url(self) -> str:
        """The address of the page; raises AnnotationError if there is none."""
        if not self.url:
            raise AnnotationError(NO_URL)
        return self.url

    def column(self, name: str) -> Any:
        """A decoded column; None if the row does not have it."""
        value = self.columns.get(name)
        if isinstance(value, msgspec.Raw):
            value = self.columns[name] = decode_json(value)
        return value


def global_record(key: str, value: str, **more: Any) -> Columns:
    """A record about the whole document."""
    return {"key": key, "type": "global", "value": value, **more}


def local_record(key: str, value: str, start: int, end: int, **more: Any) -> Columns:
    """A record about the characters `start` to `end` (excluded) of the text."""
    span = {"char_start_idx": start, "char_end_idx": end}
    return {"key": key, "type": "local", "value": value, **span, **more}


class Annotator(ABC):
    """Makes columns of a row.

    A class of a user's own is named in `annotators` by its dotted path; the worker processes are
    forked, so whatever `__init__` loads is in memory once.

    Attributes:
        name: How `annotators` calls it, and the key of its failures in `annotation_errors`.
        version: To be increased when the same page would give other records: shards of an older
            version are then updated.
        needs: The columns of other annotators that it reads; they run before it.
        columns: The columns that it makes.
        settings: The configuration keys on which its records depend.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[str, ...]]
    settings: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: AnnotateConfig) -> None:
        self.config = config

    @abstractmethod
    def annotate(self, row: Row) -> Columns:
        """The columns for a row; those left out become empty lists.

        Raises:
            AnnotationError: Why there can be no records (a page without any is no error).
        """

    def fingerprint(self) -> str:
        """Identifies what its records depend on, besides the pages and the annotators it needs."""
        return self.digest({})

    def digest(self, more: dict[str, Any]) -> str:
        """The hash of its version and settings, and of `more` that its records depend on."""
        settings = {name: getattr(self.config, name) for name in self.settings}
        content = [type(self).__qualname__, self.version, settings, more]
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode(content, order="sorted"))


class Annotation:
    """Annotates chunks, in the worker processes.

    The annotators are in the order in which they run, `columns` those of all annotators in the
    order in which rows list them.
    """

    def __init__(
        self, config: AnnotateConfig, annotators: Sequence[Annotator], columns: Sequence[str]
    ) -> None:
        self._config = config
        self._annotators = list(annotators)
        self._columns = list(columns)
        self._page_bytes = int(config.page_mb * 1e6)

    def __call__(self, chunk: Chunk, failures: Failures, status: Status) -> Written:
        """Annotates a chunk, except what is known to fail; notes in `status` where it is."""
        begin = time.process_time()
        written = Written(b"", [], Counts(pages=len(chunk.items)))
        lines = []
        for number, (item, old) in enumerate(zip(chunk.items, chunk.rows, strict=True)):
            if isinstance(old, Dropped):  # a row of these annotators alone would lack the others
                written.dropped.append((number, *old))
                continue
            status.begin(number)
            failed = {step: reason for (of, step), reason in failures.items() if of == number}
            if PAGE_STEP in failed:  # it cannot be decoded; its address may be known
                url = item.url if isinstance(item, InputRecord) else ""
                record = InputRecord(url, problem=failed[PAGE_STEP])
            else:
                record = decode(item, self._page_bytes)
            existing = {} if old is None else _ROW.decode(old)
            try:
                row = self._start(record, existing)
            except (AnnotationError, PageError) as error:
                written.dropped.append((number, error.reason, record.url))
                continue
            self._annotate(row, existing, chunk.names, failed, status)
            # A shard that has text keeps the page that it has, too.
            keeps_html = chunk.keeps_html or record.text is not None
            lines.append(self._encoded(row, keeps_html))
            self._count(row, written.counts)
        status.end()
        if lines:
            written.data = igzip.compress(b"\n".join([*lines, b""]), _LEVEL, mtime=0)
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
            has_text = bool(row.text)
        except (AnnotationError, PageError):
            raise
        except Exception as error:  # the parser's, on a page that nobody has foreseen
            raise AnnotationError(_reason(error), str(error)) from error
        if not has_text:
            raise AnnotationError(NO_TEXT)
        return row

    def _annotate(
        self,
        row: Row,
        existing: Columns,
        names: frozenset[str],
        failed: Mapping[int, str],
        status: Status,
    ) -> None:
        """Runs annotators, beside the columns of the existing row."""
        row.columns |= {name: one for name, one in existing.items() if name not in BASE_COLUMNS}
        errors = _ERRORS.decode(existing[ERRORS]) if ERRORS in existing else {}
        for step, annotator in enumerate(self._annotators):
            if annotator.name not in names:
                continue
            errors.pop(annotator.name, None)
            status.step(step)
            try:
                if step in failed:
                    raise AnnotationError(failed[step])
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

    def _encoded(self, row: Row, keeps_html: bool) -> bytes:
        """The row as JSON; columns that an annotator made of other values are left empty."""
        try:
            return msgspec.json.encode(self._finished(row, keeps_html))
        except (TypeError, ValueError):
            for annotator in self._annotators:
                for column in annotator.columns:
                    try:
                        msgspec.json.encode(row.columns.get(column))
                    except (TypeError, ValueError) as error:
                        row.columns[column] = []
                        row.columns[ERRORS][annotator.name] = _reason(error)
            return msgspec.json.encode(self._finished(row, keeps_html))

    def _finished(self, row: Row, keeps_html: bool) -> Columns:
        """The row as it is written: text, columns of the input, columns of annotators, errors."""
        finished: Columns = {"text": row.text, "url": row.url, "c4_timestamp": row.timestamp}
        if row.html is not None and keeps_html:
            finished["html"] = row.html
        own = {ERRORS, *self._columns}
        finished |= {name: value for name, value in row.columns.items() if name not in own}
        finished |= {name: row.columns[name] for name in self._columns if name in row.columns}
        finished[ERRORS] = row.columns[ERRORS]
        return finished

    def _count(self, row: Row, counts: Counts) -> None:
        size = len(row.text).bit_length()
        counts.lengths[size] = counts.lengths.get(size, 0) + 1
        for annotator in self._annotators:
            records = sum(_number(row.columns.get(column)) for column in annotator.columns)
            if records:
                counts.present[annotator.name] = counts.present.get(annotator.name, 0) + 1
            counts.records[annotator.name] = counts.records.get(annotator.name, 0) + records
        for name, reason in row.columns[ERRORS].items():
            reasons = counts.errors.setdefault(name, {})
            reasons[reason] = reasons.get(reason, 0) + 1


def _number(column: Any) -> int:
    """The number of records of a column; 0 for a column of the input with another form."""
    if isinstance(column, msgspec.Raw):
        try:
            column = _RAW_RECORDS.decode(column)
        except msgspec.ValidationError:
            return 0
    return len(column) if isinstance(column, list | dict) else 0


def _reason(error: Exception) -> str:
    if isinstance(error, AnnotationError | PageError):
        return error.reason
    return "memory" if isinstance(error, MemoryError) else f"error_{type(error).__name__}"
