"""Reads the lines of a shard, from any line on, with access points.

A `LineReader` has a position in one shard; continuing from there needs no seek, and a later
position is reached through an access point, if there is one. It does not parse JSON: `windows`
interprets the lines. `shard_lines.open_shard` returns it, or a `ParquetReader`, whose rows are read
as lines.

    python -m bsmeta.data.io.lines 'shards/*.jsonl.gz' [--cache FOLDER]

builds access points in advance. Otherwise a loader process builds those of the shards that it
reads, in a background thread, for the resumed run that will need them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import queue
import struct
import sys
import threading
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import UserError
from bsmeta.core.exit_codes import EXIT_USER_ERROR
from bsmeta.core.files import full_disk_error, refuse_undecodable
from bsmeta.core.process import exit_code
from bsmeta.core.progress import reporting
from bsmeta.data.io.cache import Arrays, Cache
from bsmeta.data.io.compression import (
    BLOCK,
    LFS,
    LFS_POINTER,
    AccessPoint,
    DamagedFileError,
    zst_blocks,
)
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import open_file, shard_content, size_of
from bsmeta.data.io.shard_reader import ShardReader
from bsmeta.data.io.shards import check_are_files, expand, is_parquet
from bsmeta.metadata.records import WholeLine

log = logging.getLogger(__name__)

SPACING = 4 << 20  # bytes of content between points: about 3 ms of reading
SMALLEST = 1 << 20  # bytes of the smallest file worth an index
LONG_FRAME = 4 << 20  # bytes: from here on, the frames of a Zstandard file are too few to seek
KIND = "index"
POINT = np.dtype([("offset", "<u8"), ("raw", "<u8"), ("bits", "u1"), ("has_window", "u1")])

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

LONGEST_LINE = 1 << 28
"""In bytes. A shard that decompresses to an endless line would otherwise exhaust the memory."""

OVERLONG = b"\n"
"""Placeholder for a longer line, whose content is discarded; no real line contains a newline."""


class ShardIndex:
    """The access points of one shard.

    Args:
        arrays: As the cache holds them: `numbers`, int64[points, 4], the raw, line, offset and bits
            of each `AccessPoint`, in order; `windows`, their compressed windows, end to end; and
            `ends`, where each of these ends.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self._numbers, self._ends = arrays["numbers"], arrays["ends"]
        self._windows = arrays["windows"].tobytes()

    @classmethod
    def of(cls, numbers: np.ndarray, windows: Sequence[bytes] = ()) -> ShardIndex:
        """The index of points with these numbers and windows, by default empty ones."""
        packed = [zlib.compress(window, 1) for window in windows or [b""] * len(numbers)]
        ends = np.cumsum([len(window) for window in packed], dtype=np.int64)
        content = np.frombuffer(b"".join(packed), np.uint8)
        return cls({"numbers": numbers, "ends": ends, "windows": content})

    def before(self, line: int) -> AccessPoint | None:
        """The last point from which line `line` can be reached; None if there is none.

        A point may lie inside a line, and that line cannot be reached from it.
        """
        place = int(np.searchsorted(self._numbers[:, 1], line, side="left")) - 1
        if place < 0:
            return None
        raw, number, offset, bits = self._numbers[place].tolist()
        begin = self._ends[place - 1] if place else 0
        window = zlib.decompress(self._windows[begin : self._ends[place]])
        return AccessPoint(raw, number, offset, bits, window)


class IndexCache:
    """The indexes in a cache folder."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._wanted: queue.SimpleQueue[str | FileRef] = queue.SimpleQueue()
        self._builder = 0  # PID of the process with the thread: threads do not survive a fork

    def load(self, path: str | FileRef) -> ShardIndex | None:
        """The index of a shard's current content; None if there is none yet."""
        kept = self._cache.load(path, KIND)
        return ShardIndex(kept) if kept else None

    def build(self, path: str | FileRef) -> None:
        """Builds the index of a shard, unless it exists; a Parquet file needs none.

        Raises:
            OSError: If the shard is damaged, or the index cannot be written.
            DataError: If the shard is on the Hub and cannot be reached.
        """
        if not is_parquet(path):
            self._cache.make(path, KIND, lambda: build_index(path).arrays)

    def request(self, path: str | FileRef) -> None:
        """Requests a background build of the index of a shard, if it is worth one."""
        if is_parquet(path) or size_of(path) < SMALLEST:
            return
        self._wanted.put(path)
        if self._builder != os.getpid():
            self._builder = os.getpid()
            threading.Thread(target=self._build_wanted, daemon=True).start()

    def _build_wanted(self) -> None:
        while True:
            path = self._wanted.get()
            try:
                self.build(path)
            except (UserError, OSError) as error:
                log.warning("no access points for %s: %s", path, error)


def build_index(path: str | FileRef) -> ShardIndex:
    """The access points of a shard, from one pass over it."""
    if str(path).endswith(".gz"):
        return _gzip_index(path)
    if str(path).endswith(".zst"):
        return _zst_index(path)
    with open_file(path) as file:
        ends = _line_ends(file)
    raw = np.arange(0, size_of(path), SPACING)
    return ShardIndex.of(
        np.stack([raw, np.searchsorted(ends, raw), raw, np.zeros_like(raw)], axis=1)
    )


def _zst_index(path: str | FileRef) -> ShardIndex:
    """The frames of a Zstandard file that begin at least `SPACING` bytes of content apart."""
    points: list[tuple[int, int, int, int]] = []
    raw = lines = frame = 0
    with open_file(path) as file:
        try:
            for offset, block in reporting(zst_blocks(file)):
                if offset != frame and raw >= (points[-1][0] if points else 0) + SPACING:
                    points.append((raw, lines, offset, 0))
                frame = offset
                raw += len(block)
                lines += block.count(b"\n")
        except DamagedFileError as error:
            raise OSError(str(error)) from error
    return ShardIndex.of(np.array(points, np.int64).reshape(-1, 4))


def _gzip_index(path: str | FileRef) -> ShardIndex:
    """The access points of a gzip file, found by indexed_gzip while it is read.

    Its export format is a header, then 18 bytes per point, then the windows of the points that have
    one (the first point of each member has none).
    """
    from indexed_gzip import IndexedGzipFile

    exported = io.BytesIO()
    # A local file is read directly, not through Python. Its handle stays open: indexed_gzip would
    # otherwise open the file again for each read, and crash the process if it has been deleted.
    opened = open_file(path) if isinstance(path, FileRef) else contextlib.nullcontext(path)
    with opened as source, IndexedGzipFile(source, spacing=SPACING, drop_handles=False) as file:
        ends = _line_ends(file)
        file.export_index(fileobj=exported)
    data = exported.getvalue()
    header = struct.Struct("<5sBBQQIII")
    *_, raw_size, _, window_size, count = header.unpack_from(data)
    rows = np.frombuffer(data, POINT, count=count, offset=header.size)
    place, windows = header.size + rows.nbytes, []
    rows = rows[rows["raw"] < raw_size]  # the last point may be the end of the file
    for has_window in rows["has_window"]:
        size = window_size if has_window else 0
        windows.append(data[place : place + size])
        place += size
    raw = rows["raw"].astype(np.int64)
    numbers = [raw, np.searchsorted(ends, raw), rows["offset"], rows["bits"]]
    return ShardIndex.of(np.stack(numbers, axis=1).astype(np.int64), windows)


def _line_ends(file: BinaryIO) -> np.ndarray:
    """Offsets of all line ends (int64)."""
    ends, place = [np.zeros(0, np.int64)], 0
    for block in reporting(iter(lambda: file.read(BLOCK), b"")):
        ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + place)
        place += len(block)
    return np.concatenate(ends)


def begins_with_long_frame(path: str | FileRef) -> bool:
    """Whether the first frame of a Zstandard file with content is longer than `LONG_FRAME`.

    Raises:
        OSError: If it is a local file that cannot be read.
        DataError: If it is on the Hub and cannot be read.
    """
    first = None
    with open_file(path) as file, contextlib.suppress(DamagedFileError):  # reported when it is read
        for offset, _ in zst_blocks(file):
            first = offset if first is None else first
            if offset > first or file.tell() > LONG_FRAME:
                return offset == first
    return False


class LineReader(ShardReader):
    """The lines of one shard, without their ends and a byte order mark before the first.

    Args:
        indexes: Where its access points may be found.
    """

    def __init__(self, path: str | FileRef, indexes: IndexCache | None = None) -> None:
        super().__init__(path)
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


def main() -> int:
    """Builds the indexes of the shards that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the access points of shards.")
    parser.add_argument("shards", nargs="+", help="files, folders or globs, also hf://")
    parser.add_argument("--cache", help="cache folder (data_config.cache_dir)")
    arguments = parser.parse_args()
    config = DataConfig(cache_dir=arguments.cache)
    indexes = IndexCache(Cache(config.cache_dir))
    try:
        found = {path for entry in arguments.shards for path in expand(entry, config)}
        paths = sorted(found, key=str)
        refuse_undecodable(paths, "shards")
        check_are_files(paths)
        for path in paths:
            indexes.build(path)
            print(path)
    except (UserError, OSError) as error:
        print(f"error: {full_disk_error(error) or error}", file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
