"""Cut a long column out of its line before the line is parsed.

Nine tenths of a line are html tags, which most documents do not use, and a parser takes as long to
skip them as for everything else. The start and end of the column are found by searching for keys:
no JSON string can contain a key with its quotation marks, because quotation marks in a string are
escaped. The result depends on the line alone, never on earlier lines: a resumed run starts in the
middle of a shard and must treat each line as the uninterrupted run did.
"""

from __future__ import annotations

import re

import msgspec

MARK = b"-1"
"""Placeholder for a column that was cut out; not a list of records."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises if a line or column is not JSON of the expected types."""

_LIST_BEGINS = re.compile(rb"\s*:\s*(?=\[)")
_LIST_ENDS = b"}]"  # of records; if there is a space in it, the whole line is parsed
_NEXT = re.compile(rb'\s*(?:,\s*"|\}\s*\Z)')  # what follows a column: the next key, or the end
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def cut_column(line: bytes, key: bytes, others: bytes) -> tuple[bytes, memoryview] | None:
    """Replace a column of the line with `MARK`; return the new line and the column.

    The search runs from the end of the line, where the other columns are short. It may match in the
    wrong place: the rest of the line is then not JSON, or does not have `MARK` in this column.
    Columns after its list whose keys do not begin with `others` may be cut out with it.

    Args:
        line: A line of a shard.
        key: The column's key, in quotation marks.
        others: Prefix (with the quotation mark) of the keys that must not be cut out with it.

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
    """End of the last list of records in a range that is followed by a key or the end of the line.

    The key may begin at `stop`.
    """
    while (place := line.rfind(_LIST_ENDS, begin, stop)) >= 0:
        end = place + len(_LIST_ENDS)
        if _NEXT.match(line, end):
            return end
        stop = place + 1
    return None


def first_of(column: memoryview) -> bytes:
    """The list of a column that was cut out together with the columns after it.

    Raises:
        UNREADABLE: If this is not a column.
    """
    return bytes(_KEYS.decode(b'{"":' + column + b"}")[""])
