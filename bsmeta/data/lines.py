"""Lines of a shard, from any line on.

A `LineReader` stands at one place of one shard; reading on from there costs no search. It knows
nothing of JSON: what a line means is decided in `windows`.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, BinaryIO

BLOCK = 1 << 20
COMPRESSED_BLOCK = 1 << 18


def fastest(name: str, standard: ModuleType) -> Any:
    """isal's twin of a module; the standard library's own where isal is not built."""
    try:
        return importlib.import_module(f"isal.{name}")
    except ImportError:
        return standard


ZLIB = fastest("isal_zlib", zlib)
GZIP_MEMBER = 31  # window bits that mean: a gzip header, a deflate stream, a checksum


class DamagedFileError(Exception):
    """A compressed file is cut, damaged, or of another format."""


def inflate(file: BinaryIO) -> Iterator[bytes]:
    """The content of a gzip file of one or several members, in blocks of at most `BLOCK` bytes.

    Raises:
        DamagedFileError: When everything before the damage was given out.
    """
    data = file.read(COMPRESSED_BLOCK)
    while data:
        member = ZLIB.decompressobj(wbits=GZIP_MEMBER)
        while not member.eof:
            if not data:
                raise DamagedFileError("the file ends in the middle of its data")
            try:
                block = member.decompress(data, BLOCK)
            except ZLIB.error as error:
                raise DamagedFileError(f"the data cannot be decompressed: {error}") from error
            if block:
                yield block
            data = member.unconsumed_tail
            if not data and not member.eof:
                data = file.read(COMPRESSED_BLOCK)
        # Behind a member: another one, or zeros that fill up a block of a tape.
        data = member.unused_data.lstrip(b"\0")
        while not data and (more := file.read(COMPRESSED_BLOCK)):
            data = more.lstrip(b"\0")


def blocks(path: str, file: BinaryIO) -> Iterator[bytes]:
    """The content of a shard in blocks; see `inflate`."""
    if path.endswith(".gz"):
        return inflate(file)
    return iter(lambda: file.read(BLOCK), b"")


class LineReader:
    """The lines of one shard, without their ends.

    Attributes:
        path: The shard.
        line: Number of the line that comes next.
        damage: Why no line can be read beyond it, in a file that is cut or damaged; else empty.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        self.line = 0
        self.damage = ""
        self._file = open(self.path, "rb")  # noqa: SIM115 (closed by `close`)
        self._blocks = blocks(self.path, self._file)
        self._lines: list[bytes] = []  # complete lines that were read, the next one last
        self._rest: list[bytes] = []  # the parts of a line whose end was not read yet

    def read(self, first: int, count: int) -> list[bytes]:
        """Up to `count` lines from line `first` on: fewer where the shard ends or is damaged."""
        if first < self.line:
            self.close()
            self._open()
        while self.line < first and self._next() is not None:
            pass
        lines: list[bytes] = []
        while len(lines) < count and (line := self._next()) is not None:
            lines.append(line)
        return lines

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _next(self) -> bytes | None:
        while not self._lines:
            if not self._fill():
                return None
        self.line += 1
        return self._lines.pop()

    def _fill(self) -> bool:
        """Reads a block; false at the end."""
        try:
            block = next(self._blocks, None)
        except (DamagedFileError, OSError) as error:
            self.damage, self._rest = str(error), []
            return False
        if block is None:
            last, self._rest = b"".join(self._rest), []
            self._lines = [last] if last else []
            return bool(last)
        head, *lines = block.split(b"\n")
        self._rest.append(head)
        if lines:
            *complete, rest = [b"".join(self._rest), *lines]
            self._lines, self._rest = complete[::-1], [rest]
        return True


def first_lines(path: str, count: int) -> list[bytes]:
    """The first lines of a shard."""
    reader = LineReader(path)
    lines = reader.read(0, count)
    reader.close()
    return lines


def has_line(path: str, line: int) -> bool:
    """Whether a shard has a line of this number."""
    reader = LineReader(path)
    found = reader.read(line, 1)
    reader.close()
    return bool(found)
