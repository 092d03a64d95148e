"""ReadLimits the memory that the rows of a Parquet file need, before Arrow reads them.

A column of a row group is a sequence of pages. The header before each page states its size and its
number of values. Arrow trusts the headers, and a file of 1 kB may decompress to 1 GB. Compression
is not the only cause of such growth: all rows, or all values in a list, may refer to the same long
value in a dictionary, which Arrow then copies for each of them. The footer limits neither, because
Arrow does not compare it with the pages. So all page headers of a row group are read before it is
decoded.

Pages are specified at https://parquet.apache.org/docs/file-format/data-pages/, their headers in
`parquet.thrift`, and the encoding of headers in `thrift-compact-protocol.md` of Apache Thrift.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from bsmeta.data.io.parquet_file import ColumnChunk

MIN_DECODED_LIMIT = 16 << 20
"""Number of bytes that may be decompressed at a time from a row group of any size."""

MAX_EXPANSION = 200
"""Maximum number of bytes that may be decompressed at a time for each byte of a row group."""

MAX_BATCH_BYTES = 512 << 20
"""Maximum size of a batch of rows."""

MAX_LIST_BYTES = 1 << 26
"""Maximum total size of the texts in the lists of a row, each copied from a dictionary."""

_MIN_VALUE_BYTES = 16  # minimum memory of a value in a list: Arrow's, and a Python reference

# `PageType` of parquet.thrift.
_DATA_PAGE = 0
_DICTIONARY_PAGE = 2
_DATA_PAGE_V2 = 3

# Field numbers of `PageHeader`.
_PAGE_TYPE = 1
_RAW_SIZE = 2
_SIZE = 3
_TYPE_HEADER = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}  # by page type

# Field numbers of the header that is specific to a page type.
_NUM_VALUES = 1
_ENCODING = {_DATA_PAGE: 2, _DICTIONARY_PAGE: 2, _DATA_PAGE_V2: 4}

_DELTA_BYTE_ARRAY = 7  # the `Encoding` in which a value may share its beginning with the previous

# Numbers of bytes that are read until a header is complete: most are short. The last is Arrow's
# limit.
_HEADER_BYTES = (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24)
_MAX_HEADER_DEPTH = 8  # of nested structs and lists
_CODECS = ("uncompressed", "snappy", "gzip", "brotli", "zstd")  # LZ4 stands for two formats
_TEXT_LENGTH = struct.Struct("<I")  # before each text in a dictionary

# Types of the compact protocol.
_BOOLEANS = (1, 2)
_BYTE = 3
_INTEGERS = (4, 5, 6)
_DOUBLE = 7
_BINARY = 8
_LISTS = (9, 10)
_STRUCT = 12
_LONG_LIST = 15  # stands for a number of elements that follows


@dataclass(frozen=True)
class ReadLimits:
    """The limits within which a row group can be read.

    Attributes:
        max_rows: Maximum number of rows in a batch.
        dictionary_leaves: Indices of leaves with texts in lists that must be read as
            dictionary-encoded: copies of the texts may need too much memory, so the caller must
            first check their size with `measure_list_bytes`.
    """

    max_rows: int
    dictionary_leaves: tuple[int, ...]


@dataclass(frozen=True)
class _PageHeader:
    """The header of a page.

    Attributes:
        is_dictionary: Whether the page contains values to which other pages refer.
        is_delta: Whether its values may share bytes with other values.
        size: Compressed size of the page in bytes, without the header.
        raw_size: Uncompressed size of the page in bytes, without the header.
        num_values: Number of values, including nulls.
    """

    is_dictionary: bool
    is_delta: bool
    size: int
    raw_size: int
    num_values: int


class _Page(NamedTuple):
    """A page in a file.

    Attributes:
        start: Offset of the content, which follows the header.
    """

    header: _PageHeader
    start: int


@dataclass
class _PageTotals:
    """Sums and maxima over the pages of a column.

    Attributes:
        size: Compressed size of all pages in bytes, as stated in their headers.
        decoded_bytes: Number of bytes that are decompressed at a time: the largest page; for lists
            all pages, because one row may have all values.
        value_bytes: Mean size of a value in bytes, maximum over the pages.
        num_values: Number of values in data pages.
        shared_bytes: Size in bytes of the largest page whose texts may occur in any number of
            values.
        dictionary: The dictionary page, if there is one.
    """

    size: int = 0
    decoded_bytes: int = 0
    value_bytes: int = 0
    num_values: int = 0
    shared_bytes: int = 0
    dictionary: _Page | None = None


def compute_read_limits(
    file: BinaryIO | pa.NativeFile, chunks: Sequence[ColumnChunk], max_rows: int
) -> ReadLimits:
    """Determines the limits within which a row group can be read.

    Args:
        chunks: The columns of the row group that are read.
        max_rows: Maximum number of rows in a batch, even if more would fit.

    Raises:
        ValueError: If a page is damaged, or its content is far larger than the file.
    """
    totals_by_chunk = {chunk: _scan_pages(file, chunk) for chunk in chunks}
    max_decoded_bytes = _check_expansion(totals_by_chunk, file.seek(0, os.SEEK_END))
    limit = min(max_decoded_bytes, MAX_BATCH_BYTES)

    row_bytes = 0
    dictionary_leaves = []
    for chunk, totals in totals_by_chunk.items():
        leaf = chunk.leaf
        if not leaf.is_repeated:
            row_bytes += max(totals.value_bytes, totals.shared_bytes, leaf.width)
        elif leaf.is_text and _copies_may_exceed(limit, file, chunk, totals):
            dictionary_leaves.append(leaf.index)

    num_fitting = limit // max(row_bytes, 1)
    return ReadLimits(max(min(num_fitting, max_rows), 1), tuple(dictionary_leaves))


def _check_expansion(totals_by_chunk: Mapping[ColumnChunk, _PageTotals], file_size: int) -> int:
    """Checks that the content of a row group is not far larger than its compressed pages.

    Returns:
        The maximum number of bytes that may be decompressed at a time.

    Raises:
        ValueError: If more bytes would be decompressed.
    """
    stated_size = sum(totals.size for totals in totals_by_chunk.values())
    size = min(stated_size, file_size)
    max_decoded_bytes = max(MIN_DECODED_LIMIT, MAX_EXPANSION * size)
    decoded_bytes = sum(totals.decoded_bytes for totals in totals_by_chunk.values())
    if decoded_bytes > max_decoded_bytes:
        largest = max(totals_by_chunk, key=lambda chunk: totals_by_chunk[chunk].decoded_bytes)
        raise ValueError(
            f"{size:,} bytes would become {decoded_bytes:,}, most of them in {largest.leaf.path}; "
            f"expected at most {MAX_EXPANSION} bytes for each of them, or {MIN_DECODED_LIMIT:,}"
        )
    return max_decoded_bytes


def _copies_may_exceed(
    limit: int, file: BinaryIO | pa.NativeFile, chunk: ColumnChunk, totals: _PageTotals
) -> bool:
    """Returns whether copies of the texts in lists may exceed the limit if one row has them all.

    Raises:
        ValueError: If they may, and the texts are not in a dictionary that could be kept instead.
    """
    if totals.num_values * totals.shared_bytes <= limit:
        return False
    if totals.dictionary is None:
        raise ValueError(
            f"{chunk.leaf.path}: {totals.num_values:,} values in lists may share "
            f"{totals.shared_bytes:,} bytes; write it without the encoding DELTA_BYTE_ARRAY"
        )
    return totals.num_values * _measure_longest_text(file, chunk, totals.dictionary) > limit


def measure_list_bytes(array: pa.Array, *, is_in_list: bool = False) -> int:
    """Measures the texts in the lists of an array as if dictionary indices were replaced by copies.

    Args:
        array: A column of rows that was read with `ReadLimits.dictionary_leaves`.
        is_in_list: Whether the array consists of the values in a list.

    Returns:
        The size in bytes; 0 for a dictionary whose copies are certainly within `MAX_LIST_BYTES`.
    """
    arrow_type = array.type
    if types.is_dictionary(arrow_type):
        is_text = types.is_string(arrow_type.value_type) or types.is_binary(arrow_type.value_type)
        if not is_in_list or not is_text:
            return 0
        if len(array) * array.dictionary.nbytes <= MAX_LIST_BYTES:
            return 0
        lengths = pc.binary_length(array.dictionary)
        return pc.sum(lengths.take(array.indices)).as_py() or 0

    if types.is_struct(arrow_type):
        return sum(measure_list_bytes(field, is_in_list=is_in_list) for field in array.flatten())

    if types.is_map(arrow_type):
        # `keys` and `items` are not sliced if the array is a slice.
        begin = array.offsets[0].as_py()
        length = array.offsets[-1].as_py() - begin
        return sum(
            measure_list_bytes(column.slice(begin, length), is_in_list=True)
            for column in (array.keys, array.items)
        )

    if arrow_type.num_fields:  # a list
        return measure_list_bytes(array.flatten(), is_in_list=True)
    return 0


def _scan_pages(file: BinaryIO | pa.NativeFile, chunk: ColumnChunk) -> _PageTotals:
    """Reads the headers of all pages of a column, and computes their sums and maxima."""
    totals = _PageTotals()
    for page in _read_pages(file, chunk):
        header = page.header
        totals.size += header.size

        decoded_bytes = header.raw_size
        if header.is_dictionary:
            totals.dictionary = page
        else:
            totals.num_values += header.num_values
            mean_bytes = header.raw_size // max(header.num_values, 1)
            totals.value_bytes = max(totals.value_bytes, mean_bytes)
            if chunk.leaf.is_repeated:
                decoded_bytes += header.num_values * _MIN_VALUE_BYTES

        if header.is_delta or (header.is_dictionary and chunk.leaf.is_text):
            totals.shared_bytes = max(totals.shared_bytes, header.raw_size)

        if chunk.leaf.is_repeated:
            totals.decoded_bytes += decoded_bytes
        else:
            totals.decoded_bytes = max(totals.decoded_bytes, decoded_bytes)
    return totals


def _read_pages(file: BinaryIO | pa.NativeFile, chunk: ColumnChunk) -> Iterator[_Page]:
    """Yields the pages of a column that Arrow would read; reads only their headers."""
    position = chunk.start
    num_values = 0
    while num_values < chunk.num_values and position < chunk.start + chunk.size:
        header, header_size = _read_header(file, position)
        yield _Page(header, position + header_size)
        position += header_size + header.size
        if not header.is_dictionary:
            num_values += header.num_values


def _measure_longest_text(
    file: BinaryIO | pa.NativeFile, chunk: ColumnChunk, dictionary: _Page
) -> int:
    """Returns the size in bytes of the longest text in a dictionary, or an upper bound.

    The bound is the size of all texts, for codecs that are not decompressed here.
    """
    header = dictionary.header
    if chunk.codec not in _CODECS:
        return header.raw_size

    file.seek(dictionary.start)
    content = file.read(header.size)
    if chunk.codec != "uncompressed":
        content = pa.decompress(content, header.raw_size, chunk.codec, asbytes=True)

    # A dictionary may have millions of texts: this loop avoids calls and attribute lookups.
    max_length = position = 0
    last = len(content) - _TEXT_LENGTH.size
    unpack = _TEXT_LENGTH.unpack_from
    while position <= last:
        (length,) = unpack(content, position)
        position += _TEXT_LENGTH.size + length
        if length > max_length:
            max_length = length
    return max_length


def _read_header(file: BinaryIO | pa.NativeFile, position: int) -> tuple[_PageHeader, int]:
    """Reads the page header at an offset in the file; returns it and its size in bytes.

    Raises:
        ValueError: If there is no valid header.
    """
    for size in _HEADER_BYTES:
        file.seek(position)
        with contextlib.suppress(IndexError):
            return _parse_header(file.read(size))
    raise _make_damaged_header_error()


def _parse_header(data: bytes) -> tuple[_PageHeader, int]:
    """Parses the page header at the beginning of `data`; returns it and its size in bytes.

    Raises:
        IndexError: If the header continues beyond the end of the data.
        ValueError: If it is not a valid header.
    """
    fields, end = _read_struct(data, 0)
    page_type = _check_size(fields.get(_PAGE_TYPE))
    raw_size = _check_size(fields.get(_RAW_SIZE))
    size = _check_size(fields.get(_SIZE))

    num_values = 0  # pages of other types, such as indexes, have no values
    encoding = None
    if page_type in _TYPE_HEADER:
        type_header = fields.get(_TYPE_HEADER[page_type])
        if not isinstance(type_header, dict):
            raise _make_damaged_header_error()
        num_values = _check_size(type_header.get(_NUM_VALUES))
        encoding = type_header.get(_ENCODING[page_type])

    header = _PageHeader(
        is_dictionary=page_type == _DICTIONARY_PAGE,
        is_delta=encoding == _DELTA_BYTE_ARRAY,
        size=size,
        raw_size=raw_size,
        num_values=num_values,
    )
    return header, end


def _check_size(value: Any) -> int:
    """Checks that the value of a field is a size of at most 31 bits, and returns it.

    Arrow would use only the lowest 32 bits of a larger number.

    Args:
        value: The value; None if the field is missing.

    Raises:
        ValueError: If it is missing or not such a size.
    """
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise _make_damaged_header_error()
    return value


def _make_damaged_header_error() -> ValueError:
    """Returns the error for a page header that cannot be parsed."""
    return ValueError("a page has a damaged header")


def _read_struct(data: bytes, position: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Returns the fields of a struct by their numbers, and the position after the struct.

    The first byte of a field has the field's type in the lower four bits. The upper four are the
    increment of the field number, or 0 if the number follows. A byte of 0 ends the struct.

    Args:
        depth: Number of structs and lists that contain this struct.
    """
    fields: dict[int, Any] = {}
    number = 0
    while first_byte := data[position]:
        position += 1
        increment = first_byte >> 4
        if increment:
            number += increment
        else:
            number, position = _read_integer(data, position)
        if number in fields or not 0 < number < 1 << 15:
            raise _make_damaged_header_error()
        fields[number], position = _read_value(data, position, first_byte & 15, depth)
    return fields, position + 1


def _read_value(data: bytes, position: int, value_type: int, depth: int) -> tuple[Any, int]:
    """Reads an integer or a struct, or skips another value.

    Returns:
        The value (None if it was skipped), and the position after it.
    """
    if depth > _MAX_HEADER_DEPTH:
        raise _make_damaged_header_error()

    if value_type in _INTEGERS:
        return _read_integer(data, position)
    if value_type == _STRUCT:
        return _read_struct(data, position, depth + 1)
    if value_type in _LISTS:
        return None, _skip_list(data, position, depth)

    if value_type == _BINARY:
        size, position = _read_uleb128(data, position)
    elif value_type in _BOOLEANS:
        size = 0  # the type itself is the value
    elif value_type == _BYTE:
        size = 1
    elif value_type == _DOUBLE:
        size = 8
    else:
        raise _make_damaged_header_error()
    if position + size > len(data):
        raise IndexError
    return None, position + size


def _skip_list(data: bytes, position: int, depth: int) -> int:
    """Returns the position after a list."""
    element_type = data[position] & 15
    count = data[position] >> 4
    position += 1
    if count == _LONG_LIST:
        count, position = _read_uleb128(data, position)

    if element_type in _BOOLEANS:
        element_type = _BYTE  # in a list, a boolean takes a byte; as a field, it takes none
    for _ in range(count):
        _, position = _read_value(data, position, element_type, depth + 1)
    return position


def _read_integer(data: bytes, position: int) -> tuple[int, int]:
    """Reads a signed integer in zigzag encoding; returns it and the position after it."""
    number, position = _read_uleb128(data, position)
    return (number >> 1) ^ -(number & 1), position


def _read_uleb128(data: bytes, position: int) -> tuple[int, int]:
    """Reads an unsigned integer in ULEB128 encoding; returns it and the position after it.

    Each byte contains seven bits of the integer, the lowest first. Bit 7 is set in all bytes except
    the last.
    """
    number = shift = 0
    while (byte := data[position]) >> 7:
        number |= (byte & 127) << shift
        shift += 7
        position += 1
        if shift > 63:
            raise _make_damaged_header_error()
    return number | byte << shift, position + 1
