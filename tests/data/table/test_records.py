"""Records are read from CSV or JSON lines, and written so that an interrupted output continues."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.table.csv_file import BadRows
from bsmeta.data.table.records import (
    RecordWriter,
    escape_spreadsheet_cell,
    read_record_rows,
    read_records,
)
from tests.growth import LIMIT, measure_growth

KEY = {"input": "1f", "checkpoint": {"model.safetensors": "2e"}}
CSV = b'id,text\n1,stop\n2,"signs,\nfrom"\n'
RECORDS = [{"id": "1", "text": "stop"}, {"id": "2", "text": "signs,\nfrom"}]


def read(path: Path, on_bad_row: str = "refuse", encoding: str = "auto") -> list[dict[str, Any]]:
    bad = BadRows(path, on_bad_row)
    rows = list(read_records(path, ["text"], bad, encoding=encoding))
    bad.close()
    return rows


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.jsonl", "a.jsonl.gz"])
def test_records_are_read_from_every_format(tmp_path: Path, name: str) -> None:
    content = CSV
    if "tsv" in name:
        content = b'id\ttext\n1\tstop\n2\t"signs,\nfrom"\n'
    if "jsonl" in name:
        content = "\ufeff\n".encode() + b"\n\n".join(
            json.dumps(record).encode() for record in RECORDS
        )
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read(path) == RECORDS


def test_json_keeps_the_types_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "n": 1, "tags": ["x"], "of": {"b": null}}\n')
    assert read(path) == [{"text": "a", "n": 1, "tags": ["x"], "of": {"b": None}}]


def test_json_lines_are_read_in_a_declared_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "caf\xe9"}\n')
    assert read(path, encoding="latin-1") == [{"text": "café"}]


def test_a_long_json_line_is_one_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bsmeta.data.table.records.MAX_RECORD_CHARS", 100)
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "{"a" * 250}"}}\n{{"text": "b"}}\n')
    rows = [
        (row.number, row.line, row.problem, record) for row, record in read_record_rows(path, [])
    ]
    assert rows == [(1, 1, "longer than 100 characters", {}), (2, 2, None, {"text": "b"})]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (
            "a.jsonl",
            b'{"text": "a"}\n[1]\n',
            r"row 2 \(line 2\): not a JSON object: Expected `object`",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"row 2 \(line 2\): not a JSON object"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": 3}\n', r"row 2 \(line 3\): 'text' is the number 3"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "b"}\n', r"row 2 \(line 2\): no text in 'text'"),
        ("a.csv", b"id,text\n1,a\n2, \n", r"row 2 \(line 3\): no text in 'text'"),
        ("a.csv", b'text\na\n""\n', r"row 2 \(line 3\): no text in 'text'"),
        ("a.csv", b'id,text\n1,a\n""\n', r"row 2 \(line 3\): 1 column, the header has 2"),
        ("a.csv", b"id,text\n1,a\n2\n", r"row 2 \(line 3\): 1 column, the header has 2"),
    ],
)
def test_bad_records_are_refused_or_skipped(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read(path)
    assert [record["text"] for record in read(path, "skip")] == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", b"id,text,id\n1,a,2\n", r"'id' more than once in the header"),
        ("a.csv", b"id,txt\n1,a\n", r"no column 'text' \(did you mean txt\?\)"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 99)[:-9], r"damaged gzip data after row"),
        ("a.jsonl", b'{"text": "caf\xe9"}\n', r"not text in csv_encoding=utf-8"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises((DataError, ConfigurationError), match=reason):
        read(path)


def write(path: Path, records: list[dict[str, Any]], key: dict[str, Any] = KEY, **how: bool) -> int:
    writer = RecordWriter(path, key, **how)
    for record in records[writer.num_done :]:
        writer.write(record)
    writer.finish()
    return writer.num_done


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_an_output_cut_anywhere_is_continued(tmp_path: Path, name: str) -> None:
    records = [
        {"text": text, "label": "a", "probabilities": {"a": 0.75, "b, or not": 0.25}}
        for text in ("stop", 'two\nlines, "quoted"', "café", "")
    ]
    whole, part = tmp_path / name, tmp_path / f"{name}.part"
    assert write(whole, records) == 0
    content = whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    done = []
    for length in range(len(content) + 1):
        whole.unlink()
        (tmp_path / f"{name}.part.json").write_text(json.dumps(KEY))
        part.write_bytes(content[:length])
        done.append(write(whole, records))
        assert whole.read_bytes() == content
    assert done == sorted(done)
    assert {*done} == {0, 1, 2, 3, 4}


def test_nested_values_become_columns_of_a_csv_output(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write(path, [{"text": "a\rb", "n": 1, "x": None, "of": {"a": 0.5}, "tags": ["x"]}])
    assert path.read_bytes() == b'text,n,x,of.a,tags\n"a\rb","1","","0.5","[""x""]"\n'


FORMULAS = (
    "=cmd|'/C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "＝1",
    "-",
    "+x",
)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_spreadsheet_computes_no_cell_of_a_safe_table(tmp_path: Path, formula: str) -> None:
    record = {"text": formula, formula: "a", "of": {formula: [formula]}}
    assert escape_spreadsheet_cell(formula) == f"'{formula}"
    write(tmp_path / "plain.csv", [record])
    write(tmp_path / "safe.csv", [record], spreadsheet_safe=True)
    write(tmp_path / "safe.jsonl", [record], spreadsheet_safe=True)
    rows = [
        [*csv.reader((tmp_path / name).open(newline="", encoding="utf-8"))]
        for name in ("plain.csv", "safe.csv")
    ]
    cells = json.dumps([formula], ensure_ascii=False)
    head, row = ["text", formula, f"of.{formula}"], [formula, "a", cells]
    assert rows[0] == [head, row]
    assert rows[1] == [["text", f"'{formula}", f"of.{formula}"], [f"'{formula}", "a", cells]]
    assert read(tmp_path / "safe.jsonl") == [record]


@pytest.mark.parametrize(
    "cell", ["-1", "+4.6", "-.5e-3", "1=1", "a@b", "'=1", "", " =1", 7, -0.5, None]
)
def test_other_cells_of_a_safe_table_are_unchanged(cell: Any) -> None:
    assert escape_spreadsheet_cell(cell) == cell


def test_a_safe_table_is_continued(tmp_path: Path) -> None:
    records = [{"=text": f"={number}", "n": -number} for number in range(3)]
    writer = RecordWriter(tmp_path / "out.csv", KEY, spreadsheet_safe=True)
    writer.write(records[0])
    del writer
    assert write(tmp_path / "out.csv", records, spreadsheet_safe=True) == 1
    assert (tmp_path / "out.csv").read_text() == "'=text,n\n'=0,0\n'=1,-1\n'=2,-2\n"


def test_rows_of_another_call_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    writer = RecordWriter(path, KEY)
    writer.write({"text": "a"})
    del writer
    with pytest.raises(ConfigurationError, match=r"begun by another call.*\n  input: 1f there, 3d"):
        RecordWriter(path, {**KEY, "input": "3d"})
    assert (tmp_path / "out.csv.part").read_text() == "text\na\n"


def test_an_output_without_rows_is_restarted(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    RecordWriter(path, {"input": "other"})
    assert write(path, [{"text": "a"}]) == 0


def test_two_calls_cannot_write_the_same_output(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "out.csv", KEY)
    with pytest.raises(ConfigurationError, match="is being written by another process"):
        RecordWriter(tmp_path / "out.csv", KEY)
    writer.finish()


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.csv").touch()
    with pytest.raises(ConfigurationError, match="out.csv exists; delete it, or name another"):
        RecordWriter(tmp_path / "out.csv", KEY)
    with pytest.raises(ConfigurationError, match=r"expected a name that ends in .csv or .jsonl"):
        RecordWriter(tmp_path / "out.xlsx", KEY)
    with pytest.raises(DataError, match="cannot be written"):
        RecordWriter(tmp_path / "out.csv/under.csv", KEY)


def test_records_with_further_keys_are_refused_in_a_table(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "out.csv", KEY)
    writer.write({"text": "a", "n": 1})
    writer.write({"text": "b"})
    with pytest.raises(DataError, match=r"a record has 'm', which .* output=.*out.jsonl"):
        writer.write({"text": "a", "m": 1})


CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])
CELLS = st.text(st.sampled_from('ab,"\n\r é') | CHARACTERS, min_size=1, max_size=8)


@example(texts=[" a", "a\rb", "a\n"])
@given(texts=st.lists(CELLS.filter(str.strip), max_size=5))
def test_records_round_trip(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("records")
    records = [{"id": str(n), "text": text} for n, text in enumerate(["first", *texts])]
    for name in ("out.csv", "out.jsonl"):
        write(folder / name, records)
        assert read(folder / name) == records


EXTREMES = {
    "depth": (b"[" * 3000 + b"]" * 3000, "not a JSON object: nested too deeply"),
    "encoding": (b'"caf\xe9"', "not a JSON object: not UTF-8"),
    "integer": (b"1" * 400, "not a JSON object: an integer that is larger than any float"),
    "digits": (b"1" * 5000, "not a JSON object: Integer value out of range"),
}


@pytest.mark.parametrize(("value", "reason"), EXTREMES.values(), ids=EXTREMES)
def test_extreme_values_are_bad_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: bytes, reason: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "b", "more": ' + value + b'}\n{"text": "c"}\n')
    encoding = "auto"
    if b"\xe9" not in value:
        with pytest.raises(DataError, match=f"row 2 .*{reason}"):
            read(path, encoding=encoding)
        assert read(path, "skip", encoding) == [{"text": "a"}, {"text": "c"}]
        assert "1 row left out" in caplog.text


def test_repeated_names_in_a_header_of_20000_columns_are_refused(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(20_000)]
    path = tmp_path / "a.csv"
    path.write_text(",".join(["text", *names]) + "\n" + "a" + ",1" * 20_000 + "\n")
    assert read(path) == [{"text": "a"} | dict.fromkeys(names, "1")]

    path.write_text(",".join(["text", *names, "c7", "c5"]) + "\n")
    with pytest.raises(ConfigurationError, match="'c5', 'c7' more than once in the header"):
        read(path)


def test_the_time_of_a_header_grows_with_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"

    def read_header(content: str) -> None:
        path.write_text(content)
        read(path)

    def header(columns: int) -> str:
        return ",".join(["text", *(f"c{number}" for number in range(columns - 1))]) + "\n"

    assert measure_growth(read_header, header, (1000, 4000, 10_000, 20_000)) <= LIMIT


def test_objects_with_long_keys_are_cells_of_json(tmp_path: Path) -> None:
    long_key = "k" * 2000
    writer = RecordWriter(tmp_path / "out.csv", KEY)
    writer.write({"a": {"b": {"c": 1}}, long_key: {"d": 2}})
    writer.finish()
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["a.b.c", long_key], ["1", '{"d":2}']]


@pytest.mark.parametrize("column_type", ["binary", "string"])
def test_a_text_of_a_parquet_table_that_is_not_utf8_is_a_bad_row(
    tmp_path: Path, column_type: str
) -> None:
    texts = pa.array([b"ok", b"caf\xe9", b"also ok"], pa.binary())
    if column_type == "string":  # some writers do not check what they declare to be UTF-8
        texts = texts.view(pa.string())
    notes = pa.array([b"\xff", None, b"a note"], pa.binary())
    pq.write_table(pa.table({"text": texts, "note": notes}), tmp_path / "x.parquet")

    assert read(tmp_path / "x.parquet", "skip") == [
        {"text": "ok", "note": "\ufffd"},
        {"text": "also ok", "note": "a note"},
    ]
    with pytest.raises(DataError, match=r"row 2 \(line 2\): a text that is not in UTF-8"):
        read(tmp_path / "x.parquet")
