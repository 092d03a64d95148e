"""A line of a shard, its metadata records, and the error for a document that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

UNREADABLE = (msgspec.DecodeError,)
"""The errors of decoders for a line or column that is not JSON of the expected types."""

WholeLine = bytes | memoryview
"""A line, or a view of it in the block that was read: copying takes as long as decompression."""


@dataclass(frozen=True, slots=True)
class PartialLine:
    """A line of JSON without its lazy columns, which are encoded only when they are needed.

    Attributes:
        text: A JSON object with all other columns.
        lazy_columns: A function that returns the JSON of a column, for each lazy column with
            records.
    """

    text: WholeLine
    lazy_columns: Mapping[str, Callable[[], bytes]]

    def __bytes__(self) -> bytes:
        """Returns the whole line."""
        text = bytes(self.text)
        members = [] if text == b"{}" else [text[1:-1]]
        for name, encode in self.lazy_columns.items():
            members.append(b"%b:%b" % (msgspec.json.encode(name), encode()))
        return b"{" + b",".join(members) + b"}"


Line = WholeLine | PartialLine
"""A line of a shard: a document as JSON."""


class BadDocument(ValueError):
    """A document that cannot be used.

    Attributes:
        reason: The name under which such documents are counted, such as `not_json`.
        detail: The invalid value and its location, for messages.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Record(msgspec.Struct, gc=False):
    """A metadata record: global (about the document) or local (about a span of its text).

    `html_attrs` is not decoded, because the html type caches rendered tags by its JSON.
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
        """Whether the record is about a span; without a `type`, whether it has a start index."""
        if self.type is None:
            return self.char_start_idx is not None
        return self.type == "local"


def select_local_records(records: Sequence[Record]) -> list[Record]:
    """Returns the local records in their order.

    The condition is `Record.is_local`, inlined because a document may have hundreds of records.
    """
    return [
        record
        for record in records
        if record.type == "local" or (record.type is None and record.char_start_idx is not None)
    ]


def classify_bad_document(error: Exception, location: str = "") -> BadDocument:
    """Converts a decoder's error to a `BadDocument`.

    Args:
        location: Prefix of the detail that names what was decoded, such as `url: `; "" if it was
            the whole line.

    Returns:
        An error with the reason `not_json`, `text_not_string`, `not_an_object` or `wrong_type`.
    """
    detail = f"{location}{error}"
    if not isinstance(error, msgspec.ValidationError):
        return BadDocument("not_json", detail)
    if "`$.text`" in detail:
        return BadDocument("text_not_string", detail)
    if not location and " - at `$" not in detail:
        return BadDocument("not_an_object", detail)
    return BadDocument("wrong_type", detail)
