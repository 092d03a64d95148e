"""Decodes the columns that annotators write: records, and the spans of a page's content.

Other people's data has columns of the same names with different content: `metadata_tags` as a list
of strings, `metadata_html` as a page. So all code that reads these columns uses this module, and
handles a `BadDocument` in its own way: training drops the document and counts it, an annotator
fails on the page, a report leaves the column out. Columns that are only passed on are never read.

A value is JSON (`msgspec.Raw`, bytes), or a Python object of JSON types, as from a Parquet file.
"""

from __future__ import annotations

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
RECORD_COLUMN_PREFIX = "metadata_"
"""The beginning of the name of every column of records."""

Spans = list[tuple[int, int]]
"""Starts and ends in characters of the text; sorted and disjoint."""


class _FirstColumn(msgspec.Struct):
    """The first of several columns that were cut out of a line together; its key is `""`."""

    column: msgspec.Raw = msgspec.field(name="")


_FIRST_COLUMN = ForeignDecoder(_FirstColumn)
_RECORDS = ForeignDecoder(list[Record] | None)
_CONTENT_SPANS = ForeignDecoder(dict[str, Spans | None] | list[Any] | None)
_STRINGS = ForeignDecoder(list[str] | None)


def decode_records(column: str, value: Any) -> list[Record]:
    """Decodes the records in a column; returns an empty list if the column is null.

    Args:
        column: The name of the column, for messages.

    Raises:
        BadDocument: `not_json` or `wrong_type`, if the column does not contain records.
    """
    content = _encode_value(value)
    try:
        return _RECORDS.decode(content) or []
    except UNREADABLE as error:
        first_column = _extract_first_column(content)
        if first_column is not None:
            return decode_records(column, first_column)
        raise classify_bad_document(error, f"{column}: ") from error


def _extract_first_column(content: bytes | memoryview | msgspec.Raw) -> bytes | None:
    """Returns the first of the columns that `decoding.cut_column` cut out of a line together.

    Returns:
        None if the content is malformed or has no further column.
    """
    try:
        first_column = bytes(_FIRST_COLUMN.decode(b'{"":' + memoryview(content) + b"}").column)
    except UNREADABLE:
        return None
    return first_column if first_column != bytes(content) else None


def decode_local_records(column: str, value: Any, text_length: int) -> list[Record]:
    """Decodes the local records in a column, and checks their spans.

    Args:
        column: The name of the column, for messages.
        text_length: Number of characters in the text of the page.

    Raises:
        BadDocument: See `decode_records` and `read_spans`.
    """
    records = select_local_records(decode_records(column, value))
    if records:
        read_spans(column, records, text_length)
    return records


def decode_content_spans(value: Any) -> dict[str, Spans | None] | None:
    """Decodes the content spans of a page.

    Returns:
        The spans by extractor, where None marks an extractor that failed; None if the column is
        null.

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
    """Decodes a column of strings, such as `html_title`; returns an empty list if it is null.

    Args:
        column: The name of the column, for messages.

    Raises:
        BadDocument: `wrong_type` or `not_json`.
    """
    try:
        return _STRINGS.decode(_encode_value(value)) or []
    except UNREADABLE as error:
        raise classify_bad_document(error, f"{column}: ") from error


def _encode_value(value: Any) -> bytes | memoryview | msgspec.Raw:
    """Encodes a Python object as JSON; returns JSON unchanged."""
    if isinstance(value, bytes | memoryview | msgspec.Raw):
        return value
    return msgspec.json.encode(value)
