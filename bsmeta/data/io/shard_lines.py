"""Opens a shard with the reader for its format; reads its first lines or looks for one line."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.lines import IndexCache, LineReader
from bsmeta.data.io.shard_reader import ShardReader
from bsmeta.data.io.shards import is_parquet


def open_shard(
    path: str | FileRef,
    indexes: IndexCache | None = None,
    columns: Collection[str] | None = None,
    lazy_columns: Collection[str] = (),
) -> ShardReader:
    """Opens a shard with the reader for its format.

    Args:
        indexes: Cache of the access points of shards; None reads without access points.
        columns: The columns to read (see `metadata.decoding.Decoder`) from a Parquet shard; None
            reads all. Other formats are always read with all columns.
        lazy_columns: Columns of a Parquet shard that are converted only when they are needed; see
            `PartialLine`.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If a remote file cannot be read.
    """
    if is_parquet(path):
        from bsmeta.data.io.parquet import ParquetReader

        return ParquetReader(path, columns, lazy_columns)
    return LineReader(path, indexes)


def read_first_lines(path: str | FileRef, count: int) -> list[bytes]:
    """Reads up to `count` lines at the beginning of a shard, with all columns."""
    with contextlib.closing(open_shard(path)) as reader:
        return [bytes(line) for line in reader.read(0, count)]


def has_line(path: str | FileRef, line: int, indexes: IndexCache) -> bool:
    """Returns whether a shard has a line with this number (from 0)."""
    with contextlib.closing(open_shard(path, indexes, columns=())) as reader:
        return bool(reader.read(line, 1))
