"""Opens untrusted Parquet files. No other module calls `pyarrow.parquet`.

Arrow raises an error when it decodes a damaged file. But when Python accesses damaged metadata of a
column, the process ends (`terminate called after throwing ...`), because pyarrow does not catch the
exceptions of these accessors. So before this module accesses metadata, it makes Arrow construct the
same metadata for decoding, where exceptions are caught.
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

_READ_OPTIONS: dict[str, Any] = {
    "pre_buffer": False,
    "buffer_size": 1 << 18,  # bytes of a column to read at a time
    "page_checksum_verification": True,
}

DAMAGE_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError, RecursionError)
"""Errors that Arrow raises for content that it cannot decode."""


@dataclass(frozen=True)
class Leaf:
    """A leaf of the schema, whose values are a column of the file.

    Attributes:
        index: Index of the leaf in the schema.
        path: Dotted path in the schema.
        is_repeated: Whether it is inside lists or maps, so that a row may have many values.
        is_text: Whether its values are byte strings of any length.
        width: Size of each value in bytes if all have the same size; otherwise 0.
    """

    index: int
    path: str
    is_repeated: bool
    is_text: bool
    width: int


@dataclass(frozen=True)
class ColumnChunk:
    """A column of a row group, as described in the footer.

    Attributes:
        leaf: The leaf of the schema.
        start: Offset of the first page in the file.
        size: Compressed size of the pages with their headers, in bytes.
        raw_size: Uncompressed size of the pages with their headers, in bytes.
        num_values: Number of values, including nulls and values in lists.
        codec: Name of the compression, as in `pyarrow.Codec`.
    """

    leaf: Leaf
    start: int
    size: int
    raw_size: int
    num_values: int
    codec: str


class ParquetSource:
    """Reads the rows of a Parquet file.

    Args:
        file: A seekable binary file.

    Attributes:
        schema: The schema of the rows.
        group_ends: For each row group, the number of rows up to its end.

    Raises:
        DAMAGE_ERRORS: If the footer cannot be read; methods raise it if a row group cannot be read.
    """

    def __init__(self, file: BinaryIO | pa.NativeFile) -> None:
        self._file = file
        self._parquet = pq.ParquetFile(file, **_READ_OPTIONS)
        self.schema: pa.Schema = self._parquet.schema_arrow
        self._metadata = self._parquet.metadata

        # Decoding this file only constructs metadata; see `_construct_metadata`.
        self._empty_file = _EmptyFile(file.seek(0, os.SEEK_END))
        self._probe = pq.ParquetFile(self._empty_file, metadata=self._metadata, **_READ_OPTIONS)

        parquet_schema = self._parquet.schema
        self._leaves = [
            _describe_leaf(parquet_schema, index) for index in range(self._metadata.num_columns)
        ]
        row_counts = [
            self._metadata.row_group(group).num_rows
            for group in range(self._metadata.num_row_groups)
        ]
        if any(count < 0 for count in row_counts):
            raise ValueError(f"a row group has {min(row_counts)} rows")
        self.group_ends = list(itertools.accumulate(row_counts))

    def describe_column_chunks(
        self, group: int, columns: Collection[str] | None = None
    ) -> list[ColumnChunk]:
        """Returns the selected column chunks of a row group.

        Args:
            group: Index of the row group.
            columns: Names of columns (`a.b` is the field `b` of the struct `a`); None selects all.

        Returns:
            The chunks in the order of the schema; empty if Arrow would read none of them.
        """
        leaves = [
            leaf for leaf in self._leaves if columns is None or is_selected(leaf.path, columns)
        ]
        if not leaves or not self._construct_metadata(group, columns):
            return []

        metadata = self._metadata.row_group(group)
        if metadata.num_columns != len(self._leaves):
            raise ValueError(
                f"it has {metadata.num_columns} columns, but the schema {len(self._leaves)}"
            )
        return [_describe_chunk(leaf, metadata.column(leaf.index)) for leaf in leaves]

    def read_batches(
        self,
        group: int,
        columns: Collection[str] | None,
        max_rows: int,
        *,
        dictionary_leaves: Collection[int] = (),
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a row group in batches, decoded page by page.

        Args:
            group: Index of the row group.
            columns: Names of columns, as in `describe_column_chunks`.
            max_rows: Maximum number of rows in a batch.
            dictionary_leaves: Indices of leaves with texts that are read as dictionary-encoded.
            use_threads: Whether columns are decoded in parallel. Arrow's threads do not survive a
                fork.
        """
        parquet = self._parquet
        if dictionary_leaves:
            parquet = pq.ParquetFile(
                self._file,
                metadata=self._metadata,
                read_dictionary=sorted(dictionary_leaves),
                **_READ_OPTIONS,
            )
        return parquet.iter_batches(
            max_rows, row_groups=[group], columns=columns, use_threads=use_threads
        )

    def _construct_metadata(self, group: int, columns: Collection[str] | None) -> bool:
        """Makes Arrow construct the metadata of columns, to detect damage.

        Arrow constructs the metadata of all selected columns before it reads the first page.

        Returns:
            Whether Arrow then tried to read a page; if not, there is nothing to read.

        Raises:
            DAMAGE_ERRORS: If the metadata is damaged, so that accessing it would end the process.
        """
        self._empty_file.was_read = False
        batches = self._probe.iter_batches(
            1, row_groups=[group], columns=columns, use_threads=False
        )
        try:
            next(batches, None)
        except DAMAGE_ERRORS:
            if not self._empty_file.was_read:
                raise
        return self._empty_file.was_read


def _describe_leaf(schema: pq.ParquetSchema, index: int) -> Leaf:
    """Returns the leaf of a schema with the given index."""
    column = schema.column(index)
    return Leaf(
        index=index,
        path=column.path,
        is_repeated=column.max_repetition_level > 0,
        is_text=column.physical_type == "BYTE_ARRAY",
        width=column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0,
    )


def _describe_chunk(leaf: Leaf, metadata: pq.ColumnChunkMetaData) -> ColumnChunk:
    """Returns the column chunk of a leaf from its metadata in the footer."""
    start = metadata.data_page_offset
    if metadata.has_dictionary_page and metadata.dictionary_page_offset > 0:
        start = min(start, metadata.dictionary_page_offset)
    return ColumnChunk(
        leaf=leaf,
        start=start,
        size=metadata.total_compressed_size,
        raw_size=metadata.total_uncompressed_size,
        num_values=metadata.num_values,
        codec=metadata.compression.lower(),
    )


def is_selected(path: str, columns: Collection[str]) -> bool:
    """Returns whether a path in the schema (`a.b.c`) is one of the columns, or inside one."""
    return any(path == column or path.startswith(f"{column}.") for column in columns)


class _EmptyFile(io.RawIOBase):
    """A file that has a size but no content.

    Attributes:
        was_read: Whether `read` was called.
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
        origins = {os.SEEK_SET: 0, os.SEEK_CUR: self._offset, os.SEEK_END: self._size}
        self._offset = origins[whence] + offset
        return self._offset

    def read(self, size: int = -1) -> bytes:
        self.was_read = True
        return b""
