"""Reads the records of WARC files, whoever wrote them, and continues after damage.

A WARC file is a sequence of records (ISO 28500), in most files one gzip member each. Other writers
compress the file as a whole or in blocks, end lines with a bare line feed (ClueWeb09), or declare
a wrong length. A damaged member, a header without an end, or a wrong length costs one record at
most: the reader continues at the next record.

The readers of libraries are not used: fastwarc ends at the first damage without an error, and
warcio takes the next record for content where a length is too large.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from isal import isal_zlib

from bsmeta.data.io.compression import BLOCK, COMPRESSED_BLOCK, GZIP_MEMBER

LONGEST_HEADER = 16 << 20
"""Maximum bytes of the header of a record."""

LONGEST_SEARCH = 64 << 20
"""Maximum bytes of a record that are kept in memory until its length proves right."""

MEMBER_CUT_OFF = "it ends within a gzip member"
RECORD_CUT_OFF = "it ends within a record"

_GZIP = b"\x1f\x8b\x08"
_GZIP_PADDING = re.compile(rb"[\0\r\n\t ]*")  # such as the zeros of a tape block
_INPUT = 1 << 14  # compressed bytes to decompress at a time
_VERSION = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n")
_VERSION_START = re.compile(rb"W(A(R(C(/[\d.]*\r?)?)?)?)?")
_VERSION_LINE = re.compile(rb"\nWARC/\d+\.\d+[ \t]*\r?\n")
_LONGEST_VERSION = 32  # bytes of such a line
_HEADER_END = re.compile(rb"\n(?:\r?\n|WARC/\d+\.\d+[ \t]*\r?\n)")  # empty line, or next record
_BLANK = re.compile(rb"[\r\n]*")
_TYPE = re.compile(rb"^warc-type[ \t]*+:([^\r\n]*+)", re.IGNORECASE | re.MULTILINE)
_LENGTH = re.compile(
    rb"^content-length[ \t]*+:[ \t]*+(\d{1,18})[ \t]*+\r?$", re.IGNORECASE | re.MULTILINE
)
_TRIAL = 1 << 12  # bytes with which a possible gzip member is tried
_SMALL_INPUT = 64  # compressed bytes at a time before damage: output of a failing call is lost


@dataclass(slots=True)
class Record:
    """A record.

    Attributes:
        type: `WARC-Type` in lower case.
        header: The lines of the header.
        content: The content, at most one byte more than the limit of the reader.
        offset: Where it begins in the file; in a compressed file, where its gzip member begins.
    """

    type: str
    header: bytes
    content: bytes
    offset: int

    def parse_header(self) -> dict[str, str]:
        """Returns the fields of the header, by their names in lower case."""
        return parse_fields(self.header)


@dataclass(slots=True)
class Damage:
    """A part of a file that is not a usable record.

    Attributes:
        offset: Where it begins in the file, as for a record.
        reason: Why it cannot be read.
    """

    offset: int
    reason: str

    @property
    def is_cut_off(self) -> bool:
        """Whether the end of the file is missing."""
        return self.reason in (MEMBER_CUT_OFF, RECORD_CUT_OFF)


def read_records(file: BinaryIO, limit: int) -> Iterator[Record | Damage]:
    """Yields the records of a file, and its damages, in order.

    Args:
        file: A seekable file, plain or compressed with gzip, whatever its name.
        limit: Maximum bytes of content to return for a record.
    """
    content = _Content(file)
    position = 0
    while True:
        position = content.skip_blank(position)
        content.discard(position)
        gap = content.take_gap(position)
        if gap is not None:
            yield Damage(gap.offset, gap.reason)
        elif content.ends_at(position):
            return
        elif content.begins_record(position):
            item, position = _read_record(content, position, limit)
            yield item
        else:
            damage, position = _skip_garbage(content, position)
            yield damage


def _skip_garbage(content: _Content, start: int) -> tuple[Damage, int]:
    """Returns the damage at a position where no record begins, and the position after it."""
    offset = content.offset_of(start)
    is_cut_off = content.is_plain and content.is_cut_off_at(start)
    end = content.find_record(start)
    gap = content.take_gap(end)
    if gap is not None:
        return Damage(gap.offset, gap.reason), end
    return Damage(offset, RECORD_CUT_OFF if is_cut_off else "no record begins there"), end


def _read_record(content: _Content, start: int, limit: int) -> tuple[Record | Damage, int]:
    """Returns the record that begins at a position, and the position after it."""
    offset = content.offset_of(start)
    begin = content.find_content(start)
    if begin is None:
        next_record = content.find_record(start + 1)
        return _describe_bad_header(content, offset, start, next_record), next_record

    header = content.read(start, begin - start)
    digits = _LENGTH.search(header)
    length = None if digits is None else int(digits[1])

    content.keep(begin, limit + 1)
    end = None if length is None else content.find_end(begin, length)
    if end is not None:
        data = content.read_kept(end - begin)
    else:
        # The length is missing or wrong: the content extends to the next record.
        end = content.find_record(begin)
        data = content.read_kept(end - begin)
        if end - begin <= limit:
            is_cut_off = content.is_plain and not data.endswith((b"\n\r\n", b"\n\n"))
            if is_cut_off and length is not None and length > len(data) and content.ends_at(end):
                return Damage(offset, RECORD_CUT_OFF), end
            data = _strip_line_ends(data)

    is_short = length is not None and end - begin < length
    if is_short and content.has_gap(end):
        return Damage(offset, "a part of a record is missing"), end
    gap = content.take_gap_of_record(end, is_whole=end - begin == length)
    if gap is not None:
        return Damage(gap.offset, gap.reason), end
    record_type = _TYPE.search(header)
    name = "" if record_type is None else record_type[1].strip().decode("utf-8", "replace").lower()
    return Record(name, header, data, offset), end


def _describe_bad_header(content: _Content, offset: int, start: int, end: int) -> Damage:
    gap = content.take_gap(end)
    if gap is not None:
        return Damage(gap.offset, gap.reason)
    if content.is_plain and content.ends_at(end):
        return Damage(offset, RECORD_CUT_OFF)
    if end - start > LONGEST_HEADER:
        return Damage(offset, f"the header of a record is longer than {LONGEST_HEADER:,} bytes")
    return Damage(offset, "the header of a record has no end")


def parse_fields(header: bytes) -> dict[str, str]:
    """Parses the fields of a header of WARC or HTTP, which follow its first line.

    Returns:
        The values by the names in lower case; of repeated fields, the first counts. Lines without
        a colon are left out; lines that begin with white space continue the field before them.
    """
    fields: dict[str, str] = {}
    name = ""
    lines = header.decode("utf-8", "replace").split("\n")
    for line in lines[1:]:
        if name and line.startswith((" ", "\t")):
            fields[name] = f"{fields[name]} {line.strip()}".strip()
            continue
        field_name, colon, value = line.partition(":")
        name = field_name.strip().lower() if colon else ""
        if name and name not in fields:
            fields[name] = value.strip()
        else:
            name = ""
    return fields


def _strip_line_ends(data: bytes) -> bytes:
    """Removes the two line ends after a record."""
    for _ in range(2):
        data = data.removesuffix(b"\n").removesuffix(b"\r")
    return data


class _Gap(NamedTuple):
    """A gzip member that cannot be decompressed to its end.

    Attributes:
        start: Position in the content at which the member begins.
        end: Position after the content that could be decompressed.
        offset: Where the member begins in the file.
    """

    start: int
    end: int
    offset: int
    reason: str


class _Member(NamedTuple):
    """The beginning of a gzip member: position in the content, and offset in the file."""

    position: int
    offset: int


class _Content:
    """The content of a file, decompressed as it is needed; positions count its bytes.

    Attributes:
        is_plain: Whether the file is not compressed.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        self.is_plain = file.read(len(_GZIP)) != _GZIP
        file.seek(0)

        self._buffer = bytearray()  # the content from `_start` on
        self._start = 0
        self._kept = bytearray()  # discarded content that is still needed
        self._keeps = range(0)  # positions of the content that is still needed
        self._gaps: deque[_Gap] = deque()
        self._members: deque[_Member] = deque([_Member(-1, 0)])  # that begin with a record
        self._new_members: deque[_Member] = deque()  # whose content is not yet known
        self._member = _Member(0, 0)  # that is being decompressed

        self._compressed = b""  # the last bytes read from the file
        self._cursor = 0  # number of them that are decompressed
        self._decompressor: Any = None  # None between members

    @property
    def _end(self) -> int:
        return self._start + len(self._buffer)

    def fill(self, position: int) -> bool:
        """Returns whether the content extends to a position; decompresses up to there."""
        while self._start + len(self._buffer) < position:
            if not self._extend():
                return False
        return True

    def ends_at(self, position: int) -> bool:
        """Returns whether there is no content from a position on."""
        return not self.fill(position + 1)

    def read(self, position: int, size: int) -> bytes:
        """Returns bytes from a position on, fewer at the end of the content."""
        self.fill(position + size)
        first = position - self._start
        with memoryview(self._buffer) as view:
            return bytes(view[first : first + size])

    def discard(self, position: int) -> None:
        """Forgets the content before a position."""
        while len(self._members) > 1 and self._members[1].position <= position:
            self._members.popleft()
        if position - self._start >= BLOCK:  # otherwise moving the rest would cost too much
            self._kept += self._read_needed(position)
            del self._buffer[: position - self._start]
            self._start = position

    def keep(self, position: int, size: int) -> None:
        """Keeps the content from a position on for `read_kept`, also where it is discarded."""
        self._kept = bytearray()
        self._keeps = range(position, position + size)

    def read_kept(self, size: int) -> bytes:
        """Returns bytes from the position of `keep` on, at most as many as are kept."""
        end = min(self._keeps.start + size, self._keeps.stop)
        return bytes(self._kept + self._read_needed(end))[: end - self._keeps.start]

    def _read_needed(self, end: int) -> bytes:
        """Returns the content that is to be kept, from the buffer up to a position."""
        first = max(self._keeps.start, self._start) - self._start
        last = min(self._keeps.stop, end) - self._start
        with memoryview(self._buffer) as view:
            return bytes(view[first : max(last, first)])

    def skip_blank(self, position: int) -> int:
        """Returns the position after any line ends at a position."""
        while self.fill(position + 1):
            match = _BLANK.match(self._buffer, position - self._start)
            assert match is not None
            position = self._start + match.end()
            if position < self._end:
                break
        return position

    def begins_record(self, position: int) -> bool:
        """Returns whether the first line of a record is at a position."""
        self.fill(position + _LONGEST_VERSION)
        return _VERSION.match(self._buffer, position - self._start) is not None

    def is_cut_off_at(self, position: int) -> bool:
        """Returns whether the content ends within the first line of a record at a position."""
        rest = self.read(position, _LONGEST_VERSION)
        return _VERSION_START.fullmatch(rest) is not None and self.ends_at(position + len(rest))

    def offset_of(self, position: int) -> int:
        """Returns the offset in the file, of the gzip member if there is one."""
        if self.is_plain:
            return position
        self._sort_members()
        members = reversed(self._members)
        return next(member.offset for member in members if member.position <= position)

    def take_gap(self, position: int) -> _Gap | None:
        """Returns the first gap that ends at a position or before, once."""
        if self._gaps and self._gaps[0].end <= position:
            return self._gaps.popleft()
        return None

    def has_gap(self, end: int) -> bool:
        """Returns whether a gap begins, but for line ends, at a position."""
        after = self.skip_blank(end)
        return bool(self._gaps) and end <= self._gaps[0].start <= after

    def take_gap_of_record(self, end: int, *, is_whole: bool) -> _Gap | None:
        """Returns the gap that damages the record that ends at a position, once.

        A whole record is not damaged if only the end of its gzip member is missing.
        """
        after = self.skip_blank(end)
        if not self._gaps:
            return None
        gap = self._gaps[0]
        if gap.end > after or gap.start >= end or (is_whole and gap.reason == MEMBER_CUT_OFF):
            return None
        return self._gaps.popleft()

    def find_content(self, start: int) -> int | None:
        """Returns the position after the header of the record at a position; None without one."""
        scanned = start
        while True:
            match = _HEADER_END.search(self._buffer, scanned - self._start)
            end = self._end if match is None else self._start + match.end()
            barrier = self._barrier(start + 1)
            is_whole = barrier is None or end <= barrier
            if match is not None:
                is_empty_line = match[0].endswith((b"\n\n", b"\n\r\n"))
                is_found = is_whole and is_empty_line and end - start <= LONGEST_HEADER
                return end if is_found else None
            if not is_whole or end - start > LONGEST_HEADER:
                return None
            scanned = max(start, end - _LONGEST_VERSION)
            if not self.fill(end + 1):
                return None

    def find_end(self, begin: int, length: int) -> int | None:
        """Returns the end of the content with a declared length; None if the length is wrong.

        It is right if two line ends follow, or another record, or nothing. Content beyond
        `LONGEST_SEARCH` is not kept, so its length counts unless a gzip member begins a record.
        """
        end = begin + length
        if self.is_plain and end > self._size:
            return None
        if length > LONGEST_SEARCH and self.fill(begin + LONGEST_SEARCH):
            return self._pass_over(begin, end)

        is_there = self.fill(end)
        barrier = self._barrier(begin)
        if not is_there or (barrier is not None and barrier < end):
            return None
        self.fill(end + 4)
        if self._buffer.startswith((b"\r\n\r\n", b"\n\n"), end - self._start):
            return end
        after = self.skip_blank(end)
        is_last = self.ends_at(after) or self.has_gap(end)
        if self._gaps and self._gaps[0].end <= after:
            is_last = True
        return end if is_last or self.begins_record(after) else None

    def _pass_over(self, begin: int, end: int) -> int:
        """Discards the content up to a position; stops before another record or a gap."""
        while True:
            barrier = self._barrier(begin)
            if barrier is not None and barrier < end:
                return barrier
            if self._end >= end:
                return end
            self.discard(self._end)
            if not self._extend():
                return self._end

    def find_record(self, position: int) -> int:
        """Returns where the next record, a gap or the end is, from a position on.

        The content before is discarded.
        """
        scanned = position
        while True:
            end = self._end
            match = _VERSION_LINE.search(self._buffer, scanned - self._start)
            barrier = self._barrier(position)
            if match is not None:
                found = self._start + match.start() + 1
                return found if barrier is None else min(found, barrier)
            if barrier is not None:
                return barrier
            scanned = max(position, end - _LONGEST_VERSION)
            self.discard(scanned)
            if not self.fill(end + 1):
                return end

    def _barrier(self, position: int) -> int | None:
        """Returns the first position from a position on that no record extends beyond.

        It is the beginning of a gzip member with a record, or the beginning or end of a gap.
        """
        edge = None
        for gap in self._gaps:
            if gap.end >= position:
                edge = gap.start if gap.start > position else gap.end
                break

        self._sort_members()
        for member in self._members:
            if member.position >= position:
                return member.position if edge is None else min(member.position, edge)
        return edge

    def _sort_members(self) -> None:
        """Forgets the gzip members that do not begin with a record."""
        while self._new_members:
            member = self._new_members.popleft()
            if member.position >= self._start and self.begins_record(member.position):
                self._members.append(member)

    def _extend(self) -> bool:
        """Adds some content; returns False at the end of the file."""
        if not self.is_plain:
            return self._decompress()
        data = self._file.read(BLOCK)
        self._buffer += data
        return bool(data)

    def _decompress(self) -> bool:
        while True:
            if self._decompressor is None and not self._begin_member():
                return False
            # The decompressor copies the input that it leaves, so it is given small parts.
            data = self._compressed[self._cursor : self._cursor + _INPUT]
            try:
                block = self._decompressor.decompress(data, BLOCK)
            except isal_zlib.error:  # type: ignore[misc]
                self._skip_member()
                return True

            self._cursor += len(data)
            if self._decompressor.eof:
                self._cursor -= len(self._decompressor.unused_data)
                self._decompressor = None
            else:
                self._cursor -= len(self._decompressor.unconsumed_tail)
                is_used_up = self._cursor == len(self._compressed) and len(block) < BLOCK
                if is_used_up and not self._read_more():
                    self._decompressor = None
                    self._buffer += block
                    self._add_gap(MEMBER_CUT_OFF)
                    return True
            if block:
                self._buffer += block
                return True

    def _read_more(self) -> bool:
        """Reads the next bytes of the file, after those that are not yet decompressed."""
        data = self._file.read(COMPRESSED_BLOCK)
        self._compressed = self._compressed[self._cursor :] + data
        self._cursor = 0
        return bool(data)

    def _begin_member(self) -> bool:
        """Begins the next gzip member; returns False at the end of the file."""
        while True:
            padding = _GZIP_PADDING.match(self._compressed, self._cursor)
            assert padding is not None
            self._cursor = padding.end()
            num_left = len(self._compressed) - self._cursor
            if num_left < len(_GZIP) and self._read_more():
                continue
            if not num_left:
                return False

            offset = self._file.tell() - num_left
            self._member = _Member(self._end, offset)
            self._new_members.append(self._member)
            if self._compressed.startswith(_GZIP, self._cursor):
                self._decompressor = isal_zlib.decompressobj(wbits=GZIP_MEMBER)
                return True
            is_cut_off = _GZIP.startswith(self._compressed[self._cursor :])
            self._add_gap(MEMBER_CUT_OFF if is_cut_off else "no gzip member begins there")
            self._seek_member(offset + 1)

    def _skip_member(self) -> None:
        """Moves from a member that cannot be decompressed to the next.

        The last content before the damage, which the failing call did not return, is decompressed
        again in small steps.
        """
        member = self._member
        num_known = self._end - member.position
        num_bytes = 0
        decompressor = zlib.decompressobj(GZIP_MEMBER)
        self._file.seek(member.offset)
        reason = "its checksum is wrong"
        try:
            while not decompressor.eof and (data := self._file.read(_SMALL_INPUT)):
                block = decompressor.decompress(data)
                self._buffer += block[max(num_known - num_bytes, 0) :]
                num_bytes += len(block)
        except zlib.error as error:
            reason = str(error).rpartition(": ")[2]

        self._add_gap(f"a gzip member cannot be decompressed: {reason}")
        self._seek_member(member.offset + 1)

    def _add_gap(self, reason: str) -> None:
        member = self._member
        self._gaps.append(_Gap(member.position, self._end, member.offset, reason))

    def _seek_member(self, offset: int) -> None:
        """Moves to the next gzip member in the file, or to the end of the file."""
        self._decompressor = None
        self._compressed = b""
        self._cursor = 0
        self._file.seek(offset)
        data = b""
        while block := self._file.read(COMPRESSED_BLOCK):
            data += block
            first = 0
            while (first := data.find(_GZIP, first)) >= 0:
                position = self._file.tell()
                start = position - len(data) + first
                if self._is_member(start):
                    self._file.seek(start)
                    return
                self._file.seek(position)
                first += 1
            data = data[1 - len(_GZIP) :]

    def _is_member(self, offset: int) -> bool:
        """Returns whether a gzip member begins at an offset, and not just its first bytes."""
        self._file.seek(offset)
        decompressor = zlib.decompressobj(GZIP_MEMBER)
        try:
            content = decompressor.decompress(self._file.read(_TRIAL), _TRIAL)
        except zlib.error:
            return False
        return bool(content) or decompressor.eof
