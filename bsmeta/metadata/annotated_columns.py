"""The gate for the columns that annotators write: records, and the spans of a page's content.

Other people's data has columns of the same names with another content: `metadata_tags` as a list of
strings, `metadata_html` as a page. Every reader of these columns gets their content from here, and
handles a `BadDocument` in its own way: training drops the document and counts it, an annotator
fails on the page, a report leaves the column out. A column that is only carried along is never
read.

A value is JSON (`msgspec.Raw`, bytes), or Python objects that JSON has, as from a Parquet file.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from bsmeta.config.data import EXTRACTORS
from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.metadata.records import (
    UNREADABLE,
    BadDocument,
    Record,
    classify_bad_document,
    select_local_records,
)
from bsmeta.metadata.spans import read_spans

CONTENT_SPANS = "content_spans"
PREFIX = "metadata_"
"""Begins the name of each column of records."""

Spans = list[tuple[int, int]]
"""Starts and ends in characters, in order and disjoint."""


class _Cut(msgspec.Struct):
    """A column that may have been cut out together with the columns after it."""

    column: msgspec.Raw = msgspec.field(name="")


_CUT = ForeignDecoder(_Cut)
_RECORDS = ForeignDecoder(list[Record] | None)
_CONTENT_SPANS = ForeignDecoder(dict[str, Spans | None] | list[Any] | None)
_STRINGS = ForeignDecoder(list[str] | None)


def decode_records(column: str, value: Any) -> list[Record]:
    """Decodes the records of a column; none if it is null.

    Args:
        column: Its name, for messages.

    Raises:
        BadDocument: `not_json` or `wrong_type`, if these are no records.
    """
    content = _encode_value(value)
    try:
        return _RECORDS.decode(content) or []
    except UNREADABLE as error:
        with contextlib.suppress(*UNREADABLE):
            alone = bytes(_CUT.decode(b'{"":' + memoryview(content) + b"}").column)
            if alone != bytes(content):
                return decode_records(column, alone)
        raise classify_bad_document(error, f"{column}: ") from error


def decode_local_records(column: str, value: Any, text_length: int) -> list[Record]:
    """Decodes the local records of a column, whose spans are spans of the text.

    Args:
        text_length: Characters of the text.

    Raises:
        BadDocument: As by `decode_records` and `read_spans`.
    """
    records = select_local_records(decode_records(column, value))
    if records:
        read_spans(column, records, text_length)
    return records


def decode_content_spans(value: Any) -> dict[str, Spans | None] | None:
    """Decodes the spans of each extractor: None for one that failed.

    Returns:
        None if the column is null.

    Raises:
        BadDocument: `wrong_type` or `not_json`.
    """
    try:
        content = _CONTENT_SPANS.decode(_encode_value(value))
    except UNREADABLE as error:
        raise classify_bad_document(error, f"{CONTENT_SPANS}: ") from error
    if not isinstance(content, list):
        return content
    if content:
        raise BadDocument("wrong_type", f"{CONTENT_SPANS}: expected an object, got an array")
    return dict.fromkeys(EXTRACTORS)  # the annotator failed; `annotation_errors` has the reason


def decode_strings(column: str, value: Any) -> list[str]:
    """Decodes a column of strings, such as `html_title`; none if it is null.

    Raises:
        BadDocument: `wrong_type` or `not_json`.
    """
    try:
        return _STRINGS.decode(_encode_value(value)) or []
    except UNREADABLE as error:
        raise classify_bad_document(error, f"{column}: ") from error


def _encode_value(value: Any) -> bytes | memoryview | msgspec.Raw:
    """Returns a value as JSON."""
    if isinstance(value, bytes | memoryview | msgspec.Raw):
        return value
    return msgspec.json.encode(value)
