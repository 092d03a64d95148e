"""Decodes lines of a shard to `Document`s with their metadata.

This is the first stage of the flow (line -> document -> sampled types -> rendered text). Only the
metadata columns named in the configuration are decoded, and columns of lazy types (one record per
html tag) only when they are rendered. `DocumentDecoder` reads the published forms. Under
`data_config.columns`, `MappingDecoder` reads any other form, in which each type has the dotted path
of its value (`metadata.url`): a plain value becomes a global record, a list of records is used
unchanged, and the parser skips everything that is not mapped.

Nine tenths of a published line are html tags, which most documents do not use, and a parser takes
as long per byte to skip them as to decode them. So a long column is cut out of its line before the
line is parsed. Its start and end are found by searching for keys: no JSON string can contain a key
with its quotation marks, because quotation marks in a string are escaped. The result depends on the
line alone, never on earlier lines: a resumed run starts in the middle of a shard and must treat
each line as the uninterrupted run did. Readers of columnar formats need no such search: they return
a `PartialLine` without the columns of lazy types.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from operator import attrgetter
from typing import Any, cast

import msgspec

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.metadata.annotated_columns import CONTENT_SPANS
from bsmeta.metadata.content import ALL, KeptText, read_content_spans
from bsmeta.metadata.document import NO_COLUMN, Document, Undecoded, group_records, is_empty
from bsmeta.metadata.processors import ADDRESS_KEY, LONGEST_COLUMN, find_type, map_columns
from bsmeta.metadata.records import (
    UNREADABLE,
    BadDocument,
    Line,
    PartialLine,
    Record,
    classify_bad_document,
)

MARK = b"-1"
"""Placeholder for a column that was cut out; it cannot be mistaken for a list of records."""

_LIST_START = re.compile(rb"\s*:\s*(?=\[)")

_LIST_END = b"}]"
"""The end of a list of records; if the line has a space in it, the whole line is parsed."""

_OTHER_COLUMNS = b'"metadata'
"""The beginning of keys that must not be cut out together with a column."""

_AFTER_COLUMN = re.compile(rb'\s*(?:,\s*"|\}\s*\Z)')  # the next key, or the end of the line

ADDRESS_FIELD = "address_column"
"""Name of the field for the address column if that is not requested as metadata."""

_MARKED = msgspec.Raw(MARK)
_LONGEST_KEY = f'"metadata_{LONGEST_COLUMN}"'.encode()

TEXT = "text"
"""The name under which `columns` maps the text."""

SOURCE_KEY = "source"
"""The metadata type whose value is the name of a document's source in a mixture."""

_Plain = str | int | float | bool | None
_TEXT_TYPE = str | msgspec.UnsetType
_VALUE_TYPE = _Plain | list[Record | str | int | float | bool | None]
_NON_OBJECT_TYPES = str | int | float | bool | list[msgspec.Raw] | None
"""Types of values that may replace an object in a path; such a document lacks the path."""

_Tree = dict[str, Any]
"""The fields of an object: each maps to a type (a leaf), or to the `_Tree` of an inner object."""


class Decoder(ABC):
    """Decodes the lines of a shard to documents.

    Args:
        config: `metadata_list` and `metadata_column_list` select the columns to decode.
        source: The name of the source in a mixture; added to documents that do not name one.
        content: The part of the text to keep (`data_config.content`).

    Attributes:
        columns: Names or dotted paths of the columns that are read; a reader may skip all others.
        lazy_columns: The columns among them that a `PartialLine` may lack.
    """

    def __init__(self, config: MetadataConfig, source: str, content: str) -> None:
        is_named = source and SOURCE_KEY in config.metadata_list
        self._source = Record(source, SOURCE_KEY, "global") if is_named else None
        self._content = content

    def _set_columns(self, columns: Set[str], lazy_keys: dict[str, str]) -> None:
        """Sets the columns that are read.

        Args:
            lazy_keys: For each column that a `PartialLine` may lack, the key of its type.
        """
        self.columns = frozenset(columns if self._content == ALL else {*columns, CONTENT_SPANS})
        self.lazy_columns = frozenset(lazy_keys)
        self._lazy_keys = lazy_keys

    def decode(self, line: Line) -> Document:
        """Decodes a line.

        Columns of lazy types are not decoded here: only their syntax is checked, except in the
        longest column. Rendering may still reject their records.

        Raises:
            BadDocument: `not_json`, `not_an_object`, `missing_text`, `text_not_string` or
                `wrong_type`; also the reasons of `KeptText` and `read_content_spans`.
        """
        document = self._decode_line(line)
        if self._content != ALL:
            document.keep(KeptText(document.text, read_content_spans(line, self._content)))
        if self._source is not None and not document.has(SOURCE_KEY):
            document.add(SOURCE_KEY, self._source)
        return document

    @abstractmethod
    def _decode_line(self, line: Line) -> Document:
        """Decodes a line to a document with its whole text."""

    def _map_lazy_columns(self, line: Line) -> dict[str, Undecoded]:
        """Maps the keys of lazy types to the functions with which a partial line encodes them."""
        encoders = line.lazy_columns if isinstance(line, PartialLine) else {}
        return {key: encoders[name] for name, key in self._lazy_keys.items() if name in encoders}


def make_decoder(
    config: MetadataConfig, columns: Mapping[str, str], source: str = "", content: str = ALL
) -> Decoder:
    """Returns the decoder for a corpus; see `Decoder` for the other arguments.

    Args:
        columns: The path of the text and of each type; empty for the published forms.
    """
    if columns:
        return MappingDecoder(config, columns, source, content)
    return DocumentDecoder(config, source, content)


def cut_column(line: bytes, key: bytes) -> tuple[bytes, memoryview] | None:
    """Replaces a column of a line with `MARK`.

    The search runs from the end of the line, where the other columns are short. It may match in the
    wrong place: the rest of the line is then not JSON, or does not have `MARK` in this column.
    Following columns whose keys do not begin with `_OTHER_COLUMNS` may be cut out with it.

    Args:
        key: The column's key, in quotation marks.

    Returns:
        The shortened line and the column; None if the column cannot be found.
    """
    key_start = line.find(key)
    if key_start < 0:
        return None
    colon = _LIST_START.match(line, key_start + len(key))
    if colon is None:
        return None

    begin = colon.end()
    stop = len(line)
    while (end := _find_last_list_end(line, begin, stop)) is not None:
        # If another column begins in the range, the list belongs to that column.
        stop = line.rfind(_OTHER_COLUMNS, begin, end)
        if stop < 0:
            return line[:begin] + MARK + line[end:], memoryview(line)[begin:end]
    return None


def _find_last_list_end(line: bytes, begin: int, stop: int) -> int | None:
    """Returns the end of the last list of records in a range; None if there is none.

    Such a list is followed by a key, which may begin at `stop`, or by the end of the line.
    """
    while (bracket := line.rfind(_LIST_END, begin, stop)) >= 0:
        end = bracket + len(_LIST_END)
        if _AFTER_COLUMN.match(line, end):
            return end
        stop = bracket + 1
    return None


class DocumentDecoder(Decoder):
    """Decodes the published forms.

    There are two: one column per type (`metadata_html`, ...), or a single list `metadata`, which
    takes precedence if a line has both. A record without a `key` gets the key of its column.
    """

    def __init__(self, config: MetadataConfig, source: str = "", content: str = ALL) -> None:
        super().__init__(config, source, content)
        columns = _list_columns(config)
        keys = map_columns()
        eager = [name for name in columns if not find_type(name).is_lazy]
        self._eager = [(_name_field(name), keys.get(name, name)) for name in eager]
        self._lazy = [(_name_field(name), name) for name in columns if find_type(name).is_lazy]

        line = _build_line_type(columns)
        self._decoder = ForeignDecoder(line)
        names = {field.encode_name for field in msgspec.structs.fields(line)}
        self._set_columns(names, {f"metadata_{name}": name for _, name in self._lazy})
        self._long_field = _name_field(LONGEST_COLUMN) if LONGEST_COLUMN in columns else None

    def _decode_line(self, line: Line) -> Document:
        try:
            row = self._decode_row(line)
        except UNREADABLE as error:
            raise classify_bad_document(error) from error
        if isinstance(row.text, msgspec.UnsetType):
            raise BadDocument("missing_text", "the object has no `text`")

        records: dict[str, list[Record]] = {}
        address_column = getattr(row, ADDRESS_FIELD, NO_COLUMN)
        if row.metadata is not None:
            if not all(record.key for record in row.metadata):
                raise BadDocument("wrong_type", "a record of the list `metadata` has no `key`")
            group_records(records, "", row.metadata)
            return Document(row.text, row.url, records, address_column=address_column)

        for field, key in self._eager:
            group_records(records, key, getattr(row, field))
        undecoded: dict[str, Undecoded] = {}
        for field, key in self._lazy:
            raw = getattr(row, field)
            if not is_empty(raw):
                undecoded[key] = raw
        undecoded |= self._map_lazy_columns(line)
        return Document(row.text, row.url, records, undecoded, address_column)

    def _decode_row(self, line: Line) -> _Line:
        """Decodes the columns of a line; parses the longest column only if necessary."""
        if isinstance(line, PartialLine):
            return self._decoder.decode(line.text)

        line = bytes(line)
        cut_line = cut_column(line, _LONGEST_KEY)
        if cut_line is not None:
            short_line, column = cut_line
            with contextlib.suppress(*UNREADABLE):  # decoding the whole line reports the error
                row = self._decoder.decode(short_line)
                if self._is_whole(row, column):
                    if self._long_field is not None:
                        setattr(row, self._long_field, column)
                    return row
        return self._decoder.decode(line)

    def _is_whole(self, row: _Line, column: memoryview) -> bool:
        """Whether a row that was decoded without the longest column has all other columns."""
        if self._long_field is not None and getattr(row, self._long_field) != _MARKED:
            return False
        if row.text is msgspec.UNSET:
            return False
        return row.url is not None or b'"url"' not in bytes(column)


def _list_columns(config: MetadataConfig) -> list[str]:
    """Returns the names of the columns to decode, without `metadata_`.

    They are in the order of `metadata_list`.
    """
    columns: list[str] = []
    for key in config.metadata_list:
        columns += [*find_type(key).columns, key]
    selected = config.metadata_column_list
    if selected is not None:
        columns = [name for name in columns if name in selected] + selected
    return list(dict.fromkeys(columns))


def _name_field(name: str) -> str:
    """Returns a valid field name for a column name, which may be any string."""
    return "field_" + name.encode().hex()


class _Line(msgspec.Struct, gc=False):
    """The fields of every line; `_build_line_type` adds the requested columns."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    url: str | None = None
    metadata: list[Record] | None = None


def _build_line_type(columns: list[str]) -> type[_Line]:
    """Builds the struct type of a line with the given columns; others are skipped."""
    fields: list[tuple[str, Any, Any]] = []
    for name in columns:
        if find_type(name).is_lazy:
            fields.append((_name_field(name), msgspec.Raw, NO_COLUMN))
        else:
            fields.append((_name_field(name), list[Record] | None, None))
    if ADDRESS_KEY not in columns:
        fields.append((ADDRESS_FIELD, msgspec.Raw, NO_COLUMN))
    names = {_name_field(name): f"metadata_{name}" for name in columns}
    names[ADDRESS_FIELD] = f"metadata_{ADDRESS_KEY}"
    line = msgspec.defstruct("Line", fields, bases=(_Line,), rename=names, gc=False)
    return cast("type[_Line]", line)


class MappingDecoder(Decoder):
    """Decodes lines by the configured paths of text and metadata.

    A document that lacks a path, or has null or an empty string there, does not have the type.

    Args:
        columns: The path of the text (`text` if it is not mapped) and of each type.

    Raises:
        ConfigurationError: If a lazy type shares its column with another type.
    """

    def __init__(
        self, config: MetadataConfig, columns: Mapping[str, str], source: str, content: str
    ) -> None:
        super().__init__(config, source, content)
        self._text_path = columns.get(TEXT, TEXT)
        paths = {key: columns[key] for key in columns if key in config.metadata_list}
        lazy = {key: path for key, path in paths.items() if find_type(key).is_lazy}
        _refuse_shared_columns(lazy, columns)

        tree: _Tree = {}
        _add_leaf(tree, self._text_path, _TEXT_TYPE)
        for key, path in paths.items():
            _add_leaf(tree, path, msgspec.Raw if key in lazy else _VALUE_TYPE)

        address_path = columns.get(ADDRESS_KEY, ADDRESS_KEY)
        self._address: Callable[[Any], Any] = lambda _: None
        if ADDRESS_KEY not in paths:  # compared with held-out addresses, but not trained on
            _add_leaf(tree, address_path, msgspec.Raw)
            self._address = _make_getter(address_path)

        # Only whole columns are lazy, not the fields of a struct.
        lazy_keys = {path: key for key, path in lazy.items() if path in tree}
        self._set_columns({self._text_path, address_path, *paths.values()}, lazy_keys)

        self._decoder = ForeignDecoder(_build_struct(tree))
        self._text = _make_getter(self._text_path)
        self._lazy = [(key, _make_getter(path)) for key, path in lazy.items()]
        self._values = [(key, _make_getter(path)) for key, path in paths.items() if key not in lazy]

    def _decode_line(self, line: Line) -> Document:
        row = self._decode_row(line)
        text = self._text(row)
        if type(text) is not str:
            raise BadDocument("missing_text", f"the object has no `{self._text_path}`")

        records: dict[str, list[Record]] = {}
        for key, get_value in self._values:
            value = get_value(row)
            if value is None or value == "":
                continue
            if type(value) is list:
                items = [
                    _make_record(item, key) for item in value if item is not None and item != ""
                ]
                group_records(records, key, items)
            else:
                records[key] = [_make_record(value, key)]

        undecoded: dict[str, Undecoded] = {}
        for key, get_raw in self._lazy:
            raw = get_raw(row)
            if raw is not None and not is_empty(raw):
                undecoded[key] = raw
        undecoded |= self._map_lazy_columns(line)

        address = self._address(row)
        if type(address) is str:
            return Document(text, address, records, undecoded)
        address_column = address if type(address) is msgspec.Raw else NO_COLUMN
        return Document(text, None, records, undecoded, address_column)

    def _decode_row(self, line: Line) -> Any:
        """Decodes the mapped fields of a line.

        Raises:
            BadDocument: If the line is not JSON of the expected types.
        """
        try:
            return self._decoder.decode(line.text if isinstance(line, PartialLine) else line)
        except UNREADABLE as error:
            bad_document = classify_bad_document(error)
            if bad_document.reason == "wrong_type" and bad_document.detail.endswith(
                f"`$.{self._text_path}`"
            ):
                bad_document = BadDocument("text_not_string", bad_document.detail)
            raise bad_document from error


def _refuse_shared_columns(lazy: Mapping[str, str], columns: Mapping[str, str]) -> None:
    """Checks that no column of a lazy type is also mapped to another key.

    Args:
        lazy: The path of each lazy type.
        columns: The path of the text and of each type.

    Raises:
        ConfigurationError: If one is.
    """
    for key, path in lazy.items():
        other_keys = [other for other in columns if columns[other] == path and other != key]
        if other_keys:
            raise ConfigurationError(
                f"data_config.columns: {path} is mapped to {key} and to {other_keys[0]}; the "
                f"records of {key} need a column of their own; drop one of the two"
            )


def _make_record(value: Record | str | int | float, key: str) -> Record:
    """Returns a record unchanged, or a plain value as a global record."""
    if type(value) is Record:
        return value
    if type(value) is bool:
        value = "true" if value else "false"
    return Record(value, key, "global")  # type: ignore[arg-type]


def _make_getter(path: str) -> Callable[[Any], Any]:
    """Returns a function that returns the value at a path of a decoded row, or None if missing."""
    fields = [_name_field(name) for name in path.split(".")]
    if len(fields) == 1:
        return attrgetter(fields[0])

    def get_value(row: Any) -> Any:
        for field in fields:
            row = getattr(row, field, None)
        return row

    return get_value


def _add_leaf(tree: _Tree, path: str, leaf: Any) -> None:
    """Adds the type of the value at a path, unless the path or a part of it is already mapped."""
    *outer, last = path.split(".")
    for name in outer:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            return
    tree.setdefault(last, leaf)


def _build_struct(tree: _Tree) -> type[msgspec.Struct]:
    """Builds the struct type of an object with the given fields; others are skipped."""
    fields: list[tuple[str, Any, Any]] = []
    for name, node in tree.items():
        if isinstance(node, dict):
            fields.append((_name_field(name), _build_struct(node) | _NON_OBJECT_TYPES, None))
        elif node is msgspec.Raw:
            fields.append((_name_field(name), msgspec.Raw, NO_COLUMN))
        else:
            default = msgspec.UNSET if node is _TEXT_TYPE else None
            fields.append((_name_field(name), node, default))

    names = {_name_field(name): name for name in tree}
    return msgspec.defstruct("Mapped", fields, rename=names, gc=False)
