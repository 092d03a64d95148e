"""Decode the records of any corpus, whose columns are mapped onto text and metadata types.

The same stage as `decoding`, for `data_config.columns`: each type has the dotted path of its value
(`metadata.url`). A plain value becomes a global record, a list of records stays what it is. Only
the mapped values are decoded; the parser skips everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.metadata.content import ALL, COLUMN, KeptText, content_spans
from bsmeta.metadata.decoding import DocumentDecoder
from bsmeta.metadata.processors import ADDRESS_KEY, LONGEST_COLUMN, type_of
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

TEXT = "text"
"""The name under which `columns` maps the text."""

SOURCE_KEY = "source"
"""The metadata type whose value is the name of the source that a document comes from."""

_Plain = str | int | float | bool | None
_TEXT_TYPE = str | msgspec.UnsetType
_VALUE_TYPE = _Plain | list[Record | str | int | float | bool | None]
_OTHER = str | int | float | bool | list[msgspec.Raw] | None
"""Values that may occur where a path continues into an object: the record lacks the path."""

_Tree = dict[str, Any]  # the fields of an object: a type (a leaf), or the `_Tree` of an object


class Decoder(Protocol):
    """Turns the lines of a shard into documents.

    Attributes:
        columns: Names or dotted paths of what it reads; a reader may leave out everything else.
        late: Those of them that a `PartialLine` may lack.
    """

    columns: frozenset[str]
    late: frozenset[str]

    def decode(self, line: Line) -> Document:
        """Decodes one line."""


def make_decoder(
    config: MetadataConfig, columns: Mapping[str, str], source: str = "", content: str = ALL
) -> Decoder:
    """The decoder of a corpus.

    Args:
        columns: The path of the text and of each type; empty for the record form.
        source: The name of the source, in a mixture.
        content: The part of the text to keep (`data_config.content`).
    """
    decoder: Decoder
    decoder = MappingDecoder(config, columns) if columns else DocumentDecoder(config)
    if content != ALL:
        decoder = _ContentDecoder(decoder, content)
    if source and SOURCE_KEY in config.metadata_list:
        return _NamedSourceDecoder(decoder, source)
    return decoder


class MappingDecoder:
    """Decodes records by the paths of their text and metadata.

    A record that lacks a path, or has null or an empty string there, lacks that type.

    Args:
        columns: The path of the text (`text` if it is not mapped) and of each type.

    Attributes:
        columns: Its paths; a reader may leave out everything else.
        late: Those of them that a `PartialLine` may lack.

    Raises:
        ConfigurationError: If a type with a column of many records shares it with another type.
    """

    def __init__(self, config: MetadataConfig, columns: Mapping[str, str]) -> None:
        self._text_path = columns.get(TEXT, TEXT)
        self._address: Callable[[Any], Any] = _nothing
        tree: _Tree = {}
        paths = {key: columns[key] for key in columns if key in config.metadata_list}
        lazy = {key: path for key, path in paths.items() if type_of(key).is_lazy}
        for key, path in lazy.items():
            shared = [other for other in columns if columns[other] == path and other != key]
            if shared:
                raise ConfigurationError(
                    f"data_config.columns: {path} is mapped to {key} and to {shared[0]}; the "
                    f"records of {key} need a column of their own; drop one of the two"
                )
        _add_leaf(tree, self._text_path, _TEXT_TYPE)
        for key, path in paths.items():
            _add_leaf(tree, path, msgspec.Raw if key in lazy else _VALUE_TYPE)
        address = columns.get(ADDRESS_KEY, ADDRESS_KEY)
        if ADDRESS_KEY not in paths:  # compared with the held-out ones, but not trained on
            _add_leaf(tree, address, msgspec.Raw)
            self._address = _getter(address)
        self.columns = frozenset((self._text_path, address, *paths.values()))
        longest = [path for key, path in lazy.items() if type_of(key).is_longest]
        self.late = frozenset(path for path in longest if path in tree)  # no field of a struct
        self._decoder = msgspec.json.Decoder(_struct(tree))
        self._text = _getter(self._text_path)
        self._lazy = [(key, _getter(path)) for key, path in lazy.items()]
        self._values = [(key, _getter(path)) for key, path in paths.items() if key not in lazy]

    def decode(self, line: Line) -> Document:
        """Decodes one line.

        Raises:
            BadDocument: `not_json`, `not_an_object`, `missing_text`, `text_not_string`, or
                `wrong_type` (an object where a value or a list of records is expected).
        """
        try:
            row = self._decoder.decode(line.text if isinstance(line, PartialLine) else line)
        except UNREADABLE as error:
            raise self._bad_document(error) from error
        text = self._text(row)
        if type(text) is not str:
            raise BadDocument("missing_text", f"the object has no `{self._text_path}`")
        records: dict[str, list[Record]] = {}
        for key, value_of in self._values:
            value = value_of(row)
            if value is None or value == "":
                continue
            if type(value) is list:
                group(records, key, [_record(item, key) for item in value if item is not None])
            else:
                records[key] = [_record(value, key)]
        undecoded: dict[str, Undecoded] = {}
        for key, raw_of in self._lazy:
            raw = raw_of(row)
            if raw is not None and not is_empty(raw):
                undecoded[key] = raw
        if isinstance(line, PartialLine):
            for name in self.late & line.late.keys():
                undecoded[LONGEST_COLUMN] = line.late[name]
        address = self._address(row)
        if type(address) is str:
            return Document(text, address, records, undecoded)
        return Document(
            text, None, records, undecoded, address if type(address) is msgspec.Raw else NO_COLUMN
        )

    def _bad_document(self, error: Exception) -> BadDocument:
        bad = bad_document(error)
        if bad.reason == "wrong_type" and bad.detail.endswith(f"`$.{self._text_path}`"):
            return BadDocument("text_not_string", bad.detail)
        return bad


class _ContentDecoder:
    """Cuts documents to the main content that an extractor found."""

    def __init__(self, decoder: Decoder, content: str) -> None:
        self.columns = decoder.columns | {COLUMN}
        self.late = decoder.late
        self._decoder = decoder
        self._content = content

    def decode(self, line: Line) -> Document:
        document = self._decoder.decode(line)
        document.keep(KeptText(document.text, content_spans(line, self._content)))
        return document


class _NamedSourceDecoder:
    """Adds the name of the source to documents that do not state one themselves."""

    def __init__(self, decoder: Decoder, source: str) -> None:
        self.columns = decoder.columns
        self.late = decoder.late
        self._decoder = decoder
        self._record = Record(source, SOURCE_KEY, "global")

    def decode(self, line: Line) -> Document:
        document = self._decoder.decode(line)
        if not document.has(SOURCE_KEY):
            document.add(SOURCE_KEY, self._record)
        return document


def _nothing(_: Any) -> None:
    return None


def _record(value: Record | str | int | float, key: str) -> Record:
    if type(value) is Record:
        return value
    if type(value) is bool:
        value = "true" if value else "false"
    return Record(value, key, "global")  # type: ignore[arg-type]


def _field(name: str) -> str:
    """A valid field name for any name in a path."""
    return "field_" + name.encode().hex()


def _getter(path: str) -> Callable[[Any], Any]:
    """Returns the value at a path of a decoded row; None if the row lacks it."""
    fields = [_field(name) for name in path.split(".")]
    if len(fields) == 1:
        return attrgetter(fields[0])

    def value_of(row: Any) -> Any:
        for field in fields:
            row = getattr(row, field, None)
        return row

    return value_of


def _add_leaf(tree: _Tree, path: str, kind: Any) -> None:
    """Adds the type of the value at a path, unless something is mapped to it or below it."""
    *outer, last = path.split(".")
    for name in outer:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            return
    tree.setdefault(last, kind)


def _struct(tree: _Tree) -> type[msgspec.Struct]:
    """The type of an object with these fields; all others are skipped."""
    fields: list[tuple[str, Any, Any]] = []
    for name, kind in tree.items():
        if isinstance(kind, dict):
            fields.append((_field(name), _struct(kind) | _OTHER, None))
        elif kind is msgspec.Raw:
            fields.append((_field(name), msgspec.Raw, NO_COLUMN))
        else:
            fields.append((_field(name), kind, msgspec.UNSET if kind is _TEXT_TYPE else None))
    names = {_field(name): name for name in tree}
    return msgspec.defstruct("Mapped", fields, rename=names, gc=False)
