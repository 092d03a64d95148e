"""Opens a shard with the reader of its format, and reads some of its lines."""

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
    late: Collection[str] = (),
) -> ShardReader:
    """Opens a shard with the reader of its format.

    Args:
        indexes: Cache of the access points of compressed shards.
        columns: The columns to read (see `metadata.decoding.Decoder`) from a Parquet shard; None
            reads all. Other formats are always read with all columns.
        late: Columns that the lines may lack until they are needed: see `PartialLine`.
    """
    if is_parquet(path):
        from bsmeta.data.io.parquet import ParquetReader

        return ParquetReader(path, columns, late)
    return LineReader(path, indexes)


def read_first_lines(path: str | FileRef, count: int) -> list[bytes]:
    """Reads the first lines of a shard, with all columns."""
    with contextlib.closing(open_shard(path)) as reader:
        return [bytes(line) for line in reader.read(0, count)]


def has_line(path: str | FileRef, line: int, indexes: IndexCache) -> bool:
    """Returns whether a shard has a line of this number."""
    with contextlib.closing(open_shard(path, indexes, columns=())) as reader:
        return bool(reader.read(line, 1))
