"""Records: a line of a shard becomes a `Document` with its metadata.

First step of the flow (line -> document -> chosen types -> rendered text). Decoding is typed:
the metadata columns that the configuration names are the only ones that are decoded, and the
long ones among them (one record for each html tag) only when they are rendered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from bsmeta.config.metadata import COLUMN_KEYS, MetadataConfig
from bsmeta.metadata.columns import MARK, UNREADABLE, cut_column, first_of

LAZY_COLUMNS = frozenset({"html", "entity", "entity_paragraph", "paragraph"})
"""Columns with many records: kept as bytes until the document is rendered with them."""

LONGEST_COLUMN = "html"
LONGEST_KEY = b'"metadata_html"'

ADDRESS_FIELD = "address_column"
"""The column of `url` where it is not one of the wanted ones; see `Document.addresses`."""

NO_COLUMN = msgspec.Raw()

_EMPTY_LIST_BYTES = 16  # a raw column at most this long may be `[]` or `null`, with spaces


class BadDocument(ValueError):
    """A document that cannot be used.

    Attributes:
        reason: A short slug to count by, such as `not_json` or `position_beyond_text`.
        detail: What was found, and where.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Record(msgspec.Struct, gc=False):
    """One metadata record: global (about the document) or local (about a span of its text).

    `html_attrs` stays JSON: the same attributes come again and again, and the html type remembers
    how they read.
    """

    value: str | int | float
    key: str | None = None
    type: Literal["global", "local"] | None = None
    char_start_idx: int | None = None
    char_end_idx: int | None = None
    relative_start_pos: int | None = None
    relative_end_pos: int | None = None
    html_attrs: msgspec.Raw = msgspec.Raw(b"null")

    def is_local(self) -> bool:
        """Whether the record is about a span; told by the span where `type` is missing."""
        if self.type is None:
            return self.char_start_idx is not None
        return self.type == "local"


_RECORD_LIST = msgspec.json.Decoder(list[Record] | None)


class Document:
    """A document: its text, its address, and its metadata records by key.

    Attributes:
        text: The plain text; may be empty.
        url: The `url` column (not the metadata record), if there is one.
    """

    __slots__ = ("_address_column", "_records", "_undecoded", "text", "url")

    def __init__(
        self,
        text: str,
        url: str | None,
        records: dict[str, list[Record]],
        undecoded: dict[str, msgspec.Raw] | None = None,
        address_column: msgspec.Raw = NO_COLUMN,
    ) -> None:
        self.text = text
        self.url = url
        self._records = records
        self._undecoded = undecoded or {}
        self._address_column = address_column

    def has(self, key: str) -> bool:
        """Whether the document has a record of this metadata key."""
        return key in self._records or key in self._undecoded

    def records(self, key: str) -> Sequence[Record]:
        """The records of a key, in the order of the data.

        Raises:
            BadDocument: If a column that was left undecoded does not hold valid records.
        """
        raw = self._undecoded.get(key)
        if raw is not None:
            _group(self._records, key, _decode_column(key, raw))
            del self._undecoded[key]
        return self._records.get(key, ())

    def addresses(self) -> set[str]:
        """What the `url` column and the metadata records of `url` hold.

        The records are read whether `metadata_list` has `url` or not; a column of them that nobody
        asked for, and that holds none, is no reason to refuse the document.
        """
        found = {str(record.value) for record in self._records.get("url", ())}
        if self.url is not None:
            found.add(self.url)
        if not _is_empty(self._address_column):
            with contextlib.suppress(BadDocument):
                records = _decode_column("url", self._address_column) or []
                found.update(str(record.value) for record in records)
        return found


def _decode_column(column: str, raw: msgspec.Raw) -> list[Record] | None:
    try:
        return _RECORD_LIST.decode(raw)
    except UNREADABLE as error:
        with contextlib.suppress(*UNREADABLE):
            alone = first_of(memoryview(raw))
            if alone != bytes(raw):
                return _decode_column(column, msgspec.Raw(alone))
        raise bad_document(error, f"metadata_{column}: ") from error


def _group(
    groups: dict[str, list[Record]], column_key: str, records: Sequence[Record] | None
) -> None:
    """Add records to the groups by their key; one without a key has that of its column."""
    if not records:
        return
    keys = {record.key for record in records}
    if len(keys) == 1:  # as in a column of html: taken over as they are
        groups.setdefault(records[0].key or column_key, []).extend(records)
        return
    for record in records:
        groups.setdefault(record.key or column_key, []).append(record)


def _is_empty(raw: msgspec.Raw) -> bool:
    """Whether an undecoded column holds no records (it is absent, `null` or `[]`)."""
    found = memoryview(raw)
    if len(found) > _EMPTY_LIST_BYTES:
        return False
    return bytes(found).translate(None, b" \t\r\n") in (b"", b"[]", b"null")


def bad_document(error: Exception, where: str = "") -> BadDocument:
    """Name what is wrong from the decoder's error, with the part of the line it is about."""
    detail = f"{where}{error}"
    if not isinstance(error, msgspec.ValidationError):
        return BadDocument("not_json", detail)
    if "`$.text`" in detail:
        return BadDocument("text_not_string", detail)
    if not where and " - at `$" not in detail:
        return BadDocument("not_an_object", detail)
    return BadDocument("wrong_type", detail)


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
        eager = [name for name in columns if name not in LAZY_COLUMNS]
        self._eager = [(_field(name), COLUMN_KEYS.get(name, name)) for name in eager]
        self._lazy = [(_field(name), name) for name in columns if name in LAZY_COLUMNS]
        self._decoder = msgspec.json.Decoder(_line_type(columns))
        self._long_field = _field(LONGEST_COLUMN) if LONGEST_COLUMN in columns else None

    def decode(self, line: bytes | memoryview) -> Document:
        """Decode one line.

        Args:
            line: A JSON object in UTF-8.

        Raises:
            BadDocument: `not_json`, `not_an_object`, `missing_text`, `text_not_string` or
                `wrong_type`. Columns of `LAZY_COLUMNS` are not looked into here (only the syntax
                of all but the longest one is checked); rendering may still refuse their records.
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
            _group(records, "", row.metadata)
            return Document(row.text, row.url, records, address_column=address_column)
        for field, key in self._eager:
            _group(records, key, getattr(row, field))
        for field, key in self._lazy:
            raw = getattr(row, field)
            if not _is_empty(raw):
                undecoded[key] = raw
        return Document(row.text, row.url, records, undecoded, address_column)

    def _row(self, line: bytes | memoryview) -> _Line:
        """The columns of a line, of which the longest one is only parsed where it must be."""
        line = bytes(line)
        parts = cut_column(line, LONGEST_KEY, others=b'"metadata')
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
        columns += [name for name, column_key in COLUMN_KEYS.items() if column_key == key]
        columns.append(key)
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
        if name in LAZY_COLUMNS:
            fields.append((_field(name), msgspec.Raw, NO_COLUMN))
        else:
            fields.append((_field(name), list[Record] | None, None))
    if "url" not in columns:
        fields.append((ADDRESS_FIELD, msgspec.Raw, NO_COLUMN))
    names = {_field(name): f"metadata_{name}" for name in columns}
    names[ADDRESS_FIELD] = "metadata_url"
    line = msgspec.defstruct("Line", fields, bases=(_Line,), rename=names, gc=False)
    return cast("type[_Line]", line)
