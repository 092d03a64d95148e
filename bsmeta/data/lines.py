"""Lines of a shard, from any line on.

A `LineReader` stands at one place of one shard; reading on from there costs no search. It knows
nothing of JSON: what a line means is decided in `windows`.
"""

from __future__ import annotations

import gzip
import importlib
import zlib
from types import ModuleType
from typing import Any, BinaryIO


def fastest(name: str, standard: ModuleType) -> Any:
    """isal's twin of a module; the standard library's own where isal is not built."""
    try:
        return importlib.import_module(f"isal.{name}")
    except ImportError:
        return standard


BLOCK = 1 << 20
GZIP = fastest("igzip", gzip)
DAMAGE = (EOFError, OSError, zlib.error, fastest("isal_zlib", zlib).error)


def open_shard(path: str) -> BinaryIO:
    """The decompressed bytes of a shard."""
    if path.endswith(".gz"):
        return GZIP.open(path, "rb")
    return open(path, "rb")


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
        self._file = open_shard(self.path)
        self._lines: list[bytes] = []  # complete lines that were read, the next one last
        self._rest = b""  # the beginning of a line whose end was not read yet
        self._ended = False

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
            if self._ended:
                return None
            self._fill()
        self.line += 1
        return self._lines.pop()

    def _fill(self) -> None:
        try:
            block = self._file.read(BLOCK)
        except DAMAGE as error:
            self.damage = f"{type(error).__name__}: {error}"
            self._ended = True
            return
        if block:
            *complete, self._rest = (self._rest + block).split(b"\n")
        else:
            self._ended = True
            complete = [self._rest] if self._rest else []
        self._lines = complete[::-1]


def has_line(path: str, line: int) -> bool:
    """Whether a shard has a line of this number."""
    reader = LineReader(path)
    found = reader.read(line, 1)
    reader.close()
    return bool(found)
