"""Bounds the memory that the rows of a Parquet file need, before Arrow reads them.

A column of a row group is a sequence of pages, each after a header that states its size and its
number of values. Arrow trusts the headers, and a file of 1 kB may decompress to 1 GB. Compression
is not the only cause of such growth: each row, or each value of a list, may be the same long value
of a dictionary, which Arrow then copies for each of them. The footer bounds neither, because Arrow
does not compare it with the pages. So all headers of a row group are read before it is decoded.

Pages are described at https://parquet.apache.org/docs/file-format/data-pages/, their header in
`parquet.thrift`, and its encoding in `thrift-compact-protocol.md` of Apache Thrift.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from bsmeta.data.io.parquet_file import ColumnChunk

FREE_BYTES = 16 << 20
"""Bytes that may always be decompressed at a time, however small they are in the file."""

MOST_EXPANSION = 200
"""Maximum bytes that may be decompressed at a time for each byte of a row group."""

BATCH_BYTES = 512 << 20
"""Maximum bytes of the rows of a batch."""

LIST_BYTES = 1 << 26
"""Maximum bytes of the texts in the lists of a row, each copied from a dictionary."""

_VALUE_BYTES = 16  # minimum memory of a value in a list: Arrow's, and a reference of Python

# `PageType` of parquet.thrift.
_DATA_PAGE = 0
_DICTIONARY_PAGE = 2
_DATA_PAGE_V2 = 3

# Field numbers of `PageHeader`.
_PAGE_TYPE = 1
_RAW_SIZE = 2
_SIZE = 3
_DETAILS = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}  # the header of a page type

# Field numbers of the header of a page type.
_VALUE_COUNT = 1
_ENCODING = {_DATA_PAGE: 2, _DICTIONARY_PAGE: 2, _DATA_PAGE_V2: 4}

_DELTA_BYTE_ARRAY = 7  # `Encoding` in which a value may share its beginning with the previous one

# Bytes to read in search of the end of a header: most are short, and the last is Arrow's limit.
_HEADER_BYTES = (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24)
_HEADER_DEPTH = 8  # maximum depth of structs in a header
_CODECS = ("uncompressed", "snappy", "gzip", "brotli", "zstd")  # LZ4 is ambiguous: two formats
_LENGTH = struct.Struct("<I")  # before each text of a dictionary

# Types of the compact protocol.
_BOOLEANS = (1, 2)
_BYTE = 3
_INTEGERS = (4, 5, 6)
_DOUBLE = 7
_BINARY = 8
_LISTS = (9, 10)
_STRUCT = 12
_LONG_LIST = 15  # instead of the number of elements, which then follows


@dataclass(frozen=True)
class Bounds:
    """The limits within which a row group can be read.

    Attributes:
        rows: Maximum number of rows of a batch.
        indexed: Leaves of the schema, texts in lists, that must be read as indices of a dictionary:
            copies may need too much memory, so their size is checked with `list_bytes` first.
    """

    rows: int
    indexed: tuple[int, ...]


@dataclass(frozen=True)
class _PageHeader:
    """The header of a page.

    Attributes:
        is_dictionary: Whether the page has values to which other pages refer.
        is_delta: Whether its values may share parts with others.
        size: Bytes after the header, compressed.
        raw_size: Bytes after the header, uncompressed.
        values: Number of values, including nulls.
    """

    is_dictionary: bool
    is_delta: bool
    size: int
    raw_size: int
    values: int


class _Page(NamedTuple):
    """A page in a file.

    Attributes:
        start: Offset of the content, which follows the header.
    """

    header: _PageHeader
    start: int


@dataclass
class _PageTotals:
    """Sums and maxima of the pages of a column.

    Attributes:
        size: Bytes of all pages, compressed, as their headers state them.
        decoded_bytes: Bytes that must be decompressed at a time: a page, or for lists all pages,
            because one row may have all values.
        value_bytes: The largest mean size of the values of a page.
        values: Number of values in data pages.
        shared_bytes: Bytes of the largest page whose texts may occur in any number of values.
        dictionary: The dictionary, if there is one.
    """

    size: int = 0
    decoded_bytes: int = 0
    value_bytes: int = 0
    values: int = 0
    shared_bytes: int = 0
    dictionary: _Page | None = None


def bound_rows(file: BinaryIO | pa.NativeFile, chunks: Sequence[ColumnChunk], rows: int) -> Bounds:
    """Determines the limits within which a row group can be read.

    Args:
        chunks: The columns to read.
        rows: Maximum number of rows of a batch, even if more would fit.

    Raises:
        ValueError: If a page is damaged, or its content is far larger than the file.
    """
    pages_by_chunk = {chunk: _scan_pages(file, chunk) for chunk in chunks}
    stated_size = sum(pages.size for pages in pages_by_chunk.values())
    size = min(stated_size, file.seek(0, os.SEEK_END))
    max_decoded = max(FREE_BYTES, MOST_EXPANSION * size)
    decoded = sum(pages.decoded_bytes for pages in pages_by_chunk.values())
    if decoded > max_decoded:
        largest = max(pages_by_chunk, key=lambda chunk: pages_by_chunk[chunk].decoded_bytes)
        raise ValueError(
            f"{size:,} bytes would become {decoded:,}, most of them in {largest.leaf.path}; "
            f"expected at most {MOST_EXPANSION} bytes for each of them, or {FREE_BYTES:,}"
        )

    limit = min(max_decoded, BATCH_BYTES)
    row_bytes = sum(
        max(pages.value_bytes, pages.shared_bytes, chunk.leaf.width)
        for chunk, pages in pages_by_chunk.items()
        if not chunk.leaf.is_repeated
    )
    batch_rows = max(min(limit // max(row_bytes, 1), rows), 1)

    indexed = []
    for chunk, pages in pages_by_chunk.items():
        is_text_in_list = chunk.leaf.is_repeated and chunk.leaf.is_text
        if is_text_in_list and _may_exceed(limit, file, chunk, pages):
            indexed.append(chunk.leaf.number)
    return Bounds(batch_rows, tuple(indexed))


def _may_exceed(
    limit: int, file: BinaryIO | pa.NativeFile, chunk: ColumnChunk, pages: _PageTotals
) -> bool:
    """Returns whether copies of the texts in lists may exceed the limit if one row has them all."""
    if pages.values * pages.shared_bytes <= limit:
        return False
    if pages.dictionary is None:
        raise ValueError(
            f"{chunk.leaf.path}: {pages.values:,} values in lists may share {pages.shared_bytes:,} "
            "bytes; write it without the encoding DELTA_BYTE_ARRAY"
        )
    return pages.values * _find_longest_text(file, chunk, pages.dictionary) > limit


def list_bytes(array: pa.Array, *, is_in_list: bool = False) -> int:
    """Returns the bytes of the texts in lists, if each index of a dictionary became a copy.

    Args:
        is_in_list: Whether the array has the values of a list.
    """
    kind = array.type
    if types.is_dictionary(kind):
        is_text = types.is_string(kind.value_type) or types.is_binary(kind.value_type)
        if not (is_in_list and is_text) or len(array) * array.dictionary.nbytes <= LIST_BYTES:
            return 0
        return pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0

    if types.is_struct(kind):
        return sum(list_bytes(field, is_in_list=is_in_list) for field in array.flatten())

    if types.is_map(kind):
        # `keys` and `items` ignore that the array may be a slice.
        begin = array.offsets[0].as_py()
        length = array.offsets[-1].as_py() - begin
        return sum(
            list_bytes(column.slice(begin, length), is_in_list=True)
            for column in (array.keys, array.items)
        )

    return list_bytes(array.flatten(), is_in_list=True) if kind.num_fields else 0


def _scan_pages(file: BinaryIO | pa.NativeFile, chunk: ColumnChunk) -> _PageTotals:
    """Reads the headers of all pages of a column."""
    totals = _PageTotals()
    for page in _read_pages(file, chunk):
        header = page.header
        totals.size += header.size

        decoded_bytes = header.raw_size
        if header.is_dictionary:
            totals.dictionary = page
        else:
            totals.values += header.values
            mean_bytes = header.raw_size // max(header.values, 1)
            totals.value_bytes = max(totals.value_bytes, mean_bytes)
            if chunk.leaf.is_repeated:
                decoded_bytes += header.values * _VALUE_BYTES

        if header.is_delta or (header.is_dictionary and chunk.leaf.is_text):
            totals.shared_bytes = max(totals.shared_bytes, header.raw_size)

        if chunk.leaf.is_repeated:
            totals.decoded_bytes += decoded_bytes
        else:
            totals.decoded_bytes = max(totals.decoded_bytes, decoded_bytes)
    return totals


def _read_pages(file: BinaryIO | pa.NativeFile, chunk: ColumnChunk) -> Iterator[_Page]:
    """Yields the pages of a column that Arrow reads; only their headers are read."""
    position = chunk.start
    values = 0
    while values < chunk.values and position < chunk.start + chunk.size:
        header, header_size = _read_header(file, position)
        yield _Page(header, position + header_size)
        position += header_size + header.size
        if not header.is_dictionary:
            values += header.values


def _find_longest_text(
    file: BinaryIO | pa.NativeFile, chunk: ColumnChunk, dictionary: _Page
) -> int:
    """Returns the bytes of the longest text of a dictionary.

    If the dictionary cannot be decompressed here, it returns the bytes of all texts together.
    """
    header = dictionary.header
    if chunk.codec not in _CODECS:
        return header.raw_size

    file.seek(dictionary.start)
    content = file.read(header.size)
    if chunk.codec != "uncompressed":
        content = pa.decompress(content, header.raw_size, chunk.codec, asbytes=True)

    # A dictionary may have millions of texts: this loop avoids calls and lookups of attributes.
    longest = position = 0
    last = len(content) - _LENGTH.size
    unpack = _LENGTH.unpack_from
    while position <= last:
        (length,) = unpack(content, position)
        position += _LENGTH.size + length
        if length > longest:
            longest = length
    return longest


def _read_header(file: BinaryIO | pa.NativeFile, position: int) -> tuple[_PageHeader, int]:
    """Returns the header of a page at an offset of the file, and the header's size in bytes."""
    for size in _HEADER_BYTES:
        file.seek(position)
        with contextlib.suppress(IndexError):
            return _parse_header(file.read(size))
    raise _damaged_header()


def _parse_header(data: bytes) -> tuple[_PageHeader, int]:
    """Returns the header of a page at the beginning of `data`, and its size in bytes.

    Raises:
        IndexError: If the data end within the header.
        ValueError: If it is not a header.
    """
    fields, end = _read_struct(data, 0)
    page_type = _check_size(fields.get(_PAGE_TYPE))
    raw_size = _check_size(fields.get(_RAW_SIZE))
    size = _check_size(fields.get(_SIZE))

    # Pages of other types, such as indexes, have no values.
    details = fields.get(_DETAILS[page_type]) if page_type in _DETAILS else {_VALUE_COUNT: 0}
    if not isinstance(details, dict):
        raise _damaged_header()
    values = _check_size(details.get(_VALUE_COUNT))
    encoding = details.get(_ENCODING[page_type]) if page_type in _ENCODING else None

    header = _PageHeader(
        is_dictionary=page_type == _DICTIONARY_PAGE,
        is_delta=encoding == _DELTA_BYTE_ARRAY,
        size=size,
        raw_size=raw_size,
        values=values,
    )
    return header, end


def _check_size(value: Any) -> int:
    """Returns a size; Arrow would use only the lowest 32 bits of a larger number."""
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise _damaged_header()
    return value


def _damaged_header() -> ValueError:
    return ValueError("a page has a damaged header")


def _read_struct(data: bytes, position: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Returns the fields of a struct by their numbers, and the position after the struct.

    The first byte of a field has its type in the lower four bits. The upper four have the increment
    of its number, or 0 if the number follows. A byte of 0 ends the struct.
    """
    fields: dict[int, Any] = {}
    number = 0
    while head := data[position]:
        position += 1
        increment = head >> 4
        if increment:
            number += increment
        else:
            number, position = _read_integer(data, position)
        if number in fields or not 0 < number < 1 << 15:
            raise _damaged_header()
        fields[number], position = _read_value(data, position, head & 15, depth)
    return fields, position + 1


def _read_value(data: bytes, position: int, kind: int, depth: int) -> tuple[Any, int]:
    """Returns a value (None unless it is an integer or a struct), and the position after it."""
    if depth > _HEADER_DEPTH:
        raise _damaged_header()

    if kind in _INTEGERS:
        return _read_integer(data, position)
    if kind == _STRUCT:
        return _read_struct(data, position, depth + 1)
    if kind in _LISTS:
        return None, _skip_list(data, position, depth)

    if kind == _BINARY:
        size, position = _read_varint(data, position)
    elif kind in _BOOLEANS:
        size = 0  # the type is the value
    elif kind == _BYTE:
        size = 1
    elif kind == _DOUBLE:
        size = 8
    else:
        raise _damaged_header()
    if position + size > len(data):
        raise IndexError
    return None, position + size


def _skip_list(data: bytes, position: int, depth: int) -> int:
    """Returns the position after a list."""
    kind = data[position] & 15
    count = data[position] >> 4
    position += 1
    if count == _LONG_LIST:
        count, position = _read_varint(data, position)

    # Booleans take a byte in a list, although they take none as fields.
    kind = _BYTE if kind in _BOOLEANS else kind
    for _ in range(count):
        _, position = _read_value(data, position, kind, depth + 1)
    return position


def _read_integer(data: bytes, position: int) -> tuple[int, int]:
    """Returns a signed integer in zigzag encoding, and the position after it."""
    number, position = _read_varint(data, position)
    return (number >> 1) ^ -(number & 1), position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns an unsigned integer, and the position after it.

    It consists of groups of seven bits, the lowest first; bit 7 is set in all bytes except the
    last.
    """
    number = shift = 0
    while (byte := data[position]) >> 7:
        number |= (byte & 127) << shift
        shift += 7
        position += 1
        if shift > 63:
            raise _damaged_header()
    return number | byte << shift, position + 1
