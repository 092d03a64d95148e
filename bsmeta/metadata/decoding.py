"""Decoding: a line of a shard becomes a `Document` with its metadata.

First step of the flow (line -> document -> chosen types -> rendered text). Decoding is typed:
the metadata columns that the configuration names are the only ones that are decoded, and those
of lazy types among them (one record for each html tag) only when they are rendered.
"""

from __future__ import annotations

import contextlib
from typing import Any, cast

import msgspec

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.columns import MARK, UNREADABLE, cut_column
from bsmeta.metadata.processors import ADDRESS_KEY, LONGEST_COLUMN, column_keys, type_of
from bsmeta.metadata.records import (
    NO_COLUMN,
    BadDocument,
    Document,
    Record,
    bad_document,
    group,
    is_empty,
)

ADDRESS_FIELD = "address_column"
"""The column of addresses where it is not one of the wanted ones; see `Document.addresses`."""

_LONGEST_KEY = f'"metadata_{LONGEST_COLUMN}"'.encode()


class DocumentDecoder:
    """Turns the lines of a shard into documents.

    Both forms of the data are read: one column a type (`metadata_html`, ...), or `text` with one
    list `metadata`, which comes first where a line has both. A record without a `key` takes
    that of its column.

    Args:
        config: `metadata_list` and `metadata_column_list` say which columns are decoded.
    """

    def __init__(self, config: MetadataConfig) -> None:
        columns = _columns(config)
        keys = column_keys()
        eager = [name for name in columns if not type_of(name).is_lazy]
        self._eager = [(_field(name), keys.get(name, name)) for name in eager]
        self._lazy = [(_field(name), name) for name in columns if type_of(name).is_lazy]
        self._decoder = msgspec.json.Decoder(_line_type(columns))
        self._long_field = _field(LONGEST_COLUMN) if LONGEST_COLUMN in columns else None

    def decode(self, line: bytes | memoryview) -> Document:
        """Decode one line.

        Args:
            line: A JSON object in UTF-8.

        Raises:
            BadDocument: `not_json`, `not_an_object`, `missing_text`, `text_not_string` or
                `wrong_type`. Columns of lazy types are not looked into here (only the syntax of all
                but the longest one is checked); rendering may still refuse their records.
        """
        try:
            row = self._row(line)
        except UNREADABLE as error:
            raise bad_document(error) from error
        if isinstance(row.text, msgspec.UnsetType):
            raise BadDocument("missing_text", "the object has no `text`")
        records: dict[str, list[Record]] = {}
        undecoded: dict[str, msgspec.Raw] = {}
        address_column = getattr(row, ADDRESS_FIELD, NO_COLUMN)
        if row.metadata is not None:
            if not all(record.key for record in row.metadata):
                raise BadDocument("wrong_type", "a record of the list `metadata` has no `key`")
            group(records, "", row.metadata)
            return Document(row.text, row.url, records, address_column=address_column)
        for field, key in self._eager:
            group(records, key, getattr(row, field))
        for field, key in self._lazy:
            raw = getattr(row, field)
            if not is_empty(raw):
                undecoded[key] = raw
        return Document(row.text, row.url, records, undecoded, address_column)

    def _row(self, line: bytes | memoryview) -> _Line:
        """The columns of a line, of which the longest one is only parsed where it must be."""
        line = bytes(line)
        parts = cut_column(line, _LONGEST_KEY, others=b'"metadata')
        if parts is not None:
            short, column = parts
            with contextlib.suppress(*UNREADABLE):  # the whole line shows what is wrong
                row = self._decoder.decode(short)
                if self._is_whole(row, column):
                    if self._long_field is not None:
                        setattr(row, self._long_field, column)
                    return row
        return self._decoder.decode(line)

    def _is_whole(self, row: _Line, column: memoryview) -> bool:
        """Whether a row without the longest column lacks nothing else of its line."""
        if self._long_field is not None and bytes(getattr(row, self._long_field)) != MARK:
            return False
        if row.text is msgspec.UNSET:
            return False
        return row.url is not None or b'"url"' not in bytes(column)


def _columns(config: MetadataConfig) -> list[str]:
    """Names (without `metadata_`) of the columns to decode, in the order of `metadata_list`."""
    columns = []
    for key in config.metadata_list:
        columns += [*type_of(key).columns, key]
    wanted = config.metadata_column_list
    if wanted is not None:
        columns = [name for name in columns if name in wanted] + wanted
    return list(dict.fromkeys(columns))


def _field(column: str) -> str:
    """A field name for any column name (a column's name need not be an identifier)."""
    return "column_" + column.encode().hex()


class _Line(msgspec.Struct, gc=False):
    """What every line has; `_line_type` adds the wanted columns, all others are skipped."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    url: str | None = None
    metadata: list[Record] | None = None


def _line_type(columns: list[str]) -> type[_Line]:
    """The type of a line with these columns."""
    fields: list[tuple[str, Any, Any]] = []
    for name in columns:
        if type_of(name).is_lazy:
            fields.append((_field(name), msgspec.Raw, NO_COLUMN))
        else:
            fields.append((_field(name), list[Record] | None, None))
    if ADDRESS_KEY not in columns:
        fields.append((ADDRESS_FIELD, msgspec.Raw, NO_COLUMN))
    names = {_field(name): f"metadata_{name}" for name in columns}
    names[ADDRESS_FIELD] = f"metadata_{ADDRESS_KEY}"
    line = msgspec.defstruct("Line", fields, bases=(_Line,), rename=names, gc=False)
    return cast("type[_Line]", line)
