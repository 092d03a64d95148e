"""Decoding: a line of a shard becomes a `Document` with its metadata.

First stage of the flow (line -> document -> sampled types -> rendered text). Decoding is typed:
only the metadata columns named in the configuration are decoded, and those of lazy types (one
record per html tag) only when they are rendered.

Nine tenths of a line are html tags, which most documents do not use, and a parser takes as long to
skip them as for everything else. So a long column is cut out of its line before the line is parsed.
Its start and end are found by searching for keys: no JSON string can contain a key with its
quotation marks, because quotation marks in a string are escaped. The result depends on the line
alone, never on earlier lines: a resumed run starts in the middle of a shard and must treat each
line as the uninterrupted run did. A reader that need not search, because it has columns, gives a
`PartialLine` without the long one.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, cast

import msgspec

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.processors import ADDRESS_KEY, LONGEST_COLUMN, column_keys, type_of
from bsmeta.metadata.records import (
    NO_COLUMN,
    UNREADABLE,
    BadDocument,
    Document,
    Line,
    PartialLine,
    Record,
    Undecoded,
    bad_document,
    group,
    is_empty,
)

MARK = b"-1"
"""Placeholder for a column that was cut out; not a list of records."""

_LIST_BEGINS = re.compile(rb"\s*:\s*(?=\[)")
_OTHERS = b'"metadata'  # prefix of the keys that must not be cut out with a column
_LIST_ENDS = b"}]"  # of records; if there is a space in it, the whole line is parsed
_NEXT = re.compile(rb'\s*(?:,\s*"|\}\s*\Z)')  # what follows a column: the next key, or the end


def cut_column(line: bytes, key: bytes) -> tuple[bytes, memoryview] | None:
    """Replace a column of the line with `MARK`; return the new line and the column.

    The search runs from the end of the line, where the other columns are short. It may match in the
    wrong place: the rest of the line is then not JSON, or does not have `MARK` in this column.
    Columns after its list whose keys do not begin with `_OTHERS` may be cut out with it.

    Args:
        key: The column's key, in quotation marks.

    Returns:
        None if the column cannot be found.
    """
    place = line.find(key)
    colon = _LIST_BEGINS.match(line, place + len(key)) if place >= 0 else None
    if colon is None:
        return None
    begin, stop = colon.end(), len(line)
    while (end := _last_list_end(line, begin, stop)) is not None:
        stop = line.rfind(_OTHERS, begin, end)
        if stop < 0:
            return line[:begin] + MARK + line[end:], memoryview(line)[begin:end]
    return None


def _last_list_end(line: bytes, begin: int, stop: int) -> int | None:
    """End of the last list of records in a range that is followed by a key or the end of the line.

    The key may begin at `stop`.
    """
    while (place := line.rfind(_LIST_ENDS, begin, stop)) >= 0:
        end = place + len(_LIST_ENDS)
        if _NEXT.match(line, end):
            return end
        stop = place + 1
    return None


ADDRESS_FIELD = "address_column"
"""The address column if it is not among the requested columns; see `Document.addresses`."""

_MARKED = msgspec.Raw(MARK)
_LONGEST_NAME = f"metadata_{LONGEST_COLUMN}"
_LONGEST_KEY = f'"{_LONGEST_NAME}"'.encode()


class DocumentDecoder:
    """Turns the lines of a shard into documents.

    Both data formats are read: one column per type (`metadata_html`, ...), or `text` with one list
    `metadata`, which takes precedence if a line has both. A record without a `key` gets that of its
    column.

    Args:
        config: `metadata_list` and `metadata_column_list` select the columns to decode.

    Attributes:
        columns: Names of the columns that are decoded; a reader may leave out all others.
        late: Those of them that a `PartialLine` may lack.
    """

    def __init__(self, config: MetadataConfig) -> None:
        columns = _columns(config)
        keys = column_keys()
        eager = [name for name in columns if not type_of(name).is_lazy]
        self._eager = [(_field(name), keys.get(name, name)) for name in eager]
        self._lazy = [(_field(name), name) for name in columns if type_of(name).is_lazy]
        line = _line_type(columns)
        self._decoder = msgspec.json.Decoder(line)
        self.columns = frozenset(field.encode_name for field in msgspec.structs.fields(line))
        self._long_field = _field(LONGEST_COLUMN) if LONGEST_COLUMN in columns else None
        self.late = self.columns & {_LONGEST_NAME}

    def decode(self, line: Line) -> Document:
        """Decode one line.

        Raises:
            BadDocument: `not_json`, `not_an_object`, `missing_text`, `text_not_string` or
                `wrong_type`. Columns of lazy types are not decoded here (only their syntax is
                checked, except that of the longest column); rendering may still reject their
                records.
        """
        try:
            row = self._row(line)
        except UNREADABLE as error:
            raise bad_document(error) from error
        if isinstance(row.text, msgspec.UnsetType):
            raise BadDocument("missing_text", "the object has no `text`")
        records: dict[str, list[Record]] = {}
        undecoded: dict[str, Undecoded] = {}
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
        if isinstance(line, PartialLine):
            for name in self.late & line.late.keys():
                undecoded[LONGEST_COLUMN] = line.late[name]
        return Document(row.text, row.url, records, undecoded, address_column)

    def _row(self, line: Line) -> _Line:
        """The columns of a line; the longest column is parsed only if necessary."""
        if isinstance(line, PartialLine):
            return self._decoder.decode(line.text)
        line = bytes(line)
        parts = cut_column(line, _LONGEST_KEY)
        if parts is not None:
            short, column = parts
            with contextlib.suppress(*UNREADABLE):  # decoding the whole line reports the error
                row = self._decoder.decode(short)
                if self._is_whole(row, column):
                    if self._long_field is not None:
                        setattr(row, self._long_field, column)
                    return row
        return self._decoder.decode(line)

    def _is_whole(self, row: _Line, column: memoryview) -> bool:
        """Whether a row decoded without the longest column has everything else in its line."""
        if self._long_field is not None and getattr(row, self._long_field) != _MARKED:
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
    """A valid field name for any column name (which need not be an identifier)."""
    return "column_" + column.encode().hex()


class _Line(msgspec.Struct, gc=False):
    """The fields of every line; `_line_type` adds the requested columns, all others are skipped."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    url: str | None = None
    metadata: list[Record] | None = None


def _line_type(columns: list[str]) -> type[_Line]:
    """The struct type of a line with these columns."""
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
