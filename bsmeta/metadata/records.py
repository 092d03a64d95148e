"""A line of a shard, its metadata records, and the error for a document that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

UNREADABLE = (msgspec.DecodeError,)
"""Raised by the decoder if a line or column is not JSON of the expected types."""

WholeLine = bytes | memoryview
"""A line, or a view into the block it was read in: copying costs as much as decompression."""


@dataclass(frozen=True, slots=True)
class PartialLine:
    """A line of JSON without some columns, which are produced when they are needed.

    `bytes(line)` returns the whole line.

    Attributes:
        text: The line without these columns: a JSON object.
        late: The columns that have records, each with a function that returns its JSON.
    """

    text: WholeLine
    late: Mapping[str, Callable[[], bytes]]

    def __bytes__(self) -> bytes:
        text = bytes(self.text)
        members = [] if text == b"{}" else [text[1:-1]]
        for name, produce in self.late.items():
            members.append(b"%b:%b" % (msgspec.json.encode(name), produce()))
        return b"{" + b",".join(members) + b"}"


Line = WholeLine | PartialLine
"""A document of a shard."""


class BadDocument(ValueError):
    """A document that cannot be used.

    Attributes:
        reason: A short slug used as a counter key, such as `not_json` or `position_beyond_text`.
        detail: The invalid value, and its location.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Record(msgspec.Struct, gc=False):
    """One metadata record: global (about the document) or local (about a span of its text).

    `html_attrs` stays JSON: the same attributes recur often, and the html type caches how they are
    rendered.
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
        """Whether the record is about a span; inferred from the span if `type` is missing."""
        if self.type is None:
            return self.char_start_idx is not None
        return self.type == "local"


def select_local_records(records: Sequence[Record]) -> list[Record]:
    """Selects local records: `Record.is_local`, without a call for each of hundreds."""
    return [
        record
        for record in records
        if record.type == "local" or (record.type is None and record.char_start_idx is not None)
    ]


def classify_bad_document(error: Exception, location: str = "") -> BadDocument:
    """Classifies a decoder's error, and includes the part of the line that it refers to.

    Args:
        location: Comes before the error, if it is not about the whole line.
    """
    detail = f"{location}{error}"
    if not isinstance(error, msgspec.ValidationError):
        return BadDocument("not_json", detail)
    if "`$.text`" in detail:
        return BadDocument("text_not_string", detail)
    if not location and " - at `$" not in detail:
        return BadDocument("not_an_object", detail)
    return BadDocument("wrong_type", detail)
