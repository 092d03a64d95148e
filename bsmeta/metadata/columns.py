"""A long column is taken out of its line before the line is parsed.

Nine tenths of a line are html tags, of which most documents use none, and a parser needs as long to
skip them as for all else together. Where the column begins and ends is found by searching for keys:
in JSON no string can hold one, because a quotation mark in a string is written with a backslash
before it. What is found depends on the line alone, never on lines before it: a resumed run begins
in the middle of a shard and must judge each line as the undisturbed run did.
"""

from __future__ import annotations

import re

import msgspec

MARK = b"-1"
"""What stands in the place of a column that was taken out: no list of records."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises where a line or column is no JSON of the wanted types."""

_LIST_BEGINS = re.compile(rb"\s*:\s*(?=\[)")
_LIST_ENDS = b"}]"  # of records; JSON with a space in it is parsed whole
_NEXT = re.compile(rb'\s*(?:,\s*"|\}\s*\Z)')  # what follows a column: the next key, or the end
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def cut_column(line: bytes, key: bytes, others: bytes) -> tuple[bytes, memoryview] | None:
    """The line with `MARK` in the place of a column, and what stood there.

    The search runs from the end of the line, where the other columns are short. The column may be
    found in a wrong place: what is left is then no JSON, or does not hold `MARK` as this column.
    Columns whose keys do not begin like `others` may be taken out with it, after its list.

    Args:
        line: A line of a shard.
        key: The column's key, in quotation marks.
        others: How the keys begin, with their quotation mark, that must not be taken out with it.

    Returns:
        None if the column cannot be found.
    """
    place = line.find(key)
    colon = _LIST_BEGINS.match(line, place + len(key)) if place >= 0 else None
    if colon is None:
        return None
    begin, stop = colon.end(), len(line)
    while (end := _last_list_end(line, begin, stop)) is not None:
        stop = line.rfind(others, begin, end)
        if stop < 0:
            return line[:begin] + MARK + line[end:], memoryview(line)[begin:end]
    return None


def _last_list_end(line: bytes, begin: int, stop: int) -> int | None:
    """Where the last list of records between two places ends that a key or the line's end follows.

    The key may begin at `stop`.
    """
    while (place := line.rfind(_LIST_ENDS, begin, stop)) >= 0:
        end = place + len(_LIST_ENDS)
        if _NEXT.match(line, end):
            return end
        stop = place + 1
    return None


def first_of(column: memoryview) -> bytes:
    """The list of a column that was taken out with others after it.

    Raises:
        UNREADABLE: If this is no column.
    """
    return bytes(_KEYS.decode(b'{"":' + column + b"}")[""])
