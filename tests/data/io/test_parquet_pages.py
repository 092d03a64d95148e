"""What a row group may need is bounded by its bytes in the file, before it is decoded."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.data.io.parquet_file import ParquetSource
from bsmeta.data.io.parquet_pages import (
    MAX_LIST_BYTES,
    ReadLimits,
    compute_read_limits,
    measure_list_bytes,
)

MB = 1_000_000
ROWS = 64


def write_columns(columns: dict[str, Any], **options: Any) -> io.BytesIO:
    output = io.BytesIO()
    pq.write_table(pa.table(columns), output, **{"compression": "zstd"} | options)
    return output


def compute_bounds(file: io.BytesIO) -> ReadLimits:
    return compute_read_limits(file, ParquetSource(file).describe_column_chunks(0), ROWS)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_ordinary_rows_are_read_together(compression: str, version: str) -> None:
    columns = {
        "url": [f"https://a.org/{number}" for number in range(500)],
        "html": [f"<p>{number}" * 20 for number in range(500)],
        "tags": [[{"key": "a", "value": str(number % 7)}] * 5 for number in range(500)],
        "n": [*range(500)],
    }
    options = {"compression": compression, "data_page_version": version, "data_page_size": 2000}
    assert compute_bounds(write_columns(columns, **options)) == ReadLimits(ROWS, ())


@given(
    rows=st.lists(st.text(max_size=40) | st.none(), min_size=1, max_size=60),
    page_bytes=st.integers(1, 300),
    use_dictionary=st.booleans(),
    statistics=st.booleans(),
    checksum=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_page_headers_of_all_writers_are_read(
    rows: list[str | None], page_bytes: int, use_dictionary: bool, statistics: bool, checksum: bool
) -> None:
    columns = {"text": pa.array(rows, pa.string()), "list": [[row] for row in rows]}
    file = write_columns(
        columns,
        data_page_size=page_bytes,
        write_batch_size=3,
        use_dictionary=use_dictionary,
        write_statistics=statistics,
        write_page_checksum=checksum,
    )
    assert compute_bounds(file).max_rows == ROWS


def test_a_page_that_expands_is_refused() -> None:
    file = write_columns({"url": ["u"], "html": ["x" * 100 * MB]})
    with pytest.raises(ValueError, match=r"bytes would become 100,\d+,\d+, most of them in html; "):
        compute_bounds(file)


def test_pages_that_expand_in_many_columns_are_refused() -> None:
    file = write_columns({f"column{number}": ["x" * 2 * MB] for number in range(20)})
    with pytest.raises(ValueError, match=r"bytes would become 40,\d+,\d+, most of them in column"):
        compute_bounds(file)


def test_bounds_do_not_trust_the_sizes_in_the_footer() -> None:
    file = write_columns({"html": ["x" * 20 * MB]})
    (chunk,) = ParquetSource(file).describe_column_chunks(0)
    false = replace(chunk, size=1 << 40, raw_size=1)
    with pytest.raises(ValueError, match=r"^\d{3} bytes would become 20,\d+,\d+, "):
        compute_read_limits(file, [false], ROWS)


def test_columns_that_share_their_pages_are_bounded_by_the_file() -> None:
    file = write_columns({"html": ["x" * MB]}, use_dictionary=False)
    (chunk,) = ParquetSource(file).describe_column_chunks(0)
    chunks = [replace(chunk, leaf=replace(chunk.leaf, index=index)) for index in range(1000)]
    assert compute_read_limits(file, chunks[:1], ROWS) == ReadLimits(16, ())
    with pytest.raises(ValueError, match=r"bytes would become 1,000,\d+,\d+, most of them in html"):
        compute_read_limits(file, chunks, ROWS)


def test_numbers_in_a_list_that_expand_are_refused() -> None:
    numbers = pa.array([0] * 20 * MB, pa.int8())
    column = pa.ListArray.from_arrays(pa.array([0, len(numbers)], pa.int32()), numbers)
    with pytest.raises(ValueError, match="most of them in list.list.element; "):
        compute_bounds(write_columns({"list": column}))


def test_the_same_size_without_compression_is_read() -> None:
    file = write_columns({"html": ["x" * 40 * MB]}, compression="none")
    assert compute_bounds(file) == ReadLimits(13, ())  # 512 MiB


def test_rows_that_repeat_a_long_value_are_read_singly() -> None:
    html = ["x" * 4_750_000] * 64
    file = write_columns({"html": html})
    assert len(file.getvalue()) < 2000
    assert compute_bounds(file) == ReadLimits(3, ())
    assert compute_bounds(write_columns({"html": html[:3]}, use_dictionary=False)) == ReadLimits(
        3, ()
    )


def test_values_that_share_their_prefix_are_bounded() -> None:
    html = ["x" * MB + str(number) for number in range(64)]
    options = {"use_dictionary": False, "column_encoding": {"html": "DELTA_BYTE_ARRAY"}}
    assert compute_bounds(write_columns({"html": html}, **options)).max_rows == 16
    options["column_encoding"] = {"list.list.element": "DELTA_BYTE_ARRAY"}
    with pytest.raises(ValueError, match="64 values in lists may share 1,.*DELTA_BYTE_ARRAY"):
        compute_bounds(write_columns({"list": [html]}, **options))


def test_nulls_of_a_fixed_width_have_bytes_in_memory() -> None:
    file = write_columns({"hash": pa.array([None] * 64, pa.binary(4 * MB))})
    assert compute_bounds(file).max_rows == 4


@pytest.mark.long
def test_lists_that_repeat_a_long_text_are_read_as_indices() -> None:
    file = write_columns({"html": ["a"], "list": [["x" * MB] * 1000]})
    assert compute_bounds(file) == ReadLimits(ROWS, (1,))
    (batch,) = ParquetSource(file).read_batches(0, None, ROWS, dictionary_leaves=(1,))
    assert measure_list_bytes(batch.column("html")) == 0
    assert measure_list_bytes(batch.column("list")) == 1000 * MB > MAX_LIST_BYTES


def test_lists_of_many_short_texts_are_read_without_indices() -> None:
    words = [f"word {number}" for number in range(10_000)]
    assert compute_bounds(write_columns({"list": [words * 20]})) == ReadLimits(ROWS, ())


def test_texts_in_structs_and_maps_in_lists_are_counted() -> None:
    texts = pa.array(["x" * MB] * 100).dictionary_encode()
    structs = pa.StructArray.from_arrays([texts], ["value"])
    offsets = pa.array([0, 100], pa.int32())
    assert measure_list_bytes(structs) == 0
    assert measure_list_bytes(pa.ListArray.from_arrays(offsets, structs)) == 100 * MB
    assert (
        measure_list_bytes(pa.MapArray.from_arrays(offsets, pa.array([*range(100)]), texts))
        == 100 * MB
    )
    outer = pa.ListArray.from_arrays(offsets, texts)
    assert (
        measure_list_bytes(pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), outer))
        == 100 * MB
    )


def changed(file: io.BytesIO, offset: int, content: bytes) -> io.BytesIO:
    data = bytearray(file.getvalue())
    data[offset : offset + len(content)] = content
    return io.BytesIO(bytes(data))


@pytest.mark.parametrize(
    "header",
    [
        bytes(20),  # no fields
        b"\x15\x04\x15\x01\x15\x02" + bytes(20),  # a size of -1
        b"\x15\x04\x15" + b"\xff" * 4 + b"\x7f\x15\x02",  # a size of more than 31 bits
        b"\x15\x04\x05\x02\x02" * 4,  # a field twice
        b"\x15\x04\x05" + b"\x84\x80\x08" * 6,  # a field whose lowest bits are those of another
        b"\x15" + b"\x80" * 30,  # a number without an end
        b"\x1c" * 30,  # structs in each other
        b"\x1d\x00" * 20,  # a type that is none
    ],
)
def test_a_damaged_header_is_refused(header: bytes) -> None:
    file = write_columns({"text": ["abc" * 20] * 3}, compression="none")
    (chunk,) = ParquetSource(file).describe_column_chunks(0)
    with pytest.raises(ValueError, match="a page has a damaged header"):
        compute_read_limits(changed(file, chunk.start, header), [chunk], ROWS)
