"""Rows of pages of all formats, as lines of JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.quick.pages import flatten_row, list_page_files
from tests.quick.pages import make_row, write_rows


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    rows = [make_row(number) for number in range(3)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    cells = [list(rows[0]), *(list(row.values()) for row in rows)]
    (tmp_path / "a.csv").write_text("".join(f"{','.join(row)}\n" for row in cells))

    for name in ("a.jsonl", "a.jsonl.gz", "a.parquet", "a.csv"):
        files = list_page_files(str(tmp_path / name), 100)
        assert [json.loads(line) for line in files.read_lines()] == rows, name
        assert not files.has_more


def test_the_limit_is_shared_by_the_files(tmp_path: Path) -> None:
    for name in "ab":
        write_rows(tmp_path / f"{name}.jsonl", [{"text": f"{name}{k}"} for k in range(5)])
    files = list_page_files([str(tmp_path / "*.jsonl"), str(tmp_path / "a.jsonl")], 4)
    texts = [json.loads(line)["text"] for line in files.read_lines()]
    assert texts == ["a0", "a1", "b0", "b1"]
    assert files.has_more


def test_nested_columns_have_dotted_paths() -> None:
    row = {"text": "a", "meta": {"url": "b", "tags": ["c"], "inner": {"date": 1}}}
    assert flatten_row(row) == {"text": "a", "meta.url": "b", "meta.tags": ["c"],
                                "meta.inner.date": 1}  # fmt: skip


def test_lines_that_are_not_objects_are_skipped_in_the_first_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n[1]\nnot JSON\n\n{"text": "b"}\n')
    files = list_page_files(str(tmp_path / "a.jsonl"), 100)
    assert files.read_first_rows(10) == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty (0 bytes)"),
        ('[{"text": "a"}]', "is a JSON array"),
        ("<html><p>a", "is an HTML or XML page"),
    ],
)
def test_a_file_without_rows_is_refused_with_its_content(
    content: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError) as caught:
        list_page_files(str(tmp_path / "a.jsonl"), 100).read_first_rows(10)
    assert str(caught.value).startswith(f"pages: {tmp_path}/a.jsonl {expected}")
    assert "expected one JSON object per line, a Parquet table, or CSV" in str(caught.value)


def test_a_damaged_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    lines = b"".join(b'{"text": "%d"}\n' % number for number in range(2000))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines)[:-500])
    files = list_page_files(str(tmp_path / "a.jsonl.gz"), 100_000)
    rows = [*files.read_lines()]
    assert 0 < len(rows) < 2000
    (note,) = files.notes
    assert f"cannot be read after row {len(rows):,}" in note


def test_missing_pages_are_refused_by_the_key_of_this_program(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="^pages: .*none.jsonl does not exist"):
        list_page_files(str(tmp_path / "none.jsonl"), 100)
    with pytest.raises(DataError, match="^pages: no file in "):
        list_page_files(str(tmp_path), 100)
    for pages in (None, [], 3, [3]):
        with pytest.raises(ConfigurationError, match="expected a file, a folder or a glob"):
            list_page_files(pages, 100)
