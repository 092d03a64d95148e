"""What an annotator is, and what it works on: the row of a page, to which it adds columns.

A subclass of `Annotator` makes the columns of one metadata type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import msgspec
import xxhash

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.page import Page, PageError, parse_page
from bsmeta.annotate.tags import Profile, TagRecord
from bsmeta.metadata.records import Record

Columns = dict[str, Any]
"""Names and values of columns; a value that is only carried along is `msgspec.Raw` JSON."""

BASE_COLUMNS = ("text", "url", "c4_timestamp", "html")
"""The columns of a row that no annotator makes."""

NO_HTML = "no_html"
NO_URL = "no_url"
NO_TEXT = "no_text"
OTHER_TEXT = "other_text"

_RECORDS = msgspec.json.Decoder(list[Record] | None)


class AnnotationError(ValueError):
    """An annotator cannot make its records for a page.

    Attributes:
        reason: A short slug by which failures are counted, such as `no_url`.
        columns: The columns that it made nevertheless.
    """

    def __init__(self, reason: str, detail: str = "", columns: Columns | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.columns = columns or {}


class InputRecord(msgspec.Struct):
    """A page as an input file has it.

    Attributes:
        url: Its address; may be empty.
        timestamp: When it was crawled, from the input.
        html: The raw page.
        payload: The raw page if it is yet to be decoded.
        charset: The encoding of that, from the HTTP header.
        text: The text of a shard that already has text; None if the page is yet to be parsed.
        columns: All other columns, undecoded.
        problem: Why the record cannot be used, such as `not_json`; empty if it can.
    """

    url: str = ""
    timestamp: str | None = None
    html: str | None = None
    payload: bytes | None = None
    charset: str | None = None
    text: str | None = None
    columns: Columns = msgspec.field(default_factory=dict)
    problem: str = ""


class Row:
    """The row of a page, to which annotators add columns.

    Args:
        record: The page.
        profile: Which parts of the page are its text, see `parse_page`.
        text: The text, if it is known from elsewhere.

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
        """The address of the page.

        Raises:
            AnnotationError: If there is none.
        """
        if not self.url:
            raise AnnotationError(NO_URL)
        return self.url

    def column(self, name: str) -> Any:
        """A decoded column; None if the row does not have it."""
        value = self.columns.get(name)
        if isinstance(value, msgspec.Raw):
            value = self.columns[name] = msgspec.json.decode(value)
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

    Args:
        config: The configuration of the run.

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
            AnnotationError: With the reason why there can be no records (a page without any is no
                error).
        """

    def fingerprint(self) -> str:
        """Identifies what its records depend on, besides the pages and the annotators it needs."""
        return self.digest({})

    def digest(self, more: dict[str, Any]) -> str:
        """The hash of its version and settings, and of `more` that its records depend on."""
        settings = {name: getattr(self.config, name) for name in self.settings}
        content = [type(self).__qualname__, self.version, settings, more]
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode(content, order="sorted"))
