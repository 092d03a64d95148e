"""Opens Parquet files, which are not trusted: no other module calls `pyarrow.parquet`.

Arrow raises an error for a damaged file where it decodes, but where Python asks it for the metadata
of a column, it ends the process (`terminate called after throwing ...`): these accessors declare no
exceptions. So before they are called, Arrow constructs the same metadata on the way to decoding,
where exceptions are caught.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

_OPTIONS: dict[str, Any] = {
    "pre_buffer": False,
    "buffer_size": 1 << 18,  # bytes of a column that are read at a time
    "page_checksum_verification": True,
}

DAMAGED = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError, RecursionError)
"""What Arrow raises for content that it cannot decode."""


@dataclass(frozen=True)
class Leaf:
    """A leaf of the schema, which is a column of the file.

    Attributes:
        number: Its number among the leaves.
        path: Its dotted path in the schema.
        is_repeated: Whether it is in lists or maps: one row may have any number of values.
        is_text: Whether its values are byte strings of any length.
        width: Bytes of each value if they all have the same number of bytes; otherwise 0.
    """

    number: int
    path: str
    is_repeated: bool
    is_text: bool
    width: int


@dataclass(frozen=True)
class ColumnChunk:
    """A column of a row group, as the footer states it.

    Attributes:
        start: Offset of its first page.
        size: Bytes of its pages with their headers, compressed.
        raw_size: The same, uncompressed.
        values: Number of its values, including nulls and those in lists.
        codec: Name of its compression, as in `pyarrow.Codec`.
    """

    leaf: Leaf
    start: int
    size: int
    raw_size: int
    values: int
    codec: str


class ParquetSource:
    """The rows of a Parquet file.

    Args:
        file: A binary file that can be sought.

    Attributes:
        schema: The schema of its rows.
        ends: Of each row group, the number of the row after its last one.

    Raises:
        DAMAGED: If the footer cannot be read; of the methods, if a row group cannot.
    """

    def __init__(self, file: BinaryIO | pa.NativeFile) -> None:
        self._file = file
        self._parquet = pq.ParquetFile(file, **_OPTIONS)
        self.schema: pa.Schema = self._parquet.schema_arrow
        self._metadata = self._parquet.metadata
        self._empty = _EmptyFile(file.seek(0, os.SEEK_END))
        self._probe = pq.ParquetFile(self._empty, metadata=self._metadata, **_OPTIONS)
        schema = self._parquet.schema
        self._leaves = [_leaf_of(schema, leaf) for leaf in range(self._metadata.num_columns)]

        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        rows = [group.num_rows for group in groups]
        if any(count < 0 for count in rows):
            raise ValueError(f"a row group has {min(rows)} rows")
        self.ends = [*itertools.accumulate(rows)]

    def column_chunks(
        self, group: int, columns: Collection[str] | None = None
    ) -> list[ColumnChunk]:
        """The selected columns of a row group.

        Args:
            columns: Names of columns (`a.b` is the field `b` of the struct `a`); None selects all.

        Returns:
            The columns in the order of the schema; none if Arrow reads nothing of the group.
        """
        leaves = [
            leaf for leaf in self._leaves if columns is None or is_selected(leaf.path, columns)
        ]
        if not leaves or not self._can_construct_metadata(group, columns):
            return []
        metadata = self._metadata.row_group(group)
        if metadata.num_columns != len(self._leaves):
            raise ValueError(
                f"it has {metadata.num_columns} columns, but the schema {len(self._leaves)}"
            )
        return [_column_chunk(leaf, metadata.column(leaf.number)) for leaf in leaves]

    def batches(
        self,
        group: int,
        columns: Collection[str] | None,
        rows: int,
        *,
        indexed: Collection[int] = (),
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a row group in batches, decoded page by page.

        Args:
            columns: As in `column_chunks`.
            rows: Maximum number of rows of a batch.
            indexed: Leaves of the schema, texts, that are read as indices of a dictionary.
            use_threads: Whether columns are decoded in parallel; the threads of Arrow do not
                survive a fork.
        """
        parquet = self._parquet
        if indexed:
            parquet = pq.ParquetFile(
                self._file, metadata=self._metadata, read_dictionary=sorted(indexed), **_OPTIONS
            )
        return parquet.iter_batches(
            rows, row_groups=[group], columns=columns, use_threads=use_threads
        )

    def _can_construct_metadata(self, group: int, columns: Collection[str] | None) -> bool:
        """Raises the error with which the metadata of a column would end the process.

        Before it reads the first page, Arrow constructs the metadata of all selected columns.

        Returns:
            Whether it came to reading a page.
        """
        self._empty.was_read = False
        batches = self._probe.iter_batches(
            1, row_groups=[group], columns=columns, use_threads=False
        )
        try:
            next(batches, None)
        except DAMAGED:
            if not self._empty.was_read:
                raise
        return self._empty.was_read


def _leaf_of(schema: pq.ParquetSchema, number: int) -> Leaf:
    column = schema.column(number)
    return Leaf(
        number=number,
        path=column.path,
        is_repeated=column.max_repetition_level > 0,
        is_text=column.physical_type == "BYTE_ARRAY",
        width=column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0,
    )


def _column_chunk(leaf: Leaf, metadata: pq.ColumnChunkMetaData) -> ColumnChunk:
    start = metadata.data_page_offset
    if metadata.has_dictionary_page and metadata.dictionary_page_offset > 0:
        start = min(start, metadata.dictionary_page_offset)
    return ColumnChunk(
        leaf=leaf,
        start=start,
        size=metadata.total_compressed_size,
        raw_size=metadata.total_uncompressed_size,
        values=metadata.num_values,
        codec=metadata.compression.lower(),
    )


def is_selected(path: str, columns: Collection[str]) -> bool:
    """Whether a path in the schema (`a.b`) belongs to one of the columns."""
    return any(path == column or path.startswith(f"{column}.") for column in columns)


class _EmptyFile(io.RawIOBase):
    """A file that has a size, but no content.

    Attributes:
        was_read: Whether somebody tried to read it.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._offset = 0
        self.was_read = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._size}
        self._offset = start[whence] + offset
        return self._offset

    def read(self, size: int = -1) -> bytes:
        self.was_read = True
        return b""
