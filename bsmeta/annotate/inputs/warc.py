"""Reads the records of WARC files from any writer, and continues after damage.

A WARC file is a sequence of records (ISO 28500), which most writers compress as one gzip member
each. Some writers compress the whole file or blocks of it, end lines with a bare line feed
(ClueWeb09), or declare wrong lengths. After a damaged member, a header without an end, or a wrong
length, the reader continues at the next record, so that at most one record is lost.

The readers of libraries are not used: fastwarc stops at the first damage without an error, and
warcio reads the next record as content if a declared length is too large.
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

from bsmeta.data.io.compression import BLOCK_BYTES, COMPRESSED_BLOCK_BYTES, GZIP_WBITS

MAX_HEADER_BYTES = 16 << 20
"""Maximum size of the header of a record."""

MAX_BUFFERED_BYTES = 64 << 20
"""Maximum number of bytes of a record that are buffered to verify its declared length."""

MEMBER_CUT_OFF = "it ends within a gzip member"
RECORD_CUT_OFF = "it ends within a record"

_GZIP_MARK = b"\x1f\x8b\x08"
_GZIP_PADDING = re.compile(rb"[\0\r\n\t ]*")  # such as the zeros of a tape block
_INPUT_BYTES = 1 << 14  # of compressed data, per call of the decompressor
_VERSION = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n")
_VERSION_START = re.compile(rb"W(A(R(C(/[\d.]*\r?)?)?)?)?")
_VERSION_LINE = re.compile(rb"\nWARC/\d+\.\d+[ \t]*\r?\n")
_MAX_VERSION_LINE_BYTES = 32
_HEADER_END = re.compile(rb"\n(?:\r?\n|WARC/\d+\.\d+[ \t]*\r?\n)")  # empty line, or next record
_BLANK = re.compile(rb"[\r\n]*")
_TYPE = re.compile(rb"^warc-type[ \t]*+:([^\r\n]*+)", re.IGNORECASE | re.MULTILINE)
_LENGTH = re.compile(
    rb"^content-length[ \t]*+:[ \t]*+(\d{1,18})[ \t]*+\r?$", re.IGNORECASE | re.MULTILINE
)
_TRIAL_BYTES = 1 << 12  # decompressed to test whether a gzip member begins at an offset
_SMALL_INPUT_BYTES = 64  # per call before damage, because the output of a failing call is lost


@dataclass(slots=True)
class Record:
    """A record of a WARC file.

    Attributes:
        type: `WARC-Type` in lower case; "" without one.
        header: The lines of the header.
        content: The content, truncated to one byte more than the limit of `read_records`.
        offset: Offset of the record in the file, or of its gzip member in a compressed file.
    """

    type: str
    header: bytes
    content: bytes
    offset: int

    def parse_header(self) -> dict[str, str]:
        """Parses the fields of the header; their names are in lower case."""
        return parse_fields(self.header)


@dataclass(slots=True)
class Damage:
    """A damaged part of a file, which has no usable record.

    Attributes:
        offset: Offset of the part in the file, as for a record.
        reason: Why it cannot be read, for messages.
    """

    offset: int
    reason: str

    @property
    def is_cut_off(self) -> bool:
        """Whether the end of the file is missing."""
        return self.reason in (MEMBER_CUT_OFF, RECORD_CUT_OFF)


def read_records(file: BinaryIO, limit: int) -> Iterator[Record | Damage]:
    """Yields the records and the damaged parts of a file, in order.

    Args:
        file: A seekable file, plain or compressed with gzip.
        limit: Maximum size of the content of a record in bytes; longer content is truncated to
            `limit + 1` bytes.
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
    """Skips content from a position where no record begins; returns the damage and its end."""
    offset = content.find_offset(start)
    is_cut_off = content.is_plain and content.is_cut_off_at(start)
    end = content.find_record(start)
    gap = content.take_gap(end)
    if gap is not None:
        return Damage(gap.offset, gap.reason), end
    return Damage(offset, RECORD_CUT_OFF if is_cut_off else "no record begins there"), end


def _read_record(content: _Content, start: int, limit: int) -> tuple[Record | Damage, int]:
    """Reads the record that begins at a position; returns it or its damage, and its end."""
    offset = content.find_offset(start)
    content_start = content.find_content(start)
    if content_start is None:
        next_record = content.find_record(start + 1)
        return _describe_bad_header(content, offset, start, next_record), next_record

    header = content.read(start, content_start - start)
    length_field = _LENGTH.search(header)
    length = None if length_field is None else int(length_field[1])

    content.keep(content_start, limit + 1)
    end = None if length is None else content.find_end(content_start, length)
    if end is not None:
        data = content.read_kept(end - content_start)
    else:
        # The length is missing or wrong: the content extends to the next record.
        end = content.find_record(content_start)
        data = content.read_kept(end - content_start)
        if end - content_start <= limit:
            is_cut_off = content.is_plain and not data.endswith((b"\n\r\n", b"\n\n"))
            if is_cut_off and length is not None and length > len(data) and content.ends_at(end):
                return Damage(offset, RECORD_CUT_OFF), end
            data = _strip_line_ends(data)

    is_short = length is not None and end - content_start < length
    if is_short and content.has_gap(end):
        return Damage(offset, "a part of a record is missing"), end

    gap = content.take_gap_of_record(end, is_whole=end - content_start == length)
    if gap is not None:
        return Damage(gap.offset, gap.reason), end
    return Record(_read_type(header), header, data, offset), end


def _read_type(header: bytes) -> str:
    """Returns the `WARC-Type` of a header in lower case; "" without one."""
    field = _TYPE.search(header)
    return "" if field is None else field[1].strip().decode("utf-8", "replace").lower()


def _describe_bad_header(content: _Content, offset: int, start: int, end: int) -> Damage:
    """Describes the damage of a record whose header has no end.

    Args:
        offset: Offset of the record in the file.
        start: Position of the record in the content.
        end: Position at which reading continues.
    """
    gap = content.take_gap(end)
    if gap is not None:
        return Damage(gap.offset, gap.reason)
    if content.is_plain and content.ends_at(end):
        return Damage(offset, RECORD_CUT_OFF)
    if end - start > MAX_HEADER_BYTES:
        return Damage(offset, f"the header of a record is longer than {MAX_HEADER_BYTES:,} bytes")
    return Damage(offset, "the header of a record has no end")


def parse_fields(header: bytes) -> dict[str, str]:
    """Parses the fields of a WARC or HTTP header, after its first line.

    Lines without a colon are skipped; lines that begin with white space continue the previous
    field.

    Returns:
        The values by the names of the fields in lower case; if a field is repeated, its first
        value.
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
        end: Position after the part that could be decompressed.
        offset: Offset of the member in the file.
        reason: Why it cannot be decompressed, for messages.
    """

    start: int
    end: int
    offset: int
    reason: str


class _Member(NamedTuple):
    """The beginning of a gzip member.

    Attributes:
        position: Its position in the content.
        offset: Its offset in the file.
    """

    position: int
    offset: int


class _Content:
    """The content of a file, decompressed on demand; positions count bytes of the content.

    Attributes:
        is_plain: Whether the file is not compressed.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        self.is_plain = file.read(len(_GZIP_MARK)) != _GZIP_MARK
        file.seek(0)

        self._buffer = bytearray()  # the content from `_start` on
        self._start = 0
        self._kept_range = range(0)  # positions that `read_kept` may still read
        self._kept = bytearray()  # discarded content in this range
        self._gaps: deque[_Gap] = deque()
        self._members: deque[_Member] = deque([_Member(-1, 0)])  # that begin with a record
        self._new_members: deque[_Member] = deque()  # not yet known to begin with a record
        self._member = _Member(0, 0)  # the current one

        self._compressed = b""  # the last bytes read from the file
        self._cursor = 0  # number of these bytes that are decompressed
        self._decompressor: Any = None  # None between members

    @property
    def _end(self) -> int:
        """Position after the decompressed content."""
        return self._start + len(self._buffer)

    def fill(self, position: int) -> bool:
        """Decompresses the content up to a position; returns whether it extends that far."""
        while self._start + len(self._buffer) < position:
            if not self._extend():
                return False
        return True

    def ends_at(self, position: int) -> bool:
        """Whether the content ends at or before a position."""
        return not self.fill(position + 1)

    def read(self, position: int, size: int) -> bytes:
        """Returns `size` bytes starting at a position, fewer at the end of the content."""
        self.fill(position + size)
        first = position - self._start
        with memoryview(self._buffer) as view:
            return bytes(view[first : first + size])

    def discard(self, position: int) -> None:
        """Frees the content before a position, except the range to keep."""
        while len(self._members) > 1 and self._members[1].position <= position:
            self._members.popleft()
        if position - self._start >= BLOCK_BYTES:  # deleting less is not worth moving the rest
            self._kept += self._read_needed(position)
            del self._buffer[: position - self._start]
            self._start = position

    def keep(self, position: int, size: int) -> None:
        """Keeps `size` bytes, starting at a position, for `read_kept`, even after `discard`."""
        self._kept = bytearray()
        self._kept_range = range(position, position + size)

    def read_kept(self, size: int) -> bytes:
        """Returns up to `size` bytes, from the beginning of the kept range."""
        end = min(self._kept_range.start + size, self._kept_range.stop)
        kept = bytes(self._kept + self._read_needed(end))
        return kept[: end - self._kept_range.start]

    def _read_needed(self, end: int) -> bytes:
        """Returns the part of the buffer up to a position that is in the kept range."""
        first = max(self._kept_range.start, self._start) - self._start
        last = min(self._kept_range.stop, end) - self._start
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
        """Whether a record begins at a position, with its first line complete."""
        self.fill(position + _MAX_VERSION_LINE_BYTES)
        return _VERSION.match(self._buffer, position - self._start) is not None

    def is_cut_off_at(self, position: int) -> bool:
        """Whether the content ends within the first line of a record at a position."""
        rest = self.read(position, _MAX_VERSION_LINE_BYTES)
        return _VERSION_START.fullmatch(rest) is not None and self.ends_at(position + len(rest))

    def find_offset(self, position: int) -> int:
        """Returns the offset in the file of a position, or of its gzip member."""
        if self.is_plain:
            return position

        self._check_new_members()
        latest_first = reversed(self._members)
        return next(member.offset for member in latest_first if member.position <= position)

    def take_gap(self, position: int) -> _Gap | None:
        """Removes and returns the first gap if it ends at or before a position; otherwise None."""
        if self._gaps and self._gaps[0].end <= position:
            return self._gaps.popleft()
        return None

    def has_gap(self, end: int) -> bool:
        """Whether a gap begins at a position, or after line ends at the position."""
        after = self.skip_blank(end)
        return bool(self._gaps) and end <= self._gaps[0].start <= after

    def take_gap_of_record(self, end: int, *, is_whole: bool) -> _Gap | None:
        """Removes and returns the gap that damages a record; None if it is intact.

        Args:
            end: The end of the record.
            is_whole: Whether the record has its declared length. Such a record is intact if only
                the end of its gzip member is missing.
        """
        after = self.skip_blank(end)
        if not self._gaps:
            return None

        gap = self._gaps[0]
        if gap.end > after or gap.start >= end or (is_whole and gap.reason == MEMBER_CUT_OFF):
            return None
        return self._gaps.popleft()

    def find_content(self, start: int) -> int | None:
        """Finds the content of the record at a position.

        Returns:
            The position after the header; None if the header has no end, is too long, or is cut by
            a barrier.
        """
        scanned = start
        while True:
            match = _HEADER_END.search(self._buffer, scanned - self._start)
            end = self._end if match is None else self._start + match.end()
            barrier = self._find_barrier(start + 1)
            is_whole = barrier is None or end <= barrier
            if match is not None:
                is_empty_line = match[0].endswith((b"\n\n", b"\n\r\n"))
                is_header_end = is_whole and is_empty_line and end - start <= MAX_HEADER_BYTES
                return end if is_header_end else None
            if not is_whole or end - start > MAX_HEADER_BYTES:
                return None
            scanned = max(start, end - _MAX_VERSION_LINE_BYTES)
            if not self.fill(end + 1):
                return None

    def find_end(self, start: int, length: int) -> int | None:
        """Returns the end of the content of a record; None if its declared length is wrong.

        The length is right if two line ends follow, or another record, or the end of the file.
        Lengths above `MAX_BUFFERED_BYTES` are not verified; the content then ends there, or where
        a gzip member begins with a record.

        Args:
            start: The position of the content.
            length: The declared length.
        """
        end = start + length
        if self.is_plain and end > self._size:
            return None
        if length > MAX_BUFFERED_BYTES and self.fill(start + MAX_BUFFERED_BYTES):
            return self._discard_until(start, end)

        is_complete = self.fill(end)
        barrier = self._find_barrier(start)
        if not is_complete or (barrier is not None and barrier < end):
            return None

        self.fill(end + 4)
        if self._buffer.startswith((b"\r\n\r\n", b"\n\n"), end - self._start):
            return end

        after = self.skip_blank(end)
        is_last = self.ends_at(after) or self.has_gap(end)
        if self._gaps and self._gaps[0].end <= after:
            is_last = True
        return end if is_last or self.begins_record(after) else None

    def _discard_until(self, start: int, end: int) -> int:
        """Discards the content up to `end`, the next barrier, or the end of the file.

        Returns:
            The position up to which the content was discarded.
        """
        while True:
            barrier = self._find_barrier(start)
            if barrier is not None and barrier < end:
                return barrier
            if self._end >= end:
                return end
            self.discard(self._end)
            if not self._extend():
                return self._end

    def find_record(self, position: int) -> int:
        """Finds the next record, barrier or end of the content, starting at a position.

        Discards the content before it, and returns its position.
        """
        scanned = position
        while True:
            end = self._end
            match = _VERSION_LINE.search(self._buffer, scanned - self._start)
            barrier = self._find_barrier(position)
            if match is not None:
                next_record = self._start + match.start() + 1  # after the line feed
                return next_record if barrier is None else min(next_record, barrier)
            if barrier is not None:
                return barrier
            scanned = max(position, end - _MAX_VERSION_LINE_BYTES)
            self.discard(scanned)
            if not self.fill(end + 1):
                return end

    def _find_barrier(self, position: int) -> int | None:
        """Returns the first barrier at or after a position; None if there is none.

        No record extends beyond a barrier. Barriers are the beginnings of gzip members that begin
        with a record, and the beginnings and ends of gaps.
        """
        edge = None
        for gap in self._gaps:
            if gap.end >= position:
                edge = gap.start if gap.start > position else gap.end
                break

        self._check_new_members()
        for member in self._members:
            if member.position >= position:
                return member.position if edge is None else min(member.position, edge)
        return edge

    def _check_new_members(self) -> None:
        """Moves new gzip members that begin with a record to `_members`, and drops the others."""
        while self._new_members:
            member = self._new_members.popleft()
            if member.position >= self._start and self.begins_record(member.position):
                self._members.append(member)

    def _extend(self) -> bool:
        """Adds a block to the buffer; returns False at the end of the file."""
        if not self.is_plain:
            return self._decompress()

        data = self._file.read(BLOCK_BYTES)
        self._buffer += data
        return bool(data)

    def _decompress(self) -> bool:
        """Adds a decompressed block or a gap; returns False at the end of the file."""
        block = b""
        while not block:
            if self._decompressor is None and not self._begin_member():
                return False

            # In small parts, because the decompressor copies input that it does not use up.
            data = self._compressed[self._cursor : self._cursor + _INPUT_BYTES]
            try:
                block = self._decompressor.decompress(data, BLOCK_BYTES)
            except isal_zlib.error:  # type: ignore[misc]
                self._skip_member()
                return True

            is_member_end = self._decompressor.eof
            unread = self._decompressor.unconsumed_tail
            if is_member_end:
                unread = self._decompressor.unused_data
                self._decompressor = None
            self._cursor += len(data) - len(unread)

            is_used_up = self._cursor == len(self._compressed) and len(block) < BLOCK_BYTES
            if is_used_up and not is_member_end and not self._read_more():
                self._end_cut_off_member(block)
                return True

        self._buffer += block
        return True

    def _end_cut_off_member(self, block: bytes) -> None:
        """Ends the current member at the end of the file, after its last block."""
        self._decompressor = None
        self._buffer += block
        self._add_gap(MEMBER_CUT_OFF)

    def _read_more(self) -> bool:
        """Appends the next bytes of the file to the compressed data; returns False at its end."""
        data = self._file.read(COMPRESSED_BLOCK_BYTES)
        self._compressed = self._compressed[self._cursor :] + data
        self._cursor = 0
        return bool(data)

    def _begin_member(self) -> bool:
        """Begins the next gzip member; returns False at the end of the file."""
        while True:
            padding = _GZIP_PADDING.match(self._compressed, self._cursor)
            assert padding is not None
            self._cursor = padding.end()
            remaining = len(self._compressed) - self._cursor
            if remaining < len(_GZIP_MARK) and self._read_more():
                continue
            if not remaining:
                return False

            offset = self._file.tell() - remaining
            self._member = _Member(self._end, offset)
            self._new_members.append(self._member)
            if self._compressed.startswith(_GZIP_MARK, self._cursor):
                self._decompressor = isal_zlib.decompressobj(wbits=GZIP_WBITS)
                return True

            is_cut_off = _GZIP_MARK.startswith(self._compressed[self._cursor :])
            self._add_gap(MEMBER_CUT_OFF if is_cut_off else "no gzip member begins there")
            self._seek_member(offset + 1)

    def _skip_member(self) -> None:
        """Moves from a member that cannot be decompressed to the next one.

        The failing call did not return the content just before the damage; it is recovered by
        decompressing the member again in small steps.
        """
        member = self._member
        buffered_bytes = self._end - member.position
        decompressed_bytes = 0
        decompressor = zlib.decompressobj(GZIP_WBITS)
        self._file.seek(member.offset)
        reason = "its checksum is wrong"
        try:
            while not decompressor.eof:
                data = self._file.read(_SMALL_INPUT_BYTES)
                if not data:
                    break
                block = decompressor.decompress(data)
                self._buffer += block[max(buffered_bytes - decompressed_bytes, 0) :]
                decompressed_bytes += len(block)
        except zlib.error as error:
            reason = str(error).rpartition(": ")[2]

        self._add_gap(f"a gzip member cannot be decompressed: {reason}")
        self._seek_member(member.offset + 1)

    def _add_gap(self, reason: str) -> None:
        """Records that the current member ends here because of damage."""
        member = self._member
        self._gaps.append(_Gap(member.position, self._end, member.offset, reason))

    def _seek_member(self, offset: int) -> None:
        """Moves to the first gzip member at or after an offset, or to the end of the file."""
        self._decompressor = None
        self._compressed = b""
        self._cursor = 0
        self._file.seek(offset)
        data = b""
        while block := self._file.read(COMPRESSED_BLOCK_BYTES):
            data += block
            position = self._file.tell()
            mark = data.find(_GZIP_MARK)
            while mark >= 0:
                start = position - len(data) + mark
                if self._is_member(start):
                    self._file.seek(start)
                    return
                mark = data.find(_GZIP_MARK, mark + 1)
            self._file.seek(position)
            data = data[1 - len(_GZIP_MARK) :]

    def _is_member(self, offset: int) -> bool:
        """Whether a gzip member begins at an offset, not just its magic number; moves the file."""
        self._file.seek(offset)
        decompressor = zlib.decompressobj(GZIP_WBITS)
        try:
            content = decompressor.decompress(self._file.read(_TRIAL_BYTES), _TRIAL_BYTES)
        except zlib.error:
            return False
        return bool(content) or decompressor.eof
