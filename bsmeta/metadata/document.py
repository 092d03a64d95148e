"""A document: its text, its address, and its metadata records by key; every later stage reads it.

`decoding` builds it from a line. The column of a lazy type stays undecoded until the document is
rendered with that type: as JSON, or as a function that returns the JSON.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.metadata.annotated_columns import RECORD_COLUMN_PREFIX, decode_records
from bsmeta.metadata.content import KeptText
from bsmeta.metadata.records import UNREADABLE, Record

NO_COLUMN = msgspec.Raw()
"""The value of a column that a line does not have."""

_MAX_EMPTY_LIST_BYTES = 16
"""Maximum length of a raw column that is decoded to see whether it is `[]` or `null`."""


class _Value(msgspec.Struct, gc=False):
    """A record of which only the value is decoded, which takes half the time."""

    value: str | int | float


_ADDRESS_DECODER = ForeignDecoder(str | list[_Value | str] | None)

Undecoded = msgspec.Raw | Callable[[], bytes]
"""The JSON of a column, or a function that encodes the column as JSON."""


class Document:
    """A document: its text, its address, and its metadata records by key.

    Attributes:
        text: The plain text; may be empty.
        whole_text: The text before `keep` restricted it.
        url: The value of the `url` column (not of a metadata record); None if there is none.
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
        """Returns the records with a key, in their original order; decodes them on first use.

        Raises:
            BadDocument: If the column of the records is invalid.
        """
        column = self._undecoded.get(key)
        if column is not None:
            content = column() if callable(column) else column
            records = decode_records(f"{RECORD_COLUMN_PREFIX}{key}", content)
            if self._kept is not None:
                records = self._kept.clip(key, records)
            group_records(self._records, key, records)
            del self._undecoded[key]
        return self._records.get(key, ())

    def keep(self, kept_text: KeptText) -> None:
        """Restricts the text and the local records to a part of the text.

        Records of lazy types are restricted when they are decoded.

        Raises:
            BadDocument: If the span of a local record is out of bounds.
        """
        self.text = kept_text.text
        self._kept = kept_text

        clipped_records: dict[str, list[Record]] = {}
        for key, records in self._records.items():
            clipped = kept_text.clip(key, records)
            if clipped:
                clipped_records[key] = clipped
        self._records = clipped_records

    def add(self, key: str, record: Record) -> None:
        """Adds a record under a key."""
        self._records.setdefault(key, []).append(record)

    def collect_addresses(self, key: str) -> set[str]:
        """Returns the addresses in the `url` column and in the records with the address key.

        If `metadata_list` lacks that key, its column is decoded here, and ignored if it is invalid.

        Args:
            key: The address key.
        """
        addresses = {str(record.value) for record in self._records.get(key, ())}
        if self.url is not None:
            addresses.add(self.url)
        if self._address_column is not NO_COLUMN:
            with contextlib.suppress(*UNREADABLE):
                addresses |= _decode_addresses(self._address_column)
        return addresses


def _decode_addresses(column: msgspec.Raw) -> set[str]:
    """Decodes a column of addresses: null, an address, or a list of addresses and records.

    Raises:
        msgspec.DecodeError: If the column is invalid.
    """
    values = _ADDRESS_DECODER.decode(column)
    if not values:
        return set()
    if isinstance(values, str):
        return {values}
    return {value if isinstance(value, str) else str(value.value) for value in values}


def group_records(
    groups: dict[str, list[Record]], column_key: str, records: Sequence[Record] | None
) -> None:
    """Adds records to the group of their key, or of their column's key if they have none.

    Args:
        groups: The records by key, to which the records are added.
        records: The records of a column; None or empty if the column has none.
    """
    if not records:
        return

    # Most columns have records of one key, which are added at once.
    if len(records) == 1 or len({record.key for record in records}) == 1:
        groups.setdefault(records[0].key or column_key, []).extend(records)
        return

    for record in records:
        groups.setdefault(record.key or column_key, []).append(record)


def is_empty(raw: msgspec.Raw) -> bool:
    """Whether an undecoded column has no records: it is absent, `null` or `[]`."""
    content = memoryview(raw)
    if len(content) > _MAX_EMPTY_LIST_BYTES:
        return False
    return bytes(content).translate(None, b" \t\r\n") in (b"", b"[]", b"null")
