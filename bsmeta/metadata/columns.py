"""A long column is taken out of its line before the line is parsed.

Nine tenths of a line are html tags, of which most documents use none, and a parser needs as long to
skip them as for all else together. Where the column begins and ends can be found by the names of
its own key and of the one behind it: in JSON no string can hold them, because a quotation mark in a
string is written with a backslash before it.
"""

from __future__ import annotations

import re

import msgspec

MARK = b"-1"
"""What stands in the place of a column that was taken out: no list of records."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises where a line or column is no JSON of the wanted types."""

_MOST_MISSES = 64  # one after the other
_LIST_BEGINS = re.compile(rb"\s*:\s*(?=\[)")
_LIST_ENDS = re.compile(rb"\]\s*,\s*\Z")
_OBJECT_ENDS = re.compile(rb"\]\s*\}\s*\Z")
_LONGEST_SPACE = 16  # between the list and the next key
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class LongColumn:
    """One column of the lines of a shard.

    Which key stands behind it is learned from a line that was parsed whole; shards are written with
    the same keys in the same order throughout. Where that is not so, lines cannot be cut, and soon
    it is not tried any more.

    Args:
        name: Its key.
        others: How the keys begin, with their quotation mark, that must not be taken out with it.
    """

    def __init__(self, name: str, others: bytes) -> None:
        self._name = name
        self._key = f'"{name}"'.encode()
        self._others = others
        self._next: bytes | None = None  # the key behind it; b"" if it is the last one
        self._misses = 0

    def cut(self, line: bytes) -> tuple[bytes, memoryview] | None:
        """The line with `MARK` in the place of the column, and what stood there.

        None if the column cannot be found. It may be found in a wrong place, in an object inside
        the line: what is left is then no JSON, or does not hold `MARK` as this column. Columns that
        nobody asked for may stand behind its list, if they do so only in some lines.
        """
        if self._next is None:
            return None
        place = line.find(self._key)
        colon = _LIST_BEGINS.match(line, place + len(self._key)) if place >= 0 else None
        behind = line.rfind(self._next) if self._next else len(line)
        if colon is None or behind < colon.end():
            return None
        pattern = _LIST_ENDS if self._next else _OBJECT_ENDS
        closing = pattern.search(line, max(behind - _LONGEST_SPACE, colon.end()), behind)
        if closing is None:
            return None
        begin, end = colon.end(), closing.start() + 1
        if line.rfind(self._others, begin, end) >= 0:
            return None
        self._misses = 0
        return line[:begin] + MARK + line[end:], memoryview(line)[begin:end]

    def learn(self, line: bytes) -> None:
        """Looks what stands behind the column in a line that could not be cut, but parsed."""
        if self._misses == _MOST_MISSES:
            self._next = None
            return
        if self._key not in line:
            return
        self._misses += 1
        try:
            names = list(_KEYS.decode(line))
        except UNREADABLE:
            return
        if self._name in names:
            behind = names[names.index(self._name) + 1 :]
            self._next = f'"{behind[0]}"'.encode() if behind else b""


def first_of(column: memoryview) -> bytes:
    """The list of a column that was taken out with others behind it.

    Raises:
        UNREADABLE: If this is no column.
    """
    return bytes(_KEYS.decode(b'{"":' + column + b"}")[""])
