"""Read the rows of a Parquet shard as lines of JSON, from any row on.

Counterpart of `lines.LineReader`: the number of a document is that of its row. The footer has the
number of rows of each row group, so any group is entered directly, without an index. Inside a
group, rows are decoded page by page in small batches, so memory does not grow with the group; rows
before the first requested one are decoded, but not converted. Only requested columns are read.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from bsmeta.config.errors import UserError
from bsmeta.data.io.arrow_json import json_lines
from bsmeta.data.io.files import open_file, refuse_bad_copy
from bsmeta.data.io.hub import FileRef
from bsmeta.data.io.lines import Line

BATCH_BYTES = 2 << 20  # decoded at a time
VALUE_BYTES = 16  # memory of a value, at least, decoded and converted
BATCH_ROWS = 1024  # ... and at most so many rows
COLUMN_BUFFER = 1 << 18  # bytes of a column that are read at a time
MOST_BLOCKS = 8  # of a remote file in memory: its columns are read in turns

# Arrow's own allocator keeps several times as much memory as is in use.
pa.set_memory_pool(pa.system_memory_pool())

NO_ROWS = pa.record_batch([], names=[])

DAMAGED = (pa.ArrowException, OSError, ValueError, OverflowError)
"""What Arrow raises for content that it cannot decode."""


class ParquetReader:
    """The rows of one shard; see `lines.ShardReader`.

    Args:
        path: The shard.
        columns: Names of the columns to read, as far as the shard has them (`a.b` is the field `b`
            of the struct `a`); None reads all.

    Attributes:
        path: The shard.
        line: Number of the next row.
        ended: Whether the last `read` reached the end of what can be read.
        damage: Why no further row could be read, in a truncated or damaged file; else empty.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If the Hub cannot be reached, or the file was read from a bad copy.
    """

    def __init__(self, path: str | FileRef, columns: Collection[str] | None = None) -> None:
        self.path = path
        self.line = 0
        self.ended = False
        self.damage = ""
        self._columns = None if columns is None else sorted(columns)
        self._parquet: pq.ParquetFile | None = None  # if its footer is readable
        self._ends: list[int] = []  # of the row groups: number of the row after the last one
        self._group = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())  # the rest of the group
        self._batch = NO_ROWS
        self._first = 0  # number of the batch's first row
        blocks = MOST_BLOCKS if columns is None else min(len(columns) + 1, MOST_BLOCKS)
        self._file = open_file(path, blocks)  # closed by `close`
        with self._recorded_damage():
            parquet = pq.ParquetFile(
                self._file,
                pre_buffer=False,
                buffer_size=COLUMN_BUFFER,
                page_checksum_verification=True,
            )
            self._ends = row_group_ends(parquet.metadata)
            self._parquet = parquet

    def read(self, first: int, count: int) -> list[Line]:
        """Up to `count` rows from row `first` on; fewer if the shard ends or is damaged."""
        return self.take(range(first, first + count))

    def take(self, numbers: Sequence[int]) -> list[Line]:
        """The rows with these numbers, which increase; fewer if the shard ends or is damaged."""
        lines: list[Line] = []
        if self._parquet is not None:
            self.damage = ""  # of one row group; others may be readable
            with self._recorded_damage():
                while len(lines) < len(numbers) and self._go_to(numbers[len(lines)]):
                    end = self._first + len(self._batch)
                    rows = numbers[len(lines) : bisect.bisect_left(numbers, end)]
                    lines += json_lines(chosen(self._batch, [row - self._first for row in rows]))
                    self.line = rows[-1] + 1
        self.ended = len(lines) < len(numbers)
        return lines

    def close(self) -> None:
        """Closes the file."""
        self._parquet, self._batches, self._batch = None, iter(()), NO_ROWS
        self._file.close()

    def _go_to(self, row: int) -> bool:
        """Decodes the batch that contains a row; returns false if the shard has no such row."""
        group = bisect.bisect_right(self._ends, row)
        if group == len(self._ends):
            return False
        if group != self._group or row < self._first:
            self._enter(group)
        while row >= self._first + len(self._batch):
            self._first += len(self._batch)
            self._batch = NO_ROWS
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError(f"it ends before row {row + 1}")
            self._batch = batch
        return True

    def _enter(self, group: int) -> None:
        assert self._parquet is not None
        self._group = group
        self._first = self._ends[group - 1] if group else 0
        self._batch = NO_ROWS
        self._batches = self._parquet.iter_batches(
            batch_size=batch_rows(self._parquet.metadata.row_group(group), self._columns),
            row_groups=[group],
            columns=self._columns,
            use_threads=False,  # they would not survive the fork of the loader processes
        )

    @contextlib.contextmanager
    def _recorded_damage(self) -> Iterator[None]:
        """Turns errors of decoding into `damage`."""
        try:
            yield
        except UserError:  # the Hub cannot be reached
            raise
        except DAMAGED as error:
            refuse_bad_copy(self.path)
            where = f"row group {self._group}" if self._parquet else "the footer"
            self.damage = f"{where} cannot be read: {error}"
            self._group = -1  # to be entered again


def row_group_ends(metadata: pq.FileMetaData) -> list[int]:
    """For each row group, the number of rows in it and those before it."""
    groups = range(metadata.num_row_groups)
    return list(itertools.accumulate(metadata.row_group(group).num_rows for group in groups))


def batch_rows(group: pq.RowGroupMetaData, columns: Sequence[str] | None) -> int:
    """How many rows of a row group to decode at a time, from their average size.

    Repeated values are stored once and counted, so the number of values matters, too.
    """
    size = sum(
        column.total_uncompressed_size + column.num_values * VALUE_BYTES
        for column in map(group.column, range(group.num_columns))
        if columns is None or is_selected(column.path_in_schema, columns)
    )
    return max(min(BATCH_BYTES * group.num_rows // max(size, 1), BATCH_ROWS), 1)


def is_selected(path: str, columns: Sequence[str]) -> bool:
    """Whether a path in the schema (`a.b`) belongs to one of the columns."""
    return any(path == column or path.startswith(f"{column}.") for column in columns)


def chosen(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Some rows of a batch, in increasing order; without a copy if they are consecutive."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return batch.slice(rows[0], len(rows))
    return batch.take(pa.array(rows))
