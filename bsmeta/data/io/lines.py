"""Read the lines of a shard, from any line on.

A `LineReader` has a position in one shard; continuing from there needs no seek, and a later
position is reached through an access point, if there is one. It does not parse JSON: `windows`
interprets the lines. `open_shard` returns it, or a `ParquetReader`, whose rows are read as lines.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from bsmeta.data.io.files import open_file, shard_content
from bsmeta.data.io.index import IndexCache, ShardIndex
from bsmeta.data.io.inflate import LFS, LFS_POINTER, AccessPoint, DamagedFileError
from bsmeta.data.io.remote import FileRef
from bsmeta.data.io.shards import is_parquet
from bsmeta.metadata.records import Line, WholeLine

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

LONGEST_LINE = 1 << 28
"""In bytes. A shard that decompresses to an endless line would otherwise exhaust the memory."""

OVERLONG = b"\n"
"""Placeholder for a longer line, whose content is discarded; no real line contains a newline."""


class ShardReader(Protocol):
    """The documents of one shard as lines of JSON, whatever its format.

    Attributes:
        line: Number of the next line.
        ended: Whether the last `read` reached the end of what can be read.
        damage: Why no further line can be read, in a truncated or damaged file; else empty.
    """

    path: str | FileRef
    line: int
    ended: bool
    damage: str

    def read(self, first: int, count: int) -> Sequence[Line]:
        """Up to `count` lines from line `first` on; fewer if the shard ends or is damaged."""

    def take(self, numbers: Sequence[int]) -> Sequence[Line]:
        """The lines with these numbers, which increase; fewer if the shard ends or is damaged."""

    def close(self) -> None:
        """Closes the file."""


def open_shard(
    path: str | FileRef,
    indexes: IndexCache | None = None,
    columns: Collection[str] | None = None,
    late: Collection[str] = (),
) -> ShardReader:
    """The reader for the format of a shard.

    Args:
        indexes: Where access points of a compressed shard may be found.
        columns: The columns that are needed (see `metadata.decoding.Decoder`); a Parquet shard is
            read without the others. None reads all.
        late: Those of them that its lines may lack until they are needed: see `PartialLine`.
    """
    if is_parquet(path):
        from bsmeta.data.io.parquet import ParquetReader

        return ParquetReader(path, columns, late)
    return LineReader(path, indexes)


class LineReader:
    """The lines of one shard, without their ends and a byte order mark before the first.

    Args:
        indexes: Where its access points may be found.

    Attributes:
        line: Number of the next line.
        ended: Whether the last `read` reached the end of what can be read.
        damage: Why no further line can be read, in a truncated or damaged file; else empty.
    """

    def __init__(self, path: str | FileRef, indexes: IndexCache | None = None) -> None:
        self.path = path
        self._indexes = indexes
        self._index: ShardIndex | None = None
        self._enter(None)

    def _enter(self, point: AccessPoint | None) -> None:
        self.line = point.line if point else 0
        self.ended = False
        self.damage = ""
        self._file = open_file(self.path)  # closed by `close`
        self._blocks = shard_content(self.path, self._file, point)
        self._lines: list[WholeLine] = []  # complete lines that were read, the next line last
        self._rest: list[bytes] = []  # the parts of a line whose end has not been read yet
        self._rest_bytes = 0  # of that line; its parts are discarded if it is too long

    def read(self, first: int, count: int) -> list[WholeLine]:
        """Up to `count` lines from line `first` on; fewer if the shard ends or is damaged."""
        return self.take(range(first, first + count))

    def take(self, numbers: Sequence[int]) -> list[WholeLine]:
        """The lines with these numbers, which increase; fewer if the shard ends or is damaged."""
        lines: list[WholeLine] = []
        # A view would keep its whole block in memory, unwanted lines included.
        copies = len(numbers) > 0 and numbers[-1] - numbers[0] >= len(numbers)
        may_look = True  # for an index: once, because that reads from the disk
        for number in numbers:
            if number != self.line:
                self._go_to(number, may_look=may_look)
                may_look = False
            line = self._next()
            if line is None:
                break
            lines.append(bytes(line) if copies else line)
        self.ended = len(lines) < len(numbers)
        return lines

    def _go_to(self, line: int, *, may_look: bool) -> None:
        if line < self.line or line > self.line + len(self._lines):
            if self._index is None and self._indexes and may_look:
                self._index = self._indexes.load(self.path)
            point = self._index.before(line) if self._index else None
            if line < self.line or (point and point.line > self.line + len(self._lines)):
                self.close()
                self._enter(point)
        while self.line < line and self._next() is not None:
            pass

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that have been read, which may be more than the lines needed."""
        return self._file.tell()

    def close(self) -> None:
        """Closes the file."""
        self._blocks.close()
        self._file.close()

    def _next(self) -> WholeLine | None:
        while not self._lines:
            if not self._fill():
                return None
        line = self._lines.pop()
        if self.line == 0:
            if line[: len(LFS_POINTER)] == LFS_POINTER:
                self._lines, self.damage = [], LFS
                self._blocks.close()
                self._join_rest()
                return None
            if line[: len(BYTE_ORDER_MARK)] == BYTE_ORDER_MARK:
                line = line[len(BYTE_ORDER_MARK) :]
        self.line += 1
        return line

    def _fill(self) -> bool:
        """Reads a block; returns false at the end."""
        try:
            block = next(self._blocks, None)
        except (DamagedFileError, OSError) as error:
            self.damage = str(error)
            self._join_rest()
            return False
        if block is None:
            last = self._join_rest()
            self._lines = [last] if last else []
            return bool(last)
        end = block.find(b"\n")
        if end < 0:
            self._add_to_rest(block)
            return True
        self._add_to_rest(block[:end])
        lines: list[WholeLine] = [self._join_rest()]
        view = memoryview(block)
        begin = end + 1
        while (end := block.find(b"\n", begin)) >= 0:
            lines.append(view[begin:end])
            begin = end + 1
        self._lines = lines[::-1]
        self._add_to_rest(block[begin:])
        return True

    def _add_to_rest(self, part: bytes) -> None:
        self._rest_bytes += len(part)
        if self._rest_bytes > LONGEST_LINE:
            self._rest.clear()
        else:
            self._rest.append(part)

    def _join_rest(self) -> bytes:
        """Joins the parts of a line, and clears them."""
        line = OVERLONG if self._rest_bytes > LONGEST_LINE else b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        return line


def first_lines(path: str | FileRef, count: int) -> list[bytes]:
    """The first lines of a shard, with all columns."""
    reader = open_shard(path)
    lines = [bytes(line) for line in reader.read(0, count)]
    reader.close()
    return lines


def has_line(path: str | FileRef, line: int, indexes: IndexCache) -> bool:
    """Whether a shard has a line of this number."""
    reader = open_shard(path, indexes, columns=())
    found = reader.read(line, 1)
    reader.close()
    return bool(found)
