"""A damaged Parquet file never ends the process: in training, in annotation, as a table."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bsmeta.annotate.inputs.sources import decode_record, read_items
from bsmeta.core.errors import DataError
from bsmeta.data.io.parquet_file import ParquetSource
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.table.csv_file import BadRows
from bsmeta.data.table.records import read_records
from tests.conftest import REPOSITORY
from tests.hostile import Reader, changed_bytes, failures, random_changes, read_all

PAGE_BYTES = 100_000
OPENS = REPOSITORY / "bsmeta/data/io/parquet_file.py"


def read_for_training(path: Path) -> None:
    reader = open_shard(str(path))
    try:
        while not reader.ended:
            reader.read(reader.line, 512)
        if reader.damage:
            raise DataError(f"{path.name}: {reader.damage}")
    finally:
        reader.close()


def read_for_annotation(path: Path) -> None:
    for item, _ in read_items(str(path), PAGE_BYTES):
        decode_record(item, PAGE_BYTES)


def read_as_table(path: Path) -> None:
    for _ in read_records(path, ["text"], BadRows(path, "skip")):
        pass


def parquet(**columns: pa.Array | list[object]) -> bytes:
    output = io.BytesIO()
    pq.write_table(pa.table(columns), output)
    return output.getvalue()


SMALL = parquet(text=["hello", "b"], n=[1, 2])
NESTED = parquet(
    text=["a", None, "b"] * 20,
    tags=[[{"key": "k", "at": number}] for number in range(60)],
    map=pa.array([[("k", 1.5)], [], None] * 20, pa.map_(pa.string(), pa.float32())),
    hash=pa.array([b"12345678"] * 60, pa.binary(8)),
)


@pytest.mark.long
def test_a_damaged_byte_that_used_to_crash_the_process_is_reported(tmp_path: Path) -> None:
    """The codec of the column `n` becomes another type of Thrift."""
    assert len(SMALL) == 727
    for offset in (at for at in range(len(SMALL) - 1) if SMALL[at : at + 2] == b"\x25\x02"):
        damaged = SMALL[: offset + 1] + b"\0" + SMALL[offset + 2 :]
        for reader in (read_for_training, read_for_annotation):
            (outcome,) = read_all(reader, [damaged], intact=SMALL, name="a.parquet")
            assert failures([outcome]) == []


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("reader", [read_for_training, read_for_annotation])
def test_no_changed_byte_crashes_the_reader(reader: Reader) -> None:
    inputs = changed_bytes(SMALL, values=(0x00, 0xFF))
    assert failures(read_all(reader, inputs, intact=SMALL, name="a.parquet")) == []


@pytest.mark.faults
@pytest.mark.parametrize("count", [700, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reader", [read_for_training, read_for_annotation])
def test_no_random_change_of_nested_columns_crashes_the_reader(reader: Reader, count: int) -> None:
    inputs = random_changes(NESTED, count)
    assert failures(read_all(reader, inputs, intact=NESTED, name="a.parquet")) == []


@pytest.mark.long
def test_a_damaged_parquet_file_is_never_read_as_a_table() -> None:
    """Tables are CSV or JSON lines; a Parquet file is refused, whatever its first bytes."""
    inputs = changed_bytes(SMALL, values=())
    outcomes = read_all(read_as_table, inputs, intact=b"text\na\n", name="a.csv")
    assert failures(outcomes) == []


def test_the_footer_and_the_columns_of_a_row_group_are_described() -> None:
    content = parquet(text=["hello", "b"], n=[1, 2])
    source = ParquetSource(io.BytesIO(content))
    assert (source.schema.names, source.group_ends) == (["text", "n"], [2])
    (chunk,) = source.describe_column_chunks(0, ["text"])
    assert (chunk.leaf.path, chunk.leaf.is_text, chunk.num_values, chunk.codec) == (
        "text", True, 2, "snappy",
    )  # fmt: skip
    (batch,) = source.read_batches(0, ["text"], 9)
    assert batch.to_pylist() == [{"text": "hello"}, {"text": "b"}]


def test_a_row_group_without_rows_has_no_columns() -> None:
    output = io.BytesIO()
    schema = pa.schema({"text": pa.string()})
    with pq.ParquetWriter(output, schema) as writer:
        writer.write_table(pa.table({"text": ["a"]}))
        writer.write_table(schema.empty_table())
    source = ParquetSource(output)
    assert source.group_ends[-1] == 1
    for group in range(1, len(source.group_ends)):
        assert source.describe_column_chunks(group) == []
        assert not [*source.read_batches(group, None, 9)]


def opens_parquet(tree: ast.AST) -> bool:
    """Whether a file imports `pyarrow.parquet` or `pyarrow.dataset`, or reads with `datasets`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return bool(names & {"pyarrow.parquet", "pyarrow.dataset", "from_parquet", "read_parquet"})


@pytest.mark.parametrize(
    ("source", "opens"),
    [
        ("import pyarrow.parquet as pq", True),
        ("from pyarrow import parquet", True),
        ("from pyarrow.parquet import ParquetFile", True),
        ("import pyarrow.dataset", True),
        ("pd.read_parquet(path)", True),
        ("Dataset.from_parquet(path)", True),
        ("import pyarrow as pa", False),
    ],
)
def test_modules_that_open_parquet_are_detected(source: str, opens: bool) -> None:
    assert opens_parquet(ast.parse(source)) is opens


def test_only_one_module_opens_parquet_files() -> None:
    files = sorted((REPOSITORY / "bsmeta").rglob("*.py"))
    assert [file for file in files if opens_parquet(ast.parse(file.read_text()))] == [OPENS]
