"""Bounds how much memory the rows of a Parquet file need, before Arrow reads them.

A column of a row group is a sequence of pages, each after a header that states its size and its
number of values. Arrow believes that, and a file of 1 kB may decompress to 1 GB. Compression is not
the only way to make much of little: each row, or each value of a list, may be the same long value
of a dictionary, of which Arrow makes a copy for each. The footer does not bound either: nobody
compares it with the pages. So all headers of a row group are read before it is decoded.

Pages are described at https://parquet.apache.org/docs/file-format/data-pages/, their header in
`parquet.thrift`, and its encoding in `thrift-compact-protocol.md` of Apache Thrift.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from bsmeta.data.io.parquet_file import ColumnChunk

FREE_BYTES = 16 << 20
"""Bytes that may be decompressed at a time, however small they are in the file."""

MOST_EXPANSION = 200
"""Bytes that may be decompressed at a time for each byte of a row group."""

BATCH_BYTES = 512 << 20
"""Bytes that the rows of a batch may have, at most."""

LIST_BYTES = 1 << 26
"""Bytes of the texts in the lists of a row, each copied out of a dictionary."""

_VALUE_BYTES = 16  # of a value in a list, at least: some of Arrow's, and a reference of Python's

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3  # `PageType`
_DETAILS = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}  # fields with...
_ENCODING = {_DATA_PAGE: 2, _DICTIONARY_PAGE: 2, _DATA_PAGE_V2: 4}  # and in those
_DELTA_BYTE_ARRAY = 7  # `Encoding` in which a value may begin like the one before

_HEADER_BYTES = (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24)  # usual ones first; Arrow's limit
_HEADER_DEPTH = 8  # of structs in a header
_CODECS = ("uncompressed", "snappy", "gzip", "brotli", "zstd")  # not LZ4, of which there are two
_LENGTH = struct.Struct("<I")  # before each text of a dictionary

# Types of the compact protocol.
_BOOLEANS = (1, 2)
_BYTE = 3
_INTEGERS = (4, 5, 6)
_DOUBLE = 7
_BINARY = 8
_LISTS = (9, 10)
_STRUCT = 12
_LONG_LIST = 15  # instead of the number of elements


@dataclass(frozen=True)
class Bounds:
    """How a row group can be read.

    Attributes:
        rows: Maximum number of rows of a batch.
        indexed: Leaves of the schema, texts in lists, that have to be read as indices of a
            dictionary: copies may need too much memory, so `list_bytes` comes first.
    """

    rows: int
    indexed: tuple[int, ...]


@dataclass(frozen=True)
class _PageHeader:
    """What a page states about itself.

    Attributes:
        is_dictionary: Whether it has the values that other pages refer to.
        is_delta: Whether its values may share parts with others.
        size: Bytes after the header, compressed.
        raw_size: The same, uncompressed.
        values: Number of its values, including nulls.
    """

    is_dictionary: bool
    is_delta: bool
    size: int
    raw_size: int
    values: int


@dataclass
class _Pages:
    """The pages of a column.

    Attributes:
        size: Bytes of all pages, compressed, as they state it.
        decoded_bytes: What has to be decompressed at a time; of lists, all that one row may have.
        value_bytes: The largest mean size of the values of a page.
        values: Number of values in data pages.
        shared_bytes: Of the largest page whose texts may be in any number of values.
        dictionary: The header of the dictionary, and the offset of its content; None without one.
    """

    size: int = 0
    decoded_bytes: int = 0
    value_bytes: int = 0
    values: int = 0
    shared_bytes: int = 0
    dictionary: tuple[_PageHeader, int] | None = None


def bound_rows(file: BinaryIO | pa.NativeFile, chunks: Sequence[ColumnChunk], rows: int) -> Bounds:
    """Determines how a row group can be read in batches of at most some rows.

    Args:
        chunks: The columns that will be read.

    Raises:
        ValueError: If a page is damaged, or far more than is in the file has to be decompressed.
    """
    pages = {chunk: _scan_pages(file, chunk) for chunk in chunks}
    size = min(sum(scanned.size for scanned in pages.values()), file.seek(0, os.SEEK_END))
    expanded = max(FREE_BYTES, MOST_EXPANSION * size)
    decoded = sum(scanned.decoded_bytes for scanned in pages.values())
    if decoded > expanded:
        largest = max(pages, key=lambda chunk: pages[chunk].decoded_bytes)
        raise ValueError(
            f"{size:,} bytes would become {decoded:,}, most of them in {largest.leaf.path}; "
            f"expected at most {MOST_EXPANSION} bytes for each of them, or {FREE_BYTES:,}"
        )

    limit = min(expanded, BATCH_BYTES)
    row_bytes = sum(
        max(scanned.value_bytes, scanned.shared_bytes, chunk.leaf.width)
        for chunk, scanned in pages.items()
        if not chunk.leaf.is_repeated
    )
    indexed = [
        chunk.leaf.number
        for chunk, scanned in pages.items()
        if chunk.leaf.is_repeated
        and chunk.leaf.is_text
        and _may_exceed(limit, file, chunk, scanned)
    ]
    return Bounds(max(min(limit // max(row_bytes, 1), rows), 1), tuple(indexed))


def _may_exceed(
    limit: int, file: BinaryIO | pa.NativeFile, chunk: ColumnChunk, pages: _Pages
) -> bool:
    """Whether copies of texts in lists may need more bytes than the limit, if one row has all."""
    if pages.values * pages.shared_bytes <= limit:
        return False
    if pages.dictionary is None:
        raise ValueError(
            f"{chunk.leaf.path}: {pages.values:,} values in lists may share {pages.shared_bytes:,} "
            "bytes; write it without the encoding DELTA_BYTE_ARRAY"
        )
    return pages.values * _longest_text(file, chunk, *pages.dictionary) > limit


def list_bytes(array: pa.Array, *, is_in_list: bool = False) -> int:
    """Bytes of the texts in lists that are indices of a dictionary, if each has its own copy."""
    kind = array.type
    if types.is_dictionary(kind):
        is_text = types.is_string(kind.value_type) or types.is_binary(kind.value_type)
        if not (is_in_list and is_text) or len(array) * array.dictionary.nbytes <= LIST_BYTES:
            return 0
        return pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0
    if types.is_struct(kind):
        return sum(list_bytes(part, is_in_list=is_in_list) for part in array.flatten())
    if types.is_map(kind):
        begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = (part.slice(begin, end - begin) for part in (array.keys, array.items))
        return sum(list_bytes(part, is_in_list=True) for part in parts)
    return list_bytes(array.flatten(), is_in_list=True) if kind.num_fields else 0


def _scan_pages(file: BinaryIO | pa.NativeFile, chunk: ColumnChunk) -> _Pages:
    """Reads the headers of all pages of a column."""
    pages = _Pages()
    for page, begin in _page_headers(file, chunk):
        pages.size += page.size
        needed = page.raw_size
        if page.is_dictionary:
            pages.dictionary = page, begin
        else:
            pages.values += page.values
            pages.value_bytes = max(pages.value_bytes, page.raw_size // max(page.values, 1))
            if chunk.leaf.is_repeated:
                needed += page.values * _VALUE_BYTES
        if page.is_delta or (page.is_dictionary and chunk.leaf.is_text):
            pages.shared_bytes = max(pages.shared_bytes, page.raw_size)
        if chunk.leaf.is_repeated:
            pages.decoded_bytes += needed
        else:
            pages.decoded_bytes = max(pages.decoded_bytes, needed)
    return pages


def _page_headers(
    file: BinaryIO | pa.NativeFile, chunk: ColumnChunk
) -> Iterator[tuple[_PageHeader, int]]:
    """The headers of a column that Arrow reads, each with the offset of its page."""
    position, values = chunk.start, 0
    while values < chunk.values and position < chunk.start + chunk.size:
        page, header_size = _read_header(file, position)
        yield page, position + header_size
        position += header_size + page.size
        if not page.is_dictionary:
            values += page.values


def _longest_text(
    file: BinaryIO | pa.NativeFile, chunk: ColumnChunk, page: _PageHeader, begin: int
) -> int:
    """Bytes of the longest text of a dictionary; of all of them, if it cannot be looked into."""
    if chunk.codec not in _CODECS:
        return page.raw_size
    file.seek(begin)
    content = file.read(page.size)
    if chunk.codec != "uncompressed":
        content = pa.decompress(content, page.raw_size, chunk.codec, asbytes=True)

    longest = position = 0
    last, unpack = len(content) - _LENGTH.size, _LENGTH.unpack_from
    while position <= last:
        (length,) = unpack(content, position)
        position += _LENGTH.size + length
        if length > longest:
            longest = length
    return longest


def _read_header(file: BinaryIO | pa.NativeFile, position: int) -> tuple[_PageHeader, int]:
    """The header of a page at an offset of the file, and its size in bytes."""
    for size in _HEADER_BYTES:
        file.seek(position)
        with contextlib.suppress(IndexError):
            return _parse_header(file.read(size))
    raise _damaged_header()


def _parse_header(data: bytes) -> tuple[_PageHeader, int]:
    """The header of a page at the beginning of `data`, and its size in bytes.

    Raises:
        IndexError: If the data end within it.
        ValueError: If it is none.
    """
    fields, end = _read_struct(data, 0)
    kind, raw_size, size = (_integer(fields.get(number)) for number in (1, 2, 3))
    details = fields.get(_DETAILS[kind]) if kind in _DETAILS else {1: 0}
    if not isinstance(details, dict):
        raise _damaged_header()
    is_delta = kind in _ENCODING and details.get(_ENCODING[kind]) == _DELTA_BYTE_ARRAY
    values = _integer(details.get(1))
    return _PageHeader(kind == _DICTIONARY_PAGE, is_delta, size, raw_size, values), end


def _integer(value: Any) -> int:
    """A number that is a size; Arrow would take the lowest 32 bits of a larger one."""
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise _damaged_header()
    return value


def _damaged_header() -> ValueError:
    return ValueError("a page has a damaged header")


def _read_struct(data: bytes, position: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """The fields of a struct by their numbers, and the position after it."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[position]:
        position += 1
        if head >> 4:
            number += head >> 4
        else:
            number, position = _read_integer(data, position)
        if number in fields or not 0 < number < 1 << 15:
            raise _damaged_header()
        fields[number], position = _read_value(data, position, head & 15, depth)
    return fields, position + 1


def _read_value(data: bytes, position: int, kind: int, depth: int) -> tuple[Any, int]:
    """A value, None unless it is an integer or a struct, and the position after it."""
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
    else:
        sizes = {**dict.fromkeys(_BOOLEANS, 0), _BYTE: 1, _DOUBLE: 8}
        if kind not in sizes:
            raise _damaged_header()
        size = sizes[kind]
    if position + size > len(data):
        raise IndexError
    return None, position + size


def _skip_list(data: bytes, position: int, depth: int) -> int:
    """The position after a list."""
    kind, count = data[position] & 15, data[position] >> 4
    position += 1
    if count == _LONG_LIST:
        count, position = _read_varint(data, position)
    kind = _BYTE if kind in _BOOLEANS else kind  # which take a byte in lists, none as fields
    for _ in range(count):
        _, position = _read_value(data, position, kind, depth + 1)
    return position


def _read_integer(data: bytes, position: int) -> tuple[int, int]:
    number, position = _read_varint(data, position)
    return (number >> 1) ^ -(number & 1), position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first; bytes of all but the last have bit 7."""
    number = shift = 0
    while (byte := data[position]) >> 7:
        number |= (byte & 127) << shift
        shift += 7
        position += 1
        if shift > 63:
            raise _damaged_header()
    return number | byte << shift, position + 1
