"""Reads the lines of a shard from any line on, with the help of access points.

A `LineReader` reads the lines after its position without seeking, and reaches a distant line
through an access point if there is one. It does not parse the lines: decoders do that
(`metadata.decoding`). `shard_lines.open_shard` returns a `LineReader` or, for Parquet files, a
`ParquetReader`, which returns rows as lines.

    python -m bsmeta.data.io.lines 'shards/*.jsonl.gz' [--cache FOLDER]

builds access points in advance. Otherwise, each loader process builds the access points of the
shards that it reads in a background thread, so that a resumed run has them.
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
    BLOCK_BYTES,
    LFS_MESSAGE,
    LFS_POINTER,
    AccessPoint,
    DamagedFileError,
    read_zst_blocks,
)
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import measure_file, open_file, read_shard_content
from bsmeta.data.io.shard_reader import ShardReader
from bsmeta.data.io.shards import check_are_files, is_parquet, list_entry_files
from bsmeta.metadata.records import WholeLine

logger = logging.getLogger(__name__)

SPACING_BYTES = 4 << 20  # of content between points: about 3 ms of reading
MIN_INDEXED_BYTES = 1 << 20  # smaller files are not worth an index
LONG_FRAME_BYTES = 4 << 20  # files with longer Zstandard frames have too few frames to seek
_CACHE_KIND = "index"

EXPORT_HEADER = struct.Struct("<5sBBQQIII")
"""Header of an index that indexed_gzip exports: magic number, version, flags, compressed size,
uncompressed size, spacing, window size, number of points."""

EXPORT_POINT = np.dtype(
    [("file_offset", "<u8"), ("content_offset", "<u8"), ("bits", "u1"), ("has_window", "u1")]
)
"""A point of an exported index; see `AccessPoint` for its fields."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MAX_LINE_BYTES = 1 << 28
"""Maximum length of a line, as a shard may decompress to an endless line."""

OVERLONG = b"\n"
"""Placeholder for a longer line, whose content is discarded; no real line contains a newline."""


class ShardIndex:
    """The access points of one shard.

    Args:
        arrays: The arrays that the cache stores: `numbers`, int64[points, 4], the first four fields
            of each `AccessPoint`, in order; `windows`, uint8, the compressed windows of the points,
            concatenated; and `ends`, int64[points], the end of each window in `windows`.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self._points = arrays["numbers"]
        self._point_lines = self._points[:, AccessPoint._fields.index("line")]
        self._window_ends = arrays["ends"]
        self._windows = arrays["windows"].tobytes()

    @classmethod
    def from_points(cls, points: np.ndarray, windows: Sequence[bytes] = ()) -> ShardIndex:
        """Builds an index from points.

        Args:
            points: The first four fields of each `AccessPoint`, int64[points, 4].
            windows: The window of each point; by default, all are empty.
        """
        compressed = [zlib.compress(window, 1) for window in windows or [b""] * len(points)]
        ends = np.cumsum([len(window) for window in compressed], dtype=np.int64)
        content = np.frombuffer(b"".join(compressed), np.uint8)
        return cls({"numbers": points, "ends": ends, "windows": content})

    def find_last_before(self, line: int) -> AccessPoint | None:
        """Returns the last point before the beginning of a line; None if there is none."""
        index = int(np.searchsorted(self._point_lines, line, side="left")) - 1
        if index < 0:
            return None

        window_start = self._window_ends[index - 1] if index else 0
        window = zlib.decompress(self._windows[window_start : self._window_ends[index]])
        content_offset, point_line, file_offset, bits = self._points[index].tolist()
        return AccessPoint(content_offset, point_line, file_offset, bits, window)


class IndexCache:
    """Loads, builds and stores the indexes of shards in a cache folder."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._requests: queue.SimpleQueue[str | FileRef] = queue.SimpleQueue()
        # Id of the process whose thread builds indexes, because threads do not survive a fork.
        self._builder_process = 0

    def load(self, path: str | FileRef) -> ShardIndex | None:
        """Loads the index of a shard's current content; returns None if there is none yet."""
        arrays = self._cache.load(path, _CACHE_KIND)
        return ShardIndex(arrays) if arrays else None

    def build(self, path: str | FileRef) -> None:
        """Builds the index of a shard, unless it exists; a Parquet file needs none.

        Raises:
            OSError: If the shard is damaged, or the index cannot be written.
            DataError: If the shard is remote and cannot be read.
        """
        if not is_parquet(path):
            self._cache.ensure(path, _CACHE_KIND, lambda: build_index(path).arrays)

    def request(self, path: str | FileRef) -> None:
        """Requests that a shard's index be built in the background, unless the shard is small."""
        if is_parquet(path) or measure_file(path) < MIN_INDEXED_BYTES:
            return
        self._requests.put(path)
        if self._builder_process != os.getpid():
            self._builder_process = os.getpid()
            threading.Thread(target=self._build_requested, daemon=True).start()

    def _build_requested(self) -> None:
        """Main loop of the thread that builds requested indexes."""
        while True:
            path = self._requests.get()
            try:
                self.build(path)
            except (UserError, OSError) as error:
                logger.warning("no access points for %s: %s", path, error)


def build_index(path: str | FileRef) -> ShardIndex:
    """Builds the index of a shard in one pass over its content.

    Raises:
        OSError: If the shard is damaged or cannot be read.
        DataError: If the shard is remote and cannot be read.
    """
    if str(path).endswith(".gz"):
        return _build_gzip_index(path)
    if str(path).endswith(".zst"):
        return _build_zst_index(path)

    with open_file(path) as file:
        line_ends = _find_line_ends(file)
    offsets = np.arange(0, measure_file(path), SPACING_BYTES)  # in both the content and the file
    lines = np.searchsorted(line_ends, offsets)
    bits = np.zeros_like(offsets)
    return ShardIndex.from_points(np.stack([offsets, lines, offsets, bits], axis=1))


def _build_zst_index(path: str | FileRef) -> ShardIndex:
    """Builds the index of a Zstandard file: frames that are at least `SPACING_BYTES` apart."""
    points: list[tuple[int, int, int, int]] = []
    content_offset = num_lines = current_frame = 0
    next_point = SPACING_BYTES  # minimum content offset
    with open_file(path) as file:
        try:
            for frame, block in report_each(read_zst_blocks(str(path), file)):
                if frame != current_frame and content_offset >= next_point:
                    points.append((content_offset, num_lines, frame, 0))
                    next_point = content_offset + SPACING_BYTES
                current_frame = frame
                content_offset += len(block)
                num_lines += block.count(b"\n")
        except DamagedFileError as error:
            raise OSError(str(error)) from error
    return ShardIndex.from_points(np.array(points, np.int64).reshape(-1, 4))


def _build_gzip_index(path: str | FileRef) -> ShardIndex:
    """Builds the index of a gzip file with indexed_gzip, and converts it."""
    from indexed_gzip import IndexedGzipFile

    # The library itself opens a local file. The handle stays open: it would otherwise open the file
    # again for each read, and crash the process if the file has been deleted.
    source_context = open_file(path) if isinstance(path, FileRef) else contextlib.nullcontext(path)
    export = io.BytesIO()
    with (
        source_context as source,
        IndexedGzipFile(source, spacing=SPACING_BYTES, drop_handles=False) as file,
    ):
        line_ends = _find_line_ends(file)
        file.export_index(fileobj=export)
    return _convert_gzip_index(export.getvalue(), line_ends)


def _convert_gzip_index(data: bytes, line_ends: np.ndarray) -> ShardIndex:
    """Converts an index that indexed_gzip exported.

    Args:
        data: The export: an `EXPORT_HEADER`, then the `EXPORT_POINT`s, then the windows of the
            points that have one (the first point of each member has none).
        line_ends: The offsets of all line ends in the content (int64).
    """
    *_, content_size, _, window_size, num_points = EXPORT_HEADER.unpack_from(data)
    points = np.frombuffer(data, EXPORT_POINT, count=num_points, offset=EXPORT_HEADER.size)
    position = EXPORT_HEADER.size + points.nbytes

    points = points[points["content_offset"] < content_size]  # the last may be the end of the file
    windows = []
    for has_window in points["has_window"]:
        size = window_size if has_window else 0
        windows.append(data[position : position + size])
        position += size

    content_offsets = points["content_offset"].astype(np.int64)
    lines = np.searchsorted(line_ends, content_offsets)
    fields = [content_offsets, lines, points["file_offset"], points["bits"]]
    return ShardIndex.from_points(np.stack(fields, axis=1).astype(np.int64), windows)


def _find_line_ends(file: BinaryIO) -> np.ndarray:
    """Returns the offsets of all line ends in a file (int64)."""
    ends = [np.zeros(0, np.int64)]
    block_start = 0
    for block in report_each(iter(lambda: file.read(BLOCK_BYTES), b"")):
        ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + block_start)
        block_start += len(block)
    return np.concatenate(ends)


def begins_with_long_frame(path: str | FileRef) -> bool:
    """Returns whether a Zstandard file's first non-empty frame exceeds `LONG_FRAME_BYTES`.

    Raises:
        OSError: If the file is local and cannot be read.
        DataError: If the file is remote and cannot be read.
    """
    first_frame = None
    # Damage is reported when the file is read as a shard.
    with open_file(path) as file, contextlib.suppress(DamagedFileError):
        for frame, _ in read_zst_blocks(str(path), file):
            if first_frame is None:
                first_frame = frame
            if frame > first_frame:
                return False
            if file.tell() > LONG_FRAME_BYTES:
                return True
    return False


class LineReader(ShardReader):
    """Reads the lines of one shard, without line ends and without a leading byte order mark.

    Args:
        indexes: Cache of the shard's access points; None reads without access points.
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
        self._blocks = read_shard_content(self.path, self._file, point)
        self._lines: list[WholeLine] = []  # lines already read, in reverse order: the next is last
        self._line_parts: list[bytes] = []  # of a line whose end has not been read yet
        self._num_line_bytes = 0  # total size of the parts, also if they are discarded as too long

    def read(self, first: int, count: int) -> list[WholeLine]:
        """Returns up to `count` lines from `first` on; fewer if the shard ends or is damaged."""
        return self.take(range(first, first + count))

    def take(self, numbers: Sequence[int]) -> list[WholeLine]:
        """Returns the lines with the given increasing numbers; fewer at the end or at damage."""
        lines: list[WholeLine] = []
        has_gaps = len(numbers) > 0 and numbers[-1] - numbers[0] >= len(numbers)
        may_load_index = True  # only once for each call, because it reads from the disk
        for number in numbers:
            if number != self.line:
                self._go_to(number, may_load_index=may_load_index)
                may_load_index = False
            line = self._read_next()
            if line is None:
                break
            # With gaps, lines are copied: a view would keep its whole block in memory, including
            # the lines that are not requested.
            lines.append(bytes(line) if has_gaps else line)

        self.ended = len(lines) < len(numbers)
        return lines

    def _go_to(self, line: int, *, may_load_index: bool) -> None:
        """Moves to a line, or to the end if the shard has fewer lines.

        Args:
            may_load_index: Whether the index may be loaded from the cache if it is missing.
        """
        read_end = self.line + len(self._lines)
        if line < self.line or line > read_end:
            if self._index is None and self._indexes and may_load_index:
                self._index = self._indexes.load(self.path)

            # Going to a point before `read_end` would only read the same lines again.
            point = self._index.find_last_before(line) if self._index else None
            if line < self.line or (point and point.line > read_end):
                self.close()
                self._open_at(point)

        while self.line < line and self._read_next() is not None:
            pass

    @property
    def bytes_read(self) -> int:
        """Position in the file in bytes, which may be after the last returned line."""
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
        """Ends the shard and drops its lines, because the file is a Git LFS pointer."""
        self.damage = LFS_MESSAGE
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
        start = end + 1
        while (end := block.find(b"\n", start)) >= 0:
            lines.append(view[start:end])
            start = end + 1
        self._lines = lines[::-1]
        self._add_to_line(block[start:])
        return True

    def _add_to_line(self, part: bytes) -> None:
        """Adds a part to the unfinished line; discards its parts if it becomes too long."""
        self._num_line_bytes += len(part)
        if self._num_line_bytes > MAX_LINE_BYTES:
            self._line_parts.clear()
        else:
            self._line_parts.append(part)

    def _finish_line(self) -> bytes:
        """Returns the line that consists of the parts so far, or `OVERLONG`; clears the parts."""
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
