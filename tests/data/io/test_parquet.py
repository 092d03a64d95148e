"""Rows of Parquet shards: as lines of JSON, from any row on, in bounded memory, damaged or not."""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io import parquet
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.files import measure_file
from bsmeta.data.io.lines import IndexCache
from bsmeta.data.io.parquet import ParquetReader, cast_views, encode_rows
from bsmeta.data.io.shard_lines import has_line, open_shard, read_first_lines
from bsmeta.data.io.shards import Shard, list_shards
from bsmeta.data.stream import survey
from bsmeta.metadata.records import PartialLine
from tests.conftest import REPOSITORY
from tests.data.helpers import batches, pages, small_config

ROWS = 900
UTC = datetime.UTC


def write_shard_file(
    path: Path, rows: list[dict[str, Any]], groups: int = 3, **options: Any
) -> Path:
    """Writes a shard of `groups` row groups."""
    size = -(-len(rows) // groups)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=size, **options)
    assert pq.read_metadata(path).num_row_groups == groups
    return path


def decoded(lines: list[Any]) -> list[Any]:
    return [json.loads(bytes(line)) for line in lines]


def read_back(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Returns the values of a column after encoding and decoding."""
    lines = encode_rows(pa.record_batch([pa.array(values, kind)], names=["x"]))
    return [row["x"] for row in decoded(list(lines))]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.string(), ['a"\\\n\t\x01\x7fé😀', "", None], ['a"\\\n\t\x01\x7fé😀', "", None]),
        (pa.large_string(), ["é", None], ["é", None]),
        (pa.binary(), ["é".encode(), None], ["é", None]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"], ["a", None, "a"]),
        (pa.int64(), [-(2**63), 7, None], [-(2**63), 7, None]),
        (pa.bool_(), [True, False, None], [True, False, None]),
        (pa.float64(), [1.0, 0.25, float("nan"), None], [1.0, 0.25, None, None]),
        (pa.decimal128(5, 2), [Decimal("1.50"), None], [1.5, None]),
        (pa.binary(2), [b"ab", None], ["ab", None]),
        (pa.map_(pa.string(), pa.binary()), [[("a", b"b")], None], [{"a": "b"}, None]),
        (pa.list_(pa.binary(), 1), [[b"ab"], None], [["ab"], None]),
        (pa.date32(), [datetime.date(2019, 4, 25), None], ["2019-04-25", None]),
        (
            pa.date32(),
            [-719_163, 0, 2_932_896, 2_932_897],
            [None, "1970-01-01", "9999-12-31", None],
        ),
        (pa.date64(), [253_402_300_800_000, 0, None], [None, "1970-01-01", None]),
        (pa.list_(pa.int8()), [[1, None], [], None], [[1, None], [], None]),
        (pa.large_list(pa.string()), [["a", "b"], None], [["a", "b"], None]),
        (pa.map_(pa.string(), pa.int8()), [[("a", 1)], None], [{"a": 1}, None]),
        (pa.float32(), [0.1, 1e20, 16777216.0, float("nan")], [0.1, 1e20, 16777216.0, None]),
        (pa.float16(), [0.1, 1.0, None], [0.1, 1.0, None]),
        (pa.list_(pa.float32()), [[0.1, None], None], [[0.1, None], None]),
        (pa.list_(pa.float32(), 1), [[0.1], None], [[0.1], None]),
        (pa.map_(pa.string(), pa.float32()), [[("a", 0.1)], None], [{"a": 0.1}, None]),
        (pa.list_view(pa.int8()), [[1, 2], None, [], [3]], [[1, 2], None, [], [3]]),
        (pa.list_view(pa.int8()), [None, None], [None, None]),
        (pa.null(), [None], [None]),
    ],
    ids=str,
)
def test_column_types_become_json_values(
    kind: pa.DataType, values: list[Any], expected: list[Any]
) -> None:
    assert read_back(values, kind) == expected


VIEWS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string_view(), ["a longer text than 12 bytes", 'é"', None]),
    "list": (pa.list_view(pa.int8()), [[1, 2], [], None]),
    "large list": (pa.large_list_view(pa.string()), [["a", None], [], None]),
    "list of strings": (pa.list_(pa.string_view()), [["a", None], [], None]),
    "map": (pa.map_(pa.string_view(), pa.string_view()), [[("a", "b")], [], None]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_list_and_string_views_read_like_ordinary_columns(tmp_path: Path, name: str) -> None:
    kind, values = VIEWS[name]
    rows = values * 20
    column = pa.array(rows, kind)
    pq.write_table(pa.table({"text": ["t"] * 60, "x": column}), tmp_path / "a.parquet")
    assert pq.read_schema(tmp_path / "a.parquet").field("x").type == kind
    expected = [dict(row) if name == "map" and row is not None else row for row in rows]
    reader = ParquetReader(str(tmp_path / "a.parquet"))
    assert [row["x"] for row in decoded(reader.read(0, 60))] == expected
    assert [row["x"] for row in decoded(reader.take(range(1, 60, 7)))] == expected[1::7]
    assert reader.damage == ""


def test_binary_views_are_strings() -> None:
    batch = pa.record_batch([pa.array(["é".encode(), None], pa.binary_view())], names=["x"])
    assert decoded(list(encode_rows(cast_views(batch)))) == [{"x": "é"}, {"x": None}]


def test_an_unsupported_type_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pyarrow reports features of later versions of the format."""

    def refuse(*_: Any, **__: Any) -> None:
        raise pa.ArrowNotImplementedError("no kernel for (string_tree)")

    path = write_shard_file(tmp_path / "a.parquet", [{"text": "a"}] * 9)
    monkeypatch.setattr(parquet, "cast_views", refuse)
    expected = r"a\.parquet: not supported: no kernel for \(string_tree\)\. .* text: string"
    for skipped in ("strict", "skip"):
        with pytest.raises(DataError, match=expected) as error:
            batches(one_stream(path, bad_documents=skipped), 1)
        assert "damaged" not in str(error.value)


def test_timestamps_become_iso_texts() -> None:
    moments = [
        datetime.datetime(2019, 4, 25, 12, 57, 54),
        datetime.datetime(2019, 4, 25, 12, 57, 54, 120_000),
        None,
    ]
    naive = read_back(moments, pa.timestamp("ns"))
    assert naive == ["2019-04-25T12:57:54", "2019-04-25T12:57:54.120000", None]
    aware = [moment and moment.replace(tzinfo=UTC) for moment in moments]
    for zone in ("UTC", "Europe/Berlin"):
        found = read_back(aware, pa.timestamp("ms", zone))
        assert found == ["2019-04-25T12:57:54Z", "2019-04-25T12:57:54.120Z", None]
    assert read_back([1556197074], pa.timestamp("s", "UTC")) == ["2019-04-25T12:57:54Z"]


def test_nested_structs_lists_and_nulls_are_read() -> None:
    rows: list[dict[str, Any]] = [
        {"a": {"b": [{"c": "x", "d": None}, None], "e": 1}, 'k"': "v"},
        {"a": None, 'k"': None},
        {"a": {"b": None, "e": None}, 'k"': "w"},
        {"a": {"b": [], "e": 3}, 'k"': ""},
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    assert decoded(list(encode_rows(batch))) == rows
    assert decoded(list(encode_rows(batch.slice(1, 2)))) == rows[1:3]
    assert decoded(list(encode_rows(batch.slice(2, 0)))) == []


RECORDS = st.lists(
    st.none()
    | st.fixed_dictionaries({"k": st.none() | st.text(), "n": st.none() | st.integers(0, 9)})
)


@given(st.lists(st.fixed_dictionaries({"text": st.none() | st.text(), "r": st.none() | RECORDS})))
def test_lines_contain_the_values_of_the_rows(rows: list[dict[str, Any]]) -> None:
    record = pa.struct({"k": pa.string(), "n": pa.int8()})
    table = pa.Table.from_pylist(rows, pa.schema({"text": pa.string(), "r": pa.list_(record)}))
    for batch in table.to_batches():
        assert decoded(list(encode_rows(batch))) == rows


TAG = {"k": st.none() | st.text(), "n": st.none() | st.integers(-9, 9), "b": st.booleans()}
INNER = st.none() | st.fixed_dictionaries({"attrs": st.lists(st.none() | st.text(max_size=3))})
TAGS = st.none() | st.lists(st.none() | st.fixed_dictionaries({**TAG, "inner": INNER}))
NESTED = {
    "text": st.text(),
    "tags": TAGS,
    "large": st.none() | st.text(),
    "lists": st.none() | st.lists(st.none() | st.lists(st.integers(0, 9))),
    "word": st.none() | st.sampled_from(["a", 'b"', ""]),
}
NESTED_TYPES = {
    "text": pa.string(),
    "tags": pa.list_(
        pa.struct(
            {
                "k": pa.large_string(),
                "n": pa.int32(),
                "b": pa.bool_(),
                "inner": pa.struct({"attrs": pa.large_list(pa.string())}),
            }
        )
    ),
    "large": pa.large_string(),
    "lists": pa.list_(pa.large_list(pa.int8())),
    "word": pa.dictionary(pa.int8(), pa.string()),
}


@given(rows=st.lists(st.fixed_dictionaries(NESTED), min_size=1), data=st.data())
@settings(max_examples=50)
def test_rows_with_lazy_columns_contain_the_same_values(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    schema = pa.schema(NESTED_TYPES)
    path = tmp_path_factory.mktemp("shards") / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=7)
    assert pq.read_table(path).to_pylist() == rows
    numbers = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    late = ["tags", "lists", "word", "absent"]
    reader = ParquetReader(str(path), lazy_columns=late)
    lines = reader.take(numbers)
    for line, row in zip(lines, [rows[number] for number in numbers], strict=True):
        assert isinstance(line, PartialLine)
        assert set(line.lazy_columns) == {name for name in ("tags", "lists") if row[name]}
        assert {name: json.loads(of()) for name, of in line.lazy_columns.items()} == {
            name: row[name] for name in line.lazy_columns
        }
        whole = json.loads(bytes(line))
        assert whole == {name: row[name] for name in row if name in whole}
        assert not any(row[name] for name in row.keys() - whole.keys())


def test_only_fully_convertible_lists_are_lazy(tmp_path: Path) -> None:
    moment = datetime.datetime(2019, 4, 25)
    row = {"text": "a", "html": "b", "times": [moment], "bytes": [b"c"], "none": [], "n": [1]}
    path = write_shard_file(tmp_path / "a.parquet", [row], 1)
    (line,) = ParquetReader(str(path), lazy_columns=[*row]).read(0, 1)
    assert isinstance(line, PartialLine)
    assert list(line.lazy_columns) == ["n"]
    expected = {**row, "times": ["2019-04-25T00:00:00"], "bytes": ["c"]}
    del expected["none"]  # nothing but a late column without values
    assert json.loads(bytes(line)) == expected


def test_a_row_may_consist_of_lazy_columns(tmp_path: Path) -> None:
    path = write_shard_file(tmp_path / "a.parquet", [{"n": [1]}], 1)
    (line,) = ParquetReader(str(path), lazy_columns=["n"]).read(0, 1)
    assert bytes(line) == b'{"n":[1]}'


def list_shards_renamed(config: DataConfig) -> list[Shard]:
    """Lists the shards with equal names in each format, since random choices depend on it."""
    return [dataclasses.replace(shard, name="a") for shard in list_shards(config)]


LISTED = ["html", "entity", "entity_paragraph"]
"""Types whose columns have many records."""


@pytest.mark.parametrize(
    "columns", [{}, {key: f"metadata_{key}" for key in LISTED}], ids=["records", "plain"]
)
def test_lists_are_converted_only_if_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: dict[str, str]
) -> None:
    """Batches are those of `.jsonl.gz`; most lists of shipped pages are never converted."""
    (shipped,) = (REPOSITORY / "examples" / "webdocs").glob("*pq00-001.jsonl.gz")
    rows = [json.loads(line) for line in gzip.decompress(shipped.read_bytes()).splitlines()]
    path = write_shard_file(tmp_path / "a.parquet", rows, 2)
    converted: list[int] = []
    element = parquet.encode_element

    def noted(array: pa.Array, row: int) -> bytes:
        converted.append(row)
        return element(array, row)

    monkeypatch.setattr(parquet, "encode_element", noted)
    monkeypatch.setattr(survey, "list_shards", list_shards_renamed)
    monkeypatch.setattr(survey, "add_sample_hashes", lambda shards, cache: list(shards))
    changes: dict[str, Any] = {"columns": columns, "metadata_list": [*LISTED, "title"]}
    changes |= {"metadata_probability": 0.5, "random_sample_metadata": True}
    ids = [
        [step.tensors["input_ids"] for step in batches(one_stream(file, **changes), 40)]
        for file in (shipped, path)
    ]
    assert all(map(torch.equal, *ids))
    lists = sum(bool(row[f"metadata_{key}"]) for row in rows for key in LISTED)
    assert 0 < len(converted) < lists / 2


def test_html_that_is_not_utf8_is_reported_as_from_json(tmp_path: Path) -> None:
    page = {"text": "abc", "metadata_html": [{"key": "html", "type": "local", "value": "b"}]}
    table = pa.Table.from_pylist([page])
    raw = pa.array([b"caf\xe9"]).view(pa.string())
    tags = pa.StructArray.from_arrays([raw, raw], ["key", "value"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), tags)
    table = table.set_column(1, "metadata_html", lists)
    pq.write_table(table, tmp_path / "a.parquet")
    config = one_stream(tmp_path / "a.parquet", metadata_list=["html"])
    with pytest.raises(DataError, match=r"a\.parquet, row 1: not_utf8: "):
        batches(config, 1)


@pytest.fixture(scope="module", params=[1, 3, 300])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shard_file(
        tmp_path_factory.mktemp("shards") / "a.parquet", pages(ROWS), request.param
    )


PLACES = st.tuples(st.integers(0, ROWS + 20), st.integers(1, 400))


@given(st.lists(PLACES, min_size=1, max_size=6))
@settings(max_examples=20)
def test_rows_are_read_in_any_order(shard: Path, places: list[tuple[int, int]]) -> None:
    reader = ParquetReader(str(shard), ["text"])
    expected = [{"text": page["text"]} for page in pages(ROWS)]
    for first, count in places:
        assert decoded(reader.read(first, count)) == expected[first : first + count]
        assert reader.ended == (first + count > ROWS)
    every_third = range(1, ROWS, 3)
    assert decoded(reader.take(every_third)) == expected[1::3]
    assert (reader.line, reader.ended, reader.damage) == (ROWS - 1, False, "")
    reader.close()


def test_rows_are_read_in_small_batches(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "TARGET_BATCH_BYTES", 2000)
    assert decoded(ParquetReader(str(shard)).read(0, 1000)) == pages(ROWS)
    assert decoded(ParquetReader(str(shard)).read(777, 5)) == pages(ROWS)[777:782]


def test_only_requested_columns_are_read(tmp_path: Path) -> None:
    rows = [{"text": "a", "more": {"score": 0.5, "junk": "x"}, "url": "u"}] * 4
    path = str(write_shard_file(tmp_path / "a.parquet", rows, 2))
    reader = open_shard(path, columns=("text", "more.score", "absent"))
    assert decoded(reader.read(1, 2)) == [{"text": "a", "more": {"score": 0.5}}] * 2
    assert decoded(open_shard(path, columns=()).read(0, 9)) == [{}] * 4
    assert decoded(read_first_lines(path, 1)) == rows[:1]


def test_has_line_is_false_after_the_last_row(shard: Path, tmp_path: Path) -> None:
    indexes = IndexCache(Cache(str(tmp_path)))
    assert has_line(str(shard), ROWS - 1, indexes)
    assert not has_line(str(shard), ROWS, indexes)
    indexes.build(str(shard))  # it needs none
    assert not list(tmp_path.iterdir())


def test_reading_in_the_middle_starts_at_a_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shard_file(tmp_path / "a.parquet", pages(ROWS), 300)
    entered: list[int] = []
    enter = ParquetReader.enter_group

    def noted(self: ParquetReader, group: int) -> None:
        entered.append(group)
        enter(self, group)

    monkeypatch.setattr(ParquetReader, "enter_group", noted)
    reader = ParquetReader(str(path))
    assert decoded(reader.read(600, 4)) == pages(ROWS)[600:604]
    assert entered == [200, 201]


MEASURE = """
import sys
import psutil
from bsmeta.data.io.parquet import ParquetReader

def read(path):
    reader, count, most = ParquetReader(path, ["text"]), 0, 0
    while not reader.ended:
        count += len(reader.read(reader.line, 512))
        most = max(most, psutil.Process().memory_info().rss)
    return count, most

(few, before), (count, after) = map(read, sys.argv[1:])
print(few, count, after - before)
"""


def test_memory_does_not_grow_with_the_row_group(tmp_path: Path) -> None:
    """A row group of 100 MB takes less than half of the 90 MB by which it is larger than another.

    The heap of one and the same reading differs by up to 25 MB from process to process, so that a
    closer limit would measure the allocator.
    """
    for rows in (5_000, 50_000):
        texts = [f"{number} {chr(97 + number % 26) * 2000}" for number in range(rows)]
        table = pa.table({"text": texts})
        path = tmp_path / f"{rows}.parquet"
        pq.write_table(table, path, row_group_size=rows, compression="none", use_dictionary=False)
        assert path.stat().st_size > 2000 * rows
    paths = [str(tmp_path / "5000.parquet"), str(path)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True, check=True
    )
    few, count, grown = map(int, done.stdout.split())
    assert (few, count) == (5_000, 50_000)
    assert grown < 45_000_000


def one_stream(path: Path, **changes: Any) -> DataConfig:
    return small_config(path, **{"num_streams": 1, "window_documents": 100} | changes)


def write_bad_column(tmp_path: Path, text: pa.Array, at: int) -> Path:
    """Writes a shard in which row `at` has the given text."""
    good = pa.array(["good"] * 20).cast(text.type) if len(text) else None
    column = pa.concat_arrays([good[:at], text, good[at:]])
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", row_group_size=5)
    return tmp_path / "a.parquet"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("text_not_string", pa.array([None], pa.string())),
        ("not_utf8", pa.array([b"caf\xe9"], pa.binary())),
    ],
    ids=["null", "not UTF-8"],
)
def test_a_bad_row_is_named_by_its_number(tmp_path: Path, reason: str, text: pa.Array) -> None:
    path = write_bad_column(tmp_path, text, at=7)
    with pytest.raises(DataError) as error:
        batches(one_stream(path), 1)
    assert str(error.value).startswith(f"{path}, row 8: {reason}: ")
    taken = batches(one_stream(path, bad_documents="skip", packing="pad"), 10)
    assert sum(step.counts[f"bad_documents/{reason}"] for step in taken) == 1
    named = {name for step in taken for name in step.documents}
    assert named == {f"a.parquet:{row}" for row in range(21) if row != 7}


def test_columns_of_a_wrong_type_are_named(tmp_path: Path) -> None:
    path = write_shard_file(tmp_path / "a.parquet", [{"text": 3, "url": "u"}], 1)
    with pytest.raises(DataError, match=r"a\.parquet, row 1: text_not_string: "):
        batches(one_stream(path), 1)
    write_shard_file(tmp_path / "a.parquet", [{"content": "a", "url": "u"}], 1)
    with pytest.raises(ConfigurationError, match=r"Fix: data_config\.columns\.text=content"):
        batches(one_stream(path), 1)
    write_shard_file(tmp_path / "a.parquet", [{"text": "a", "metadata_url": "u"}], 1)
    with pytest.raises(DataError, match=r"a\.parquet, row 1: wrong_type: "):
        batches(one_stream(path), 1)


@pytest.mark.parametrize("kept", [0, 3, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path: Path, kept: float) -> None:
    path = write_shard_file(tmp_path / "a.parquet", pages(60))
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if kept < 1 else int(kept)])
    cause = (
        r"is empty \(0 bytes\)" if kept == 0 else r"cannot be read \(the footer cannot be read: "
    )
    with pytest.raises(ConfigurationError, match=rf"found .*a\.parquet, which {cause}"):
        batches(one_stream(path), 1)
    write_shard_file(tmp_path / "b.parquet", pages(60))
    with pytest.raises(DataError, match=r"a\.parquet, row 1: damaged_file: the footer cannot be"):
        batches(one_stream(tmp_path), 5)
    taken = batches(one_stream(tmp_path, bad_documents="skip"), 5)
    assert sum(step.counts["bad_documents/damaged_file"] for step in taken) == 1


def flip(path: Path, group: int, at: float) -> None:
    """Flips a bit of the text column in a row group, at a share of its size."""
    column = pq.read_metadata(path).row_group(group).column(0)
    assert column.path_in_schema == "text"
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[start + int(at * column.total_compressed_size)] ^= 16
    path.write_bytes(data)


@pytest.mark.parametrize("at", [0.0, 0.5, 0.95])
def test_a_flipped_bit_is_named_by_its_row_group(tmp_path: Path, at: float) -> None:
    options = {"write_page_checksum": True, "use_dictionary": False}
    path = write_shard_file(tmp_path / "a.parquet", pages(300), **options)
    flip(path, 1, at)
    with pytest.raises(DataError) as error:
        batches(one_stream(path), 200)
    message = str(error.value)
    assert message.startswith(f"{path}, row 101: damaged_file: row group 1 cannot be read: ")
    taken = batches(one_stream(path, bad_documents="skip", packing="pad"), 100)
    assert sum(step.counts["bad_documents/damaged_file"] for step in taken) == 1
    named = {name for step in taken for name in step.documents}
    assert named == {f"a.parquet:{row}" for row in range(100)}
    # What is after the damage can still be read.
    reader = ParquetReader(str(path), ["text"])
    assert reader.read(150, 9) == []
    assert reader.damage.startswith("row group 1 cannot be read: ")
    assert len(reader.read(250, 9)) == 9
    assert reader.damage == ""


def test_a_zeroed_column_is_named_by_its_row_group(tmp_path: Path) -> None:
    path = write_shard_file(
        tmp_path / "a.parquet", pages(300), compression="zstd", use_dictionary=False
    )
    column = pq.read_metadata(path).row_group(2).column(0)
    data = bytearray(path.read_bytes())
    start, size = column.data_page_offset, column.total_compressed_size
    data[start : start + size] = bytes(size)
    path.write_bytes(data)
    assert measure_file(str(path)) == len(data)
    with pytest.raises(DataError, match="row 201: damaged_file: row group 2 cannot be read: "):
        batches(one_stream(path), 300)


def test_durations_have_microseconds_and_those_that_python_lacks_are_null(tmp_path: Path) -> None:
    table = pa.table(
        {
            "ns": pa.array([1_500, None], pa.duration("ns")),
            "s": pa.array([2**60, 5], pa.duration("s")),
            "ms": pa.array([-(2**60), 7], pa.duration("ms")),
            "us": pa.array([2**63 - 1, 1], pa.duration("us")),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    first, second = (json.loads(bytes(line)) for line in ParquetReader(str(path)).read(0, 2))
    assert first == {"ns": "PT0.000001S", "s": None, "ms": None, "us": "P106751991DT14454.775807S"}
    assert second == {"ns": None, "s": "PT5S", "ms": "PT0.007S", "us": "PT0.000001S"}
