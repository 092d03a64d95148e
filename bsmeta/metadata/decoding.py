"""Decodes lines of a shard into `Document`s with their metadata.

This is the first stage of the flow (line -> document -> sampled types -> rendered text). Only the
metadata columns named in the configuration are decoded, and columns of lazy types (one record per
html tag) only when they are rendered. `DocumentDecoder` reads the published forms. With
`data_config.columns`, `MappingDecoder` reads any other form: a dotted path locates the value of
each type (`metadata.url`), a plain value becomes a global record, a list of records is used
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
from bsmeta.metadata.content import WHOLE_TEXT, KeptText, read_content_spans
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

_COLON_BEFORE_LIST = re.compile(rb"\s*:\s*(?=\[)")

_LIST_END = b"}]"
"""The end of a list of records; if a line has white space between them, it is parsed as a whole."""

_METADATA_KEY_START = b'"metadata'
"""The beginning of keys that must not be cut out together with a column."""

_AFTER_COLUMN = re.compile(rb'\s*(?:,\s*"|\}\s*\Z)')  # the next key, or the end of the line

ADDRESS_FIELD = "address_column"
"""The field of the address column in a line, if that column is not requested as metadata."""

_CUT_OUT = msgspec.Raw(MARK)
_LONGEST_KEY = f'"metadata_{LONGEST_COLUMN}"'.encode()

TEXT_KEY = "text"
"""The name under which `columns` maps the text."""

SOURCE_KEY = "source"
"""The metadata type whose value is the name of a document's source in a mixture."""

_PLAIN_TYPES = str | int | float | bool | None
_TEXT_TYPE = str | msgspec.UnsetType
_VALUE_TYPE = _PLAIN_TYPES | list[Record | str | int | float | bool | None]
_NON_OBJECT_TYPES = str | int | float | bool | list[msgspec.Raw] | None
"""Types of values that may occur instead of an object; the document then lacks paths into it."""

_FieldTree = dict[str, Any]
"""The fields of an object by name: a type (a leaf), or the `_FieldTree` of an inner object."""


class Decoder(ABC):
    """Decodes the lines of a shard into documents.

    Args:
        config: `metadata_list` and `metadata_column_list` select the columns to decode.
        source: The name of the source in a mixture; added to documents that do not name one.
        content: The part of the text to keep (`data_config.content`).

    Attributes:
        columns: Names or dotted paths of the columns to read; a reader may skip all others.
        lazy_columns: The columns among them that a reader may leave out of a `PartialLine`.
    """

    def __init__(self, config: MetadataConfig, source: str, content: str) -> None:
        adds_source = source != "" and SOURCE_KEY in config.metadata_list
        self._source = Record(source, SOURCE_KEY, "global") if adds_source else None
        self._content = content

    def _set_columns(self, columns: Set[str], lazy_keys: dict[str, str]) -> None:
        """Sets the columns to read.

        Args:
            columns: Names or dotted paths, without the column of content spans.
            lazy_keys: The key of the type of each lazy column, by column.
        """
        self.columns = frozenset(
            columns if self._content == WHOLE_TEXT else {*columns, CONTENT_SPANS}
        )
        self.lazy_columns = frozenset(lazy_keys)
        self._lazy_keys = lazy_keys

    def decode(self, line: Line) -> Document:
        """Decodes a line.

        Columns of lazy types are not decoded here; only their syntax is checked, and not even that
        of the longest column. Rendering may still reject their records.

        Raises:
            BadDocument: `not_json`, `not_an_object`, `missing_text`, `text_not_string` or
                `wrong_type`; also the reasons of `KeptText` and `read_content_spans`.
        """
        document = self._decode_line(line)
        if self._content != WHOLE_TEXT:
            document.keep(KeptText(document.text, read_content_spans(line, self._content)))
        if self._source is not None and not document.has(SOURCE_KEY):
            document.add(SOURCE_KEY, self._source)
        return document

    @abstractmethod
    def _decode_line(self, line: Line) -> Document:
        """Decodes a line into a document with its whole text."""

    def _list_encoders(self, line: Line) -> dict[str, Undecoded]:
        """Returns the functions that encode the lazy columns of a partial line, by type."""
        if not isinstance(line, PartialLine):
            return {}

        encoders: dict[str, Undecoded] = {}
        for column, key in self._lazy_keys.items():
            if column in line.lazy_columns:
                encoders[key] = line.lazy_columns[column]
        return encoders


def make_decoder(
    config: MetadataConfig, columns: Mapping[str, str], source: str = "", content: str = WHOLE_TEXT
) -> Decoder:
    """Returns the decoder for a corpus.

    Args:
        config: See `Decoder`.
        columns: The path of the text and of each type; empty for the published forms.
        source: See `Decoder`.
        content: See `Decoder`.

    Raises:
        ConfigurationError: See `MappingDecoder`.
    """
    if columns:
        return MappingDecoder(config, columns, source, content)
    return DocumentDecoder(config, source, content)


def cut_column(line: bytes, key: bytes) -> tuple[bytes, memoryview] | None:
    """Replaces a column of a line with `MARK`.

    The search for the end of the column begins at the end of the line, where the other columns are
    short. It may match in the wrong place: the rest of the line is then not JSON, or does not have
    `MARK` in this column. The columns after it may be cut out as well, unless their keys begin with
    `_METADATA_KEY_START`.

    Args:
        key: The column's key, in quotation marks.

    Returns:
        The shortened line and the column; None if the column cannot be found.
    """
    key_start = line.find(key)
    if key_start < 0:
        return None
    colon = _COLON_BEFORE_LIST.match(line, key_start + len(key))
    if colon is None:
        return None

    begin = colon.end()
    stop = len(line)
    while True:
        end = _find_last_list_end(line, begin, stop)
        if end is None:
            return None

        # If another column begins in the range, the list belongs to that column.
        stop = line.rfind(_METADATA_KEY_START, begin, end)
        if stop < 0:
            return line[:begin] + MARK + line[end:], memoryview(line)[begin:end]


def _find_last_list_end(line: bytes, begin: int, stop: int) -> int | None:
    """Returns the end of the last list of records in a range of a line; None if there is none.

    A key, which may begin at `stop`, or the end of the line must follow the list.
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

    def __init__(self, config: MetadataConfig, source: str = "", content: str = WHOLE_TEXT) -> None:
        super().__init__(config, source, content)
        columns = _list_columns(config)
        keys_by_column = map_columns()
        lazy = [name for name in columns if find_type(name).is_lazy]
        eager = [name for name in columns if not find_type(name).is_lazy]
        self._lazy_fields = [(_name_field(name), name) for name in lazy]
        self._eager_fields = [(_name_field(name), keys_by_column.get(name, name)) for name in eager]
        self._longest_field = _name_field(LONGEST_COLUMN) if LONGEST_COLUMN in columns else None

        line_type = _build_line_type(columns)
        self._decoder = ForeignDecoder(line_type)
        names = {field.encode_name for field in msgspec.structs.fields(line_type)}
        self._set_columns(names, {f"metadata_{name}": name for name in lazy})

    def _decode_line(self, line: Line) -> Document:
        try:
            row = self._decode_row(line)
        except UNREADABLE as error:
            raise classify_bad_document(error) from error
        if isinstance(row.text, msgspec.UnsetType):
            raise BadDocument("missing_text", "the object has no `text`")

        address_column = getattr(row, ADDRESS_FIELD, NO_COLUMN)
        records: dict[str, list[Record]] = {}
        if row.metadata is not None:
            if not all(record.key for record in row.metadata):
                raise BadDocument("wrong_type", "a record of the list `metadata` has no `key`")
            group_records(records, "", row.metadata)
            return Document(row.text, row.url, records, address_column=address_column)

        for field, key in self._eager_fields:
            group_records(records, key, getattr(row, field))
        undecoded: dict[str, Undecoded] = {}
        for field, key in self._lazy_fields:
            raw = getattr(row, field)
            if not is_empty(raw):
                undecoded[key] = raw
        undecoded |= self._list_encoders(line)
        return Document(row.text, row.url, records, undecoded, address_column)

    def _decode_row(self, line: Line) -> _Line:
        """Decodes the columns of a line; parses the longest column only if necessary.

        Raises:
            msgspec.DecodeError: If the line is not JSON of the expected types.
        """
        if isinstance(line, PartialLine):
            return self._decoder.decode(line.text)

        whole_line = bytes(line)
        row = self._decode_without_longest(whole_line)
        return self._decoder.decode(whole_line) if row is None else row

    def _decode_without_longest(self, line: bytes) -> _Line | None:
        """Decodes a line whose longest column is cut out first, and stays undecoded.

        Returns:
            None if the column cannot be cut out, or if the line may be invalid: decoding the whole
            line then reports the error.
        """
        cut_line = cut_column(line, _LONGEST_KEY)
        if cut_line is None:
            return None

        short_line, column = cut_line
        try:
            row = self._decoder.decode(short_line)
        except UNREADABLE:
            return None
        if not self._is_whole(row, column):
            return None

        if self._longest_field is not None:
            setattr(row, self._longest_field, column)
        return row

    def _is_whole(self, row: _Line, column: memoryview) -> bool:
        """Whether a row that was decoded without the longest column has all other columns."""
        if self._longest_field is not None and getattr(row, self._longest_field) != _CUT_OUT:
            return False
        if row.text is msgspec.UNSET:
            return False
        return row.url is not None or b'"url"' not in bytes(column)


def _list_columns(config: MetadataConfig) -> list[str]:
    """Returns the names (without `metadata_`) of the columns to decode, by `metadata_list`."""
    columns: list[str] = []
    for key in config.metadata_list:
        columns += [*find_type(key).columns, key]
    selected = config.metadata_column_list
    if selected is not None:
        columns = [name for name in columns if name in selected] + selected
    return list(dict.fromkeys(columns))


def _name_field(name: str) -> str:
    """Returns a valid name of a struct's field for a column, whose name may be any string."""
    return "field_" + name.encode().hex()


class _Line(msgspec.Struct, gc=False):
    """The columns that are read from every line; `_build_line_type` adds the requested ones."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    url: str | None = None
    metadata: list[Record] | None = None


def _build_line_type(columns: list[str]) -> type[_Line]:
    """Builds the struct type of a line with some columns; a decoder skips all others.

    Args:
        columns: Names without `metadata_`.
    """
    fields: list[tuple[str, Any, Any]] = []
    for name in columns:
        if find_type(name).is_lazy:
            fields.append((_name_field(name), msgspec.Raw, NO_COLUMN))
        else:
            fields.append((_name_field(name), list[Record] | None, None))
    if ADDRESS_KEY not in columns:
        fields.append((ADDRESS_FIELD, msgspec.Raw, NO_COLUMN))

    columns_by_field = {_name_field(name): f"metadata_{name}" for name in columns}
    columns_by_field[ADDRESS_FIELD] = f"metadata_{ADDRESS_KEY}"
    line_type = msgspec.defstruct("Line", fields, bases=(_Line,), rename=columns_by_field, gc=False)
    return cast("type[_Line]", line_type)


class MappingDecoder(Decoder):
    """Decodes lines in which configured paths locate the text and the metadata.

    A document does not have a type if its path is missing, null or an empty string.

    Args:
        columns: The path of the text (`text` if it is not mapped) and of each type.

    Raises:
        ConfigurationError: If a lazy type shares its column with another type.
    """

    def __init__(
        self, config: MetadataConfig, columns: Mapping[str, str], source: str, content: str
    ) -> None:
        super().__init__(config, source, content)
        self._text_path = columns.get(TEXT_KEY, TEXT_KEY)
        paths = {key: columns[key] for key in columns if key in config.metadata_list}
        lazy_paths = {key: path for key, path in paths.items() if find_type(key).is_lazy}
        value_paths = {key: path for key, path in paths.items() if key not in lazy_paths}
        _refuse_shared_columns(lazy_paths, columns)

        tree: _FieldTree = {}
        _add_leaf(tree, self._text_path, _TEXT_TYPE)
        for key, path in paths.items():
            _add_leaf(tree, path, msgspec.Raw if key in lazy_paths else _VALUE_TYPE)

        address_path = columns.get(ADDRESS_KEY, ADDRESS_KEY)
        self._get_address: Callable[[Any], Any] = lambda _: None
        if ADDRESS_KEY not in paths:  # compared with held-out addresses, but not trained on
            _add_leaf(tree, address_path, msgspec.Raw)
            self._get_address = _make_getter(address_path)

        # A reader can leave out only whole columns, not the fields of a struct.
        lazy_keys = {path: key for key, path in lazy_paths.items() if path in tree}
        self._set_columns({self._text_path, address_path, *paths.values()}, lazy_keys)

        self._decoder = ForeignDecoder(_build_struct(tree))
        self._get_text = _make_getter(self._text_path)
        self._lazy_getters = {key: _make_getter(path) for key, path in lazy_paths.items()}
        self._value_getters = {key: _make_getter(path) for key, path in value_paths.items()}

    def _decode_line(self, line: Line) -> Document:
        row = self._decode_row(line)
        text = self._get_text(row)
        if type(text) is not str:
            raise BadDocument("missing_text", f"the object has no `{self._text_path}`")

        undecoded: dict[str, Undecoded] = {}
        for key, get_raw in self._lazy_getters.items():
            raw = get_raw(row)
            if raw is not None and not is_empty(raw):
                undecoded[key] = raw
        undecoded |= self._list_encoders(line)

        records = self._read_records(row)
        address = self._get_address(row)
        if type(address) is str:
            return Document(text, address, records, undecoded)
        address_column = address if type(address) is msgspec.Raw else NO_COLUMN
        return Document(text, None, records, undecoded, address_column)

    def _read_records(self, row: Any) -> dict[str, list[Record]]:
        """Returns the records of a row by key, except those of lazy types."""
        records: dict[str, list[Record]] = {}
        for key, get_value in self._value_getters.items():
            value = get_value(row)
            if _is_absent(value):
                continue
            if type(value) is list:
                present_items = [_make_record(item, key) for item in value if not _is_absent(item)]
                group_records(records, key, present_items)
            else:
                records[key] = [_make_record(value, key)]
        return records

    def _decode_row(self, line: Line) -> Any:
        """Decodes the mapped fields of a line.

        Raises:
            BadDocument: If the line is not JSON of the expected types.
        """
        try:
            return self._decoder.decode(line.text if isinstance(line, PartialLine) else line)
        except UNREADABLE as error:
            bad_document = classify_bad_document(error)
            is_about_text = bad_document.detail.endswith(f"`$.{self._text_path}`")
            if bad_document.reason == "wrong_type" and is_about_text:
                bad_document = BadDocument("text_not_string", bad_document.detail)
            raise bad_document from error


def _refuse_shared_columns(lazy_paths: Mapping[str, str], columns: Mapping[str, str]) -> None:
    """Refuses a column of a lazy type that is also mapped to another key.

    Args:
        lazy_paths: The path of each lazy type.
        columns: The path of the text and of each type.

    Raises:
        ConfigurationError: Naming the column and both keys.
    """
    for key, path in lazy_paths.items():
        other_keys = [other for other in columns if columns[other] == path and other != key]
        if other_keys:
            raise ConfigurationError(
                f"data_config.columns: {path} is mapped to {key} and to {other_keys[0]}; the "
                f"records of {key} need a column of their own; drop one of the two"
            )


def _is_absent(value: Any) -> bool:
    """Whether a mapped value means that the document does not have the type."""
    return value is None or value == ""


def _make_record(value: Record | str | int | float, key: str) -> Record:
    """Converts a plain value to a global record with a key; returns a record unchanged."""
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


def _add_leaf(tree: _FieldTree, path: str, leaf: Any) -> None:
    """Adds the type of the value at a path, unless the path or its beginning has a type already."""
    *outer_names, last_name = path.split(".")
    for name in outer_names:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            return
    tree.setdefault(last_name, leaf)


def _build_struct(tree: _FieldTree) -> type[msgspec.Struct]:
    """Builds the struct type of an object with some fields; a decoder skips all others."""
    fields: list[tuple[str, Any, Any]] = []
    for name, node in tree.items():
        if isinstance(node, dict):
            fields.append((_name_field(name), _build_struct(node) | _NON_OBJECT_TYPES, None))
        elif node is msgspec.Raw:
            fields.append((_name_field(name), msgspec.Raw, NO_COLUMN))
        else:
            default = msgspec.UNSET if node is _TEXT_TYPE else None
            fields.append((_name_field(name), node, default))

    names_by_field = {_name_field(name): name for name in tree}
    return msgspec.defstruct("Mapped", fields, rename=names_by_field, gc=False)
