"""Reads the lines of a shard, from any line on, with access points.

A `LineReader` has a position in one shard. Lines that follow it are read without seeking; a distant
line is reached through an access point, if there is one. The lines are not parsed: decoders do that
(`metadata.decoding`). `shard_lines.open_shard` returns a `LineReader`, or a `ParquetReader`, whose
rows are read as lines.

    python -m bsmeta.data.io.lines 'shards/*.jsonl.gz' [--cache FOLDER]

builds access points in advance. Otherwise, each loader process builds them in a background thread
for the shards that it reads, so that a resumed run has them.
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
from bsmeta.core.files import explain_full_disk, refuse_undecodable
from bsmeta.core.process import run_and_report
from bsmeta.core.progress import report_each
from bsmeta.data.io.cache import Arrays, Cache
from bsmeta.data.io.compression import (
    BLOCK,
    LFS,
    LFS_POINTER,
    AccessPoint,
    DamagedFileError,
    read_zst_blocks,
)
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import measure_file, open_file, shard_content
from bsmeta.data.io.shard_reader import ShardReader
from bsmeta.data.io.shards import check_are_files, is_parquet, list_entry_files
from bsmeta.metadata.records import WholeLine

log = logging.getLogger(__name__)

SPACING = 4 << 20  # bytes of content between points: about 3 ms of reading
MIN_INDEXED_BYTES = 1 << 20  # smaller files are not worth an index
LONG_FRAME = 4 << 20  # bytes; files with longer Zstandard frames have too few of them to seek
_CACHE_KIND = "index"

EXPORT_HEADER = struct.Struct("<5sBBQQIII")
"""Header of an index that indexed_gzip exports: magic, version, flags, compressed size,
uncompressed size, spacing, window size, number of points."""

EXPORT_POINT = np.dtype([("offset", "<u8"), ("raw", "<u8"), ("bits", "u1"), ("has_window", "u1")])
"""A point of an exported index; see `AccessPoint` for its fields."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MAX_LINE_BYTES = 1 << 28
"""Maximum length of a line, as a shard may decompress to an endless line."""

OVERLONG = b"\n"
"""Placeholder for a longer line, whose content is discarded; a real line contains no newline."""


class ShardIndex:
    """The access points of one shard.

    Args:
        arrays: As the cache stores them: `numbers`, int64[points, 4], the raw, line, offset and
            bits of each `AccessPoint`, in order; `windows`, their concatenated compressed windows;
            and `ends`, the offset at which each of these ends.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self._numbers = arrays["numbers"]
        self._lines = self._numbers[:, AccessPoint._fields.index("line")]
        self._ends = arrays["ends"]
        self._windows = arrays["windows"].tobytes()

    @classmethod
    def from_points(cls, numbers: np.ndarray, windows: Sequence[bytes] = ()) -> ShardIndex:
        """Builds an index from points.

        Args:
            numbers: The raw, line, offset and bits of each point, int64[points, 4].
            windows: The window of each point; by default, all are empty.
        """
        compressed = [zlib.compress(window, 1) for window in windows or [b""] * len(numbers)]
        ends = np.cumsum([len(window) for window in compressed], dtype=np.int64)
        content = np.frombuffer(b"".join(compressed), np.uint8)
        return cls({"numbers": numbers, "ends": ends, "windows": content})

    def find_last_before(self, line: int) -> AccessPoint | None:
        """Returns the last point before the beginning of a line; None if there is none."""
        index = int(np.searchsorted(self._lines, line, side="left")) - 1
        if index < 0:
            return None

        raw, point_line, offset, bits = self._numbers[index].tolist()
        begin = self._ends[index - 1] if index else 0
        window = zlib.decompress(self._windows[begin : self._ends[index]])
        return AccessPoint(raw, point_line, offset, bits, window)


class IndexCache:
    """The shard indexes in a cache folder."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._requests: queue.SimpleQueue[str | FileRef] = queue.SimpleQueue()
        self._builder = 0  # PID of the process with the thread: threads do not survive a fork

    def load(self, path: str | FileRef) -> ShardIndex | None:
        """Loads the index of a shard's current content; returns None if there is none yet."""
        arrays = self._cache.load(path, _CACHE_KIND)
        return ShardIndex(arrays) if arrays else None

    def build(self, path: str | FileRef) -> None:
        """Builds the index of a shard, unless it exists; a Parquet file needs none.

        Raises:
            OSError: If the shard is damaged, or the index cannot be written.
            DataError: If the shard is on the Hub and cannot be reached.
        """
        if not is_parquet(path):
            self._cache.ensure(path, _CACHE_KIND, lambda: build_index(path).arrays)

    def request(self, path: str | FileRef) -> None:
        """Requests that a shard's index be built in the background, unless the shard is small."""
        if is_parquet(path) or measure_file(path) < MIN_INDEXED_BYTES:
            return
        self._requests.put(path)
        if self._builder != os.getpid():
            self._builder = os.getpid()
            threading.Thread(target=self._build_requested, daemon=True).start()

    def _build_requested(self) -> None:
        """Main loop of the thread that builds requested indexes."""
        while True:
            path = self._requests.get()
            try:
                self.build(path)
            except (UserError, OSError) as error:
                log.warning("no access points for %s: %s", path, error)


def build_index(path: str | FileRef) -> ShardIndex:
    """Builds the index of a shard in one pass over its content."""
    if str(path).endswith(".gz"):
        return _build_gzip_index(path)
    if str(path).endswith(".zst"):
        return _build_zst_index(path)

    with open_file(path) as file:
        line_ends = _find_line_ends(file)
    raw = np.arange(0, measure_file(path), SPACING)
    lines = np.searchsorted(line_ends, raw)
    offsets = raw
    bits = np.zeros_like(raw)
    return ShardIndex.from_points(np.stack([raw, lines, offsets, bits], axis=1))


def _build_zst_index(path: str | FileRef) -> ShardIndex:
    """Builds the index of a Zstandard file; its points are frames at least `SPACING` apart."""
    points: list[tuple[int, int, int, int]] = []
    raw = num_lines = current_frame = 0
    next_point = SPACING  # offset in the content
    with open_file(path) as file:
        try:
            for frame, block in report_each(read_zst_blocks(str(path), file)):
                if frame != current_frame and raw >= next_point:
                    points.append((raw, num_lines, frame, 0))
                    next_point = raw + SPACING
                current_frame = frame
                raw += len(block)
                num_lines += block.count(b"\n")
        except DamagedFileError as error:
            raise OSError(str(error)) from error
    return ShardIndex.from_points(np.array(points, np.int64).reshape(-1, 4))


def _build_gzip_index(path: str | FileRef) -> ShardIndex:
    """Builds the index of a gzip file with indexed_gzip, and converts it."""
    from indexed_gzip import IndexedGzipFile

    # A local file is read directly, not through Python. Its handle stays open: indexed_gzip would
    # otherwise open the file again for each read, and crash the process if it has been deleted.
    opened = open_file(path) if isinstance(path, FileRef) else contextlib.nullcontext(path)
    export = io.BytesIO()
    with opened as source, IndexedGzipFile(source, spacing=SPACING, drop_handles=False) as file:
        line_ends = _find_line_ends(file)
        file.export_index(fileobj=export)
    return _convert_gzip_index(export.getvalue(), line_ends)


def _convert_gzip_index(data: bytes, line_ends: np.ndarray) -> ShardIndex:
    """Converts an index that indexed_gzip exported.

    The export is an `EXPORT_HEADER`, then the `EXPORT_POINT`s, then the windows of the points that
    have one (the first point of each member has none).

    Args:
        line_ends: The offsets of all line ends in the content (int64).
    """
    *_, raw_size, _, window_size, num_points = EXPORT_HEADER.unpack_from(data)
    points = np.frombuffer(data, EXPORT_POINT, count=num_points, offset=EXPORT_HEADER.size)
    position = EXPORT_HEADER.size + points.nbytes

    points = points[points["raw"] < raw_size]  # the last point may be the end of the file
    windows = []
    for has_window in points["has_window"]:
        size = window_size if has_window else 0
        windows.append(data[position : position + size])
        position += size

    raw = points["raw"].astype(np.int64)
    numbers = [raw, np.searchsorted(line_ends, raw), points["offset"], points["bits"]]
    return ShardIndex.from_points(np.stack(numbers, axis=1).astype(np.int64), windows)


def _find_line_ends(file: BinaryIO) -> np.ndarray:
    """Returns the offsets of all line ends in a file (int64)."""
    ends = [np.zeros(0, np.int64)]
    block_start = 0
    for block in report_each(iter(lambda: file.read(BLOCK), b"")):
        ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + block_start)
        block_start += len(block)
    return np.concatenate(ends)


def begins_with_long_frame(path: str | FileRef) -> bool:
    """Returns whether the first non-empty frame of a Zstandard file is longer than `LONG_FRAME`.

    Raises:
        OSError: If the file is local and cannot be read.
        DataError: If the file is on the Hub and cannot be read.
    """
    first_frame = None
    # Damage is reported when the file is read as a shard.
    with open_file(path) as file, contextlib.suppress(DamagedFileError):
        for frame, _ in read_zst_blocks(str(path), file):
            first_frame = frame if first_frame is None else first_frame
            if frame > first_frame or file.tell() > LONG_FRAME:
                return frame == first_frame
    return False


class LineReader(ShardReader):
    """Reads the lines of one shard, without line ends and without a leading byte order mark.

    Args:
        indexes: Cache of the shard's access points; None reads without them.
    """

    def __init__(self, path: str | FileRef, indexes: IndexCache | None = None) -> None:
        super().__init__(path)
        self._indexes = indexes
        self._index: ShardIndex | None = None
        self._open_at(None)

    def _open_at(self, point: AccessPoint | None) -> None:
        """Opens the shard at an access point; None opens it at the beginning."""
        self.line = point.line if point else 0
        self.ended = False
        self.damage = ""
        self._file = open_file(self.path)  # closed by `close`
        self._blocks = shard_content(self.path, self._file, point)
        self._lines: list[WholeLine] = []  # complete lines that were read, the next one last
        self._line_parts: list[bytes] = []  # the parts of a line whose end has not been read yet
        self._num_line_bytes = 0  # of that line; its parts are discarded if it is too long

    def read(self, first: int, count: int) -> list[WholeLine]:
        """Returns up to `count` lines from `first` on; fewer if the shard ends or is damaged."""
        return self.take(range(first, first + count))

    def take(self, numbers: Sequence[int]) -> list[WholeLine]:
        """Returns the lines with the given increasing numbers; fewer at the end or at damage."""
        lines: list[WholeLine] = []
        # A view would keep its whole block in memory, including the lines that are not requested.
        has_gaps = len(numbers) > 0 and numbers[-1] - numbers[0] >= len(numbers)
        may_load_index = True  # only once for each call, because it reads from the disk
        for number in numbers:
            if number != self.line:
                self._go_to(number, may_load_index=may_load_index)
                may_load_index = False
            line = self._read_next()
            if line is None:
                break
            lines.append(bytes(line) if has_gaps else line)

        self.ended = len(lines) < len(numbers)
        return lines

    def _go_to(self, line: int, *, may_load_index: bool) -> None:
        """Moves to a line, or to the end if the shard has fewer lines."""
        if line < self.line or line > self.line + len(self._lines):
            if self._index is None and self._indexes and may_load_index:
                self._index = self._indexes.load(self.path)

            # A point within the lines that were already read would only read them again.
            point = self._index.find_last_before(line) if self._index else None
            if line < self.line or (point and point.line > self.line + len(self._lines)):
                self.close()
                self._open_at(point)

        while self.line < line and self._read_next() is not None:
            pass

    @property
    def bytes_read(self) -> int:
        """Number of bytes of the file read so far, possibly beyond the last returned line."""
        return self._file.tell()

    def close(self) -> None:
        """Closes the file."""
        self._blocks.close()
        self._file.close()

    def _read_next(self) -> WholeLine | None:
        """Returns the next line; None if the shard ends or is damaged."""
        while not self._lines:
            if not self._read_block():
                return None

        line = self._lines.pop()
        if self.line == 0:
            if line[: len(LFS_POINTER)] == LFS_POINTER:
                self._end_at_lfs_pointer()
                return None
            if line[: len(BYTE_ORDER_MARK)] == BYTE_ORDER_MARK:
                line = line[len(BYTE_ORDER_MARK) :]
        self.line += 1
        return line

    def _end_at_lfs_pointer(self) -> None:
        """Records that the file is a Git LFS pointer, and drops its lines."""
        self.damage = LFS
        self._blocks.close()
        self._lines = []
        self._finish_line()

    def _read_block(self) -> bool:
        """Reads a block and splits it into lines; returns False at the end or at damage."""
        try:
            block = next(self._blocks, None)
        except (DamagedFileError, OSError) as error:
            self.damage = str(error)
            self._finish_line()
            return False

        if block is None:
            last_line = self._finish_line()
            self._lines = [last_line] if last_line else []
            return bool(last_line)

        end = block.find(b"\n")
        if end < 0:
            self._add_to_line(block)
            return True

        self._add_to_line(block[:end])
        lines: list[WholeLine] = [self._finish_line()]
        view = memoryview(block)
        begin = end + 1
        while (end := block.find(b"\n", begin)) >= 0:
            lines.append(view[begin:end])
            begin = end + 1
        self._lines = lines[::-1]
        self._add_to_line(block[begin:])
        return True

    def _add_to_line(self, part: bytes) -> None:
        """Adds a part to the line whose end has not been read yet."""
        self._num_line_bytes += len(part)
        if self._num_line_bytes > MAX_LINE_BYTES:
            self._line_parts.clear()
        else:
            self._line_parts.append(part)

    def _finish_line(self) -> bytes:
        """Returns the line that consists of the parts so far, and clears the parts."""
        line = OVERLONG if self._num_line_bytes > MAX_LINE_BYTES else b"".join(self._line_parts)
        self._line_parts = []
        self._num_line_bytes = 0
        return line


def main() -> int:
    """Builds the indexes of the shards named on the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the access points of shards.")
    parser.add_argument("shards", nargs="+", help="files, folders or globs, also hf://")
    parser.add_argument("--cache", help="cache folder (data_config.cache_dir)")
    arguments = parser.parse_args()

    config = DataConfig(cache_dir=arguments.cache)
    indexes = IndexCache(Cache(config.cache_dir))
    try:
        shards: set[str | FileRef] = set()
        for entry in arguments.shards:
            shards.update(list_entry_files(entry, config))
        paths = sorted(shards, key=str)
        refuse_undecodable(paths, "shards")
        check_are_files(paths)
        for path in paths:
            indexes.build(path)
            print(path)
    except (UserError, OSError) as error:
        print(f"error: {explain_full_disk(error) or error}", file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(run_and_report(main))
