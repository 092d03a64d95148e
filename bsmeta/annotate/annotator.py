"""Defines annotators and the rows that they annotate, and annotates chunks of pages.

A row holds the data of one page. A subclass of `Annotator` adds the columns of one metadata type to
it.
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
from bsmeta.annotate.decisions import Duplicate
from bsmeta.annotate.html.page import Page, PageError, parse_page
from bsmeta.annotate.html.tags import Profile, TagRecord
from bsmeta.annotate.inputs.sources import InputRecord, Item, decode_record
from bsmeta.annotate.pool import PAGE_STEP, Chunk, Failures, Status
from bsmeta.annotate.shard import AnnotatedChunk, Counts, Dropped
from bsmeta.core.foreign_json import split_columns
from bsmeta.core.parsing import JSONDecoder, decode_json
from bsmeta.metadata.annotated_columns import decode_local_records, decode_strings
from bsmeta.metadata.records import BadDocument, Record

Columns = dict[str, Any]
"""Column values by name; a value that is copied undecoded is `msgspec.Raw` JSON."""
BASE_COLUMNS = ("text", "url", "c4_timestamp", "html")
"""The columns of a row that come from the input, not from annotators."""
ERRORS = "annotation_errors"

NO_HTML = "no_html"
NO_URL = "no_url"
NO_TEXT = "no_text"
OTHER_TEXT = "other_text"

# A level of isal: six times as fast as level 4 of zlib, for files that are 12% larger.
_COMPRESSION_LEVEL = 2
_RECORDS_DECODER = JSONDecoder(list[msgspec.Raw] | dict[str, msgspec.Raw] | None)
_STRING_DECODER = JSONDecoder(str)
_ERRORS_DECODER = JSONDecoder(dict[str, str])


class AnnotationError(ValueError):
    """Raised by an annotator that cannot make its records for a page.

    Attributes:
        reason: A slug such as `no_url`, by which failures are counted.
        columns: The columns that could still be made.
    """

    def __init__(self, reason: str, detail: str = "", columns: Columns | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.columns = columns or {}


class Row:
    """The row of a page, to which annotators add columns.

    Attributes:
        url: The address of the page; empty if unknown.
        timestamp: The time of the crawl, as written in the input; None if unknown.
        html: The raw page; None for input with only text.
        columns: The current columns by name, without `text` and `url`.
        duplicate: The decision on the page if it copies another one; otherwise None.
    """

    def __init__(self, record: InputRecord, profile: str, text: str | None = None) -> None:
        self.url = record.url
        self.timestamp = record.timestamp
        self.html = record.html
        self.columns: Columns = dict(record.columns)
        self.duplicate: Duplicate | None = None
        self._profile = cast(Profile, profile)
        self._text = record.text if text is None else text
        self._page: Page | None = None
        self._page_error: Exception | None = None

    @property
    def page(self) -> Page:
        """The parsed page.

        Raises:
            AnnotationError: `no_html` if the row has only text; `other_text` if the input has
                another text than the page.
            PageError: If the page cannot be parsed.
        """
        if self._page_error is not None:
            raise self._page_error
        if self._page is not None:
            return self._page

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
        """The tags in the text: from the page, or without a page from the input's `metadata_html`.

        Raises:
            AnnotationError: If the column has another form, or the page another text.
            PageError: If the page cannot be parsed.
        """
        return self.page.tags if self.html is not None else self.read_spans("metadata_html")

    @property
    def text(self) -> str:
        """The text of the input, or else of the page.

        Raises:
            AnnotationError, PageError: If the text must be read from a page that cannot be parsed.
        """
        if self._text is None:
            self._text = self.page.text
        return self._text

    def require_url(self) -> str:
        """Returns the address of the page.

        Raises:
            AnnotationError: `no_url` if it has none.
        """
        if not self.url:
            raise AnnotationError(NO_URL)
        return self.url

    def read_spans(self, name: str) -> list[Record]:
        """Returns the local records of a column; [] if the row does not have it.

        Raises:
            AnnotationError: If it has another form than the columns of annotators; training would
                drop the document for the same reason.
        """
        try:
            return decode_local_records(name, self.columns.get(name), len(self.text))
        except BadDocument as error:
            raise AnnotationError(error.reason, error.detail) from error

    def read_strings(self, name: str) -> list[str] | None:
        """Returns a column of strings; None if the row does not have it.

        Raises:
            AnnotationError: If the column is not a list of strings.
        """
        value = self.columns.get(name)
        try:
            return None if value is None else decode_strings(name, value)
        except BadDocument as error:
            raise AnnotationError(error.reason, error.detail) from error

    def read_column(self, name: str) -> Any:
        """Returns a decoded column of any form; None if the row does not have it.

        Raises:
            AnnotationError: `wrong_type` if it cannot be decoded to Python values.
        """
        value = self.columns.get(name)
        if isinstance(value, msgspec.Raw):
            try:
                value = self.columns[name] = decode_json(value, allow_repeated_keys=True)
            except msgspec.DecodeError as error:
                raise AnnotationError("wrong_type", f"{name}: {error}") from error
        return value


def make_global_record(key: str, value: str, **fields: Any) -> Columns:
    """Returns a record about the whole document, with further fields."""
    return {"key": key, "type": "global", "value": value, **fields}


def make_local_record(key: str, value: str, start: int, end: int, **fields: Any) -> Columns:
    """Returns a record about the characters `start` to `end` (excluded) of the text.

    Args:
        fields: Further fields of the record.
    """
    span = {"char_start_idx": start, "char_end_idx": end}
    return {"key": key, "type": "local", "value": value, **span, **fields}


class Annotator(ABC):
    """Base class of annotators, which add columns to the row of a page.

    Custom classes are named in `annotators` by their dotted path. Worker processes are forked after
    `__init__`, so they share the memory of the data that it loads.

    Attributes:
        name: The annotator's name in `annotators`, and the key of its failures in
            `annotation_errors`.
        version: Increment it when the records of the same page change, so that shards of an older
            version are updated.
        needs: The columns of other annotators that it reads; those annotators run first.
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
        """Returns the columns for a row; missing ones become empty lists.

        Raises:
            AnnotationError: If the page cannot be annotated. A page without records is not an
                error.
        """

    def fingerprint(self) -> str:
        """Hashes the annotator's version, its settings, and the files that it depends on.

        The hash depends neither on the pages nor on other annotators.
        """
        return self.digest({})

    def digest(self, dependencies: dict[str, Any]) -> str:
        """Hashes the annotator's name and version, its settings, and its other dependencies.

        Args:
            dependencies: Other JSON-serializable values on which the records depend, by name.
        """
        settings = {name: getattr(self.config, name) for name in self.settings}
        content = [type(self).__qualname__, self.version, settings, dependencies]
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode(content, order="sorted"))


class Annotation:
    """Annotates chunks of pages, in the worker processes.

    Args:
        annotators: The annotators, in the order in which they run.
        columns: The columns of all annotators, in the order in which rows list them.
    """

    def __init__(
        self, config: AnnotateConfig, annotators: Sequence[Annotator], columns: Sequence[str]
    ) -> None:
        self._config = config
        self._annotators = list(annotators)
        self._columns = list(columns)
        self._page_bytes = int(config.page_mb * 1e6)

    def __call__(self, chunk: Chunk, failures: Failures, status: Status) -> AnnotatedChunk:
        """Annotates a chunk.

        Args:
            failures: Pages and steps that failed in an earlier worker; they are skipped.
            status: Always updated to the current page and step.
        """
        started = time.process_time()
        counts = Counts(pages=len(chunk.items))
        lines: list[bytes] = []
        dropped: list[tuple[int, str, str]] = []
        for number in range(len(chunk.items)):
            # With `only`, not all annotators run, so a page that was dropped stays without a row.
            old_row = chunk.rows[number]
            if isinstance(old_row, Dropped):
                dropped.append((number, *old_row))
                continue

            status.begin_page(number)
            result = self._annotate_item(chunk, number, failures, status, counts)
            if isinstance(result, Dropped):
                dropped.append((number, *result))
            else:
                lines.append(result)
        status.end_page()

        data = b""
        if lines:
            content = b"\n".join([*lines, b""])
            data = igzip.compress(content, _COMPRESSION_LEVEL, mtime=0)
        counts.dropped = dict(Counter(reason for _, reason, _ in dropped))
        counts.duplicates = dict(Counter(copy.kind for copy in chunk.duplicates.values()))
        counts.cpu_s = time.process_time() - started
        return AnnotatedChunk(data, dropped, counts)

    def _annotate_item(
        self, chunk: Chunk, number: int, failures: Failures, status: Status, counts: Counts
    ) -> bytes | Dropped:
        """Annotates a page of a chunk; returns its row as JSON, or the reason why it has none.

        Args:
            number: Index of the page in the chunk.
            counts: The counts of the chunk, to which the page's records are added.
        """
        failed_steps = {
            step: reason
            for (failed_item, step), reason in failures.items()
            if failed_item == number
        }
        record = self._decode_item(chunk.items[number], failed_steps)
        duplicate = chunk.duplicates.get(number)
        if duplicate is not None and duplicate.is_dropped:
            return Dropped(duplicate.kind, record.url)

        old_row = chunk.rows[number]
        old_columns = split_columns(old_row) if isinstance(old_row, bytes) else {}
        try:
            row = self._make_row(record, old_columns)
        except (AnnotationError, PageError) as error:
            return Dropped(error.reason, record.url)

        row.duplicate = duplicate
        self._annotate_row(row, old_columns, chunk.names, failed_steps, status)
        # Input that has text and raw pages is a shard that was written with `keep_html`.
        keeps_html = chunk.keeps_html or record.text is not None
        line = self._encode_row(row, keeps_html=keeps_html)
        self._count_records(row, counts)
        return line

    def _decode_item(self, item: Item, failed_steps: Mapping[int, str]) -> InputRecord:
        """Decodes a record; if its page step failed before, returns the failure as its problem."""
        if PAGE_STEP not in failed_steps:
            return decode_record(item, self._page_bytes)

        # It cannot be decoded, but its address may be known.
        url = item.url if isinstance(item, InputRecord) else ""
        return InputRecord(url, problem=failed_steps[PAGE_STEP])

    def _make_row(self, record: InputRecord, old_columns: Columns) -> Row:
        """Makes the row of a record.

        Args:
            old_columns: The columns of the existing row, whose text is kept; empty if there is
                none.

        Raises:
            AnnotationError, PageError: If the record has a problem or the page has no text.
        """
        if record.problem:
            raise AnnotationError(record.problem)

        text = _STRING_DECODER.decode(old_columns["text"]) if old_columns else None
        row = Row(record, self._config.profile, text)
        try:
            has_text = bool(row.text)
        except (AnnotationError, PageError):
            raise
        except Exception as error:  # the parser may raise anything
            raise AnnotationError(_describe_reason(error), str(error)) from error
        if not has_text:
            raise AnnotationError(NO_TEXT)
        return row

    def _annotate_row(
        self,
        row: Row,
        old_columns: Columns,
        names: frozenset[str],
        failed_steps: Mapping[int, str],
        status: Status,
    ) -> None:
        """Runs annotators on a row.

        Args:
            old_columns: The columns of the existing row, which annotators that do not run keep.
            names: The annotators to run.
            failed_steps: The reasons of annotators that failed in an earlier worker, by step.
        """
        row.columns |= {
            name: value for name, value in old_columns.items() if name not in BASE_COLUMNS
        }
        errors = _ERRORS_DECODER.decode(old_columns[ERRORS]) if ERRORS in old_columns else {}
        for step, annotator in enumerate(self._annotators):
            if annotator.name not in names:
                continue

            errors.pop(annotator.name, None)
            status.begin_step(step)
            try:
                if step in failed_steps:
                    raise AnnotationError(failed_steps[step])
                columns = annotator.annotate(row)
                columns = {column: columns.get(column, []) for column in annotator.columns}
            except Exception as error:
                errors[annotator.name] = _describe_reason(error)
                if isinstance(error, AnnotationError):
                    row.columns |= error.columns
                for column in annotator.columns:
                    row.columns.setdefault(column, [])
            else:
                row.columns |= columns
        row.columns[ERRORS] = errors

    def _encode_row(self, row: Row, *, keeps_html: bool) -> bytes:
        """Encodes a row as JSON; columns that cannot be encoded become empty."""
        try:
            return msgspec.json.encode(self._sort_columns(row, keeps_html=keeps_html))
        except (TypeError, ValueError):
            self._empty_bad_columns(row)
            return msgspec.json.encode(self._sort_columns(row, keeps_html=keeps_html))

    def _empty_bad_columns(self, row: Row) -> None:
        """Empties the columns that cannot be encoded as JSON, and records the error."""
        for annotator in self._annotators:
            for column in annotator.columns:
                try:
                    msgspec.json.encode(row.columns.get(column))
                except (TypeError, ValueError) as error:
                    row.columns[column] = []
                    row.columns[ERRORS][annotator.name] = _describe_reason(error)

    def _sort_columns(self, row: Row, *, keeps_html: bool) -> Columns:
        """Returns all columns in the order of a shard: text, input, annotators, errors."""
        columns: Columns = {"text": row.text, "url": row.url, "c4_timestamp": row.timestamp}
        if row.html is not None and keeps_html:
            columns["html"] = row.html

        annotated = {ERRORS, *self._columns}
        columns |= {name: value for name, value in row.columns.items() if name not in annotated}
        columns |= {name: row.columns[name] for name in self._columns if name in row.columns}
        columns[ERRORS] = row.columns[ERRORS]
        return columns

    def _count_records(self, row: Row, counts: Counts) -> None:
        """Adds the length, the records and the failures of a row to the counts."""
        num_bits = len(row.text).bit_length()
        counts.lengths[num_bits] = counts.lengths.get(num_bits, 0) + 1

        for annotator in self._annotators:
            name = annotator.name
            records = sum(_count_records(row.columns.get(key)) for key in annotator.columns)
            if records:
                counts.present[name] = counts.present.get(name, 0) + 1
            counts.records[name] = counts.records.get(name, 0) + records

        for name, reason in row.columns[ERRORS].items():
            reasons = counts.errors.setdefault(name, {})
            reasons[reason] = reasons.get(reason, 0) + 1


def _count_records(column: Any) -> int:
    """Counts the records of a column; 0 if it is neither a list nor an object."""
    if isinstance(column, msgspec.Raw):
        try:
            column = _RECORDS_DECODER.decode(column)
        except msgspec.ValidationError:
            return 0
    return len(column) if isinstance(column, list | dict) else 0


def _describe_reason(error: Exception) -> str:
    """Returns the slug by which a failure is counted."""
    if isinstance(error, AnnotationError | PageError):
        return error.reason
    return "memory" if isinstance(error, MemoryError) else f"error_{type(error).__name__}"
