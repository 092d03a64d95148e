"""A document: its text, its address, and its metadata records by key; every later stage reads it.

`decoding` builds it from a line. The column of a lazy type stays undecoded until the document is
rendered with that type: as JSON, or as a function that returns the JSON.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.metadata.annotated_columns import PREFIX, decode_records
from bsmeta.metadata.content import KeptText
from bsmeta.metadata.records import UNREADABLE, Record

NO_COLUMN = msgspec.Raw()

_MAX_EMPTY_LIST_BYTES = 16
"""Maximum length of a raw column that is decoded to see whether it is `[]` or `null`."""


class _Value(msgspec.Struct, gc=False):
    """Only the value of a record, which decodes in half the time."""

    value: str | int | float


_ADDRESS_DECODER = ForeignDecoder(str | list[_Value | str] | None)

Undecoded = msgspec.Raw | Callable[[], bytes]
"""The JSON of a column, or a function that returns it."""


class Document:
    """A document: its text, its address, and its metadata records by key.

    Attributes:
        text: The plain text; may be empty.
        whole_text: The text before `keep` restricted it.
        url: The `url` column (not the metadata record), if there is one.
    """

    __slots__ = (
        "_address_column",
        "_kept",
        "_records",
        "_undecoded",
        "text",
        "url",
        "whole_text",
    )

    def __init__(
        self,
        text: str,
        url: str | None,
        records: dict[str, list[Record]],
        undecoded: dict[str, Undecoded] | None = None,
        address_column: msgspec.Raw = NO_COLUMN,
    ) -> None:
        self.text = self.whole_text = text
        self.url = url
        self._kept: KeptText | None = None
        self._records = records
        self._undecoded = undecoded or {}
        self._address_column = address_column

    def has(self, key: str) -> bool:
        """Whether the document has a record with this metadata key."""
        return key in self._records or key in self._undecoded

    def records(self, key: str) -> Sequence[Record]:
        """Returns the records with a key in their original order; decodes them if necessary.

        Raises:
            BadDocument: If the undecoded column does not have valid records.
        """
        column = self._undecoded.get(key)
        if column is not None:
            records = decode_records(f"{PREFIX}{key}", column() if callable(column) else column)
            if self._kept is not None:
                records = self._kept.clip(key, records)
            group_records(self._records, key, records)
            del self._undecoded[key]
        return self._records.get(key, ())

    def keep(self, kept_text: KeptText) -> None:
        """Restricts text and local records to a part of the text; lazy records when decoded.

        Raises:
            BadDocument: If the span of a local record is out of bounds.
        """
        self.text = kept_text.text
        self._kept = kept_text
        clipped = {key: kept_text.clip(key, records) for key, records in self._records.items()}
        self._records = {key: records for key, records in clipped.items() if records}

    def add(self, key: str, record: Record) -> None:
        """Adds a record under a key."""
        self._records.setdefault(key, []).append(record)

    def collect_addresses(self, key: str) -> set[str]:
        """Returns the addresses in the `url` column and in the records with the address key.

        The records are read even if `metadata_list` does not have that key; they are then skipped
        if they cannot be decoded.
        """
        addresses = {str(record.value) for record in self._records.get(key, ())}
        if self.url is not None:
            addresses.add(self.url)
        if self._address_column is not NO_COLUMN:
            with contextlib.suppress(*UNREADABLE):
                values = _ADDRESS_DECODER.decode(self._address_column) or ()
                for value in [values] if isinstance(values, str) else values:
                    addresses.add(value if isinstance(value, str) else str(value.value))
        return addresses


def group_records(
    groups: dict[str, list[Record]], column_key: str, records: Sequence[Record] | None
) -> None:
    """Adds records to the groups by their own key or, if they have none, by their column's key."""
    if not records:
        return
    if len(records) == 1 or len({record.key for record in records}) == 1:  # as in most columns
        groups.setdefault(records[0].key or column_key, []).extend(records)
        return

    for record in records:
        groups.setdefault(record.key or column_key, []).append(record)


def is_empty(raw: msgspec.Raw) -> bool:
    """Whether an undecoded column has no records (it is absent, `null` or `[]`)."""
    content = memoryview(raw)
    if len(content) > _MAX_EMPTY_LIST_BYTES:
        return False
    return bytes(content).translate(None, b" \t\r\n") in (b"", b"[]", b"null")
