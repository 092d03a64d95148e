"""From input files to shards: the same bytes always, nothing twice, nothing lost silently."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from filelock import FileLock

from bsmeta.annotate.shard import ShardFiles, read_journal
from bsmeta.core import progress
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.shard_lines import read_first_lines
from tests.annotate.conftest import read_shards
from tests.annotate.helpers import annotate, rows, some_pages, write_pages


def test_a_row_has_the_columns_of_its_annotators(pages: Path, tmp_path: Path) -> None:
    assert annotate(str(pages), tmp_path / "out") == 0
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        "_annotation", "a.jsonl.gz", "b.jsonl.gz",
    ]  # fmt: skip
    annotated_rows = rows(tmp_path / "out" / "a.jsonl.gz")
    assert [row["url"] for row in annotated_rows] == [page["url"] for page in some_pages(30)]
    assert list(annotated_rows[0]) == [
        "text", "url", "c4_timestamp", "metadata_html", "html_head", "html_footer", "html_title",
        "metadata_url", "metadata_title", "annotation_errors",
    ]  # fmt: skip
    assert annotated_rows[0]["c4_timestamp"] == "2019-04-05T00:00:00Z"
    assert annotated_rows[3]["metadata_title"] == [
        {"key": "title", "type": "global", "value": "Page 3"}
    ]
    assert annotated_rows[0]["annotation_errors"] == {}


def test_any_number_of_workers_writes_the_same_bytes(pages: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 5):
        annotate(str(pages), tmp_path / str(workers), workers=workers, chunk_pages=4)
    assert read_shards(tmp_path / "1") == read_shards(tmp_path / "2") == read_shards(tmp_path / "5")


def test_a_chunk_is_limited_in_pages_and_bytes(tmp_path: Path) -> None:
    lines = [{"url": "https://a.org/", "html": "word " * 200} for _ in range(9)]
    path = str(write_pages(tmp_path / "a.jsonl.gz", lines))
    annotate(path, tmp_path / "pages", chunk_pages=4)
    annotate(path, tmp_path / "bytes", chunk_mb=0.0015)
    for folder, expected in (("pages", [4, 4, 1]), ("bytes", [2, 2, 2, 2, 1])):
        journal = read_journal(ShardFiles(tmp_path / folder, "a").journal)
        assert journal is not None
        assert [entry.counts.pages for entry in journal.entries] == expected


def test_shards_that_have_text_keep_it_and_their_columns(pages: Path, tmp_path: Path) -> None:
    annotate(str(pages), tmp_path / "first", annotators=["html", "url", "title"])
    names = ["title", "html", "length", "paragraph"]
    annotate(str(tmp_path / "first"), tmp_path / "second", annotators=names)
    for name in ("a", "b"):
        old, new = (rows(tmp_path / folder / f"{name}.jsonl.gz") for folder in ("first", "second"))
        for before, after in zip(old, new, strict=True):
            assert {key: after[key] for key in before if key != "annotation_errors"} == {
                key: before[key] for key in before if key != "annotation_errors"
            }
            assert after["annotation_errors"] == {"html": "no_html"}
            assert after["metadata_generation_length_text"][0]["value"] == str(len(after["text"]))
            assert after["metadata_paragraph"][0]["marker"] == "p"


def test_a_malformed_column_counts_no_records(tmp_path: Path) -> None:
    """For example, `metadata_html` by another program for a page without HTML."""
    line = {**some_pages(1)[0], "text": "A page.", "metadata_html": "", "metadata_title": "A"}
    del line["html"]
    pages = tmp_path / "pages.jsonl"
    pages.write_text(json.dumps(line) + "\n")
    assert annotate(str(pages), tmp_path / "out", annotators=["title", "html"]) == 0
    (shard,) = (tmp_path / "out").glob("*.jsonl.gz")
    assert len(rows(shard)) == 1


def test_a_damaged_file_does_not_affect_other_files(pages: Path, tmp_path: Path) -> None:
    whole = (pages / "a.jsonl.gz").read_bytes()
    (pages / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: damaged after \d+ records"):
        annotate(str(pages), tmp_path / "out", chunk_pages=2)
    assert list(read_shards(tmp_path / "out")) == ["b.jsonl.gz"]
    (pages / "a.jsonl.gz").write_bytes(whole)
    annotate(str(pages), tmp_path / "out")
    annotate(str(pages), tmp_path / "fresh")
    assert rows(tmp_path / "out/a.jsonl.gz") == rows(tmp_path / "fresh/a.jsonl.gz")


def test_progress_is_printed_without_a_terminal(
    pages: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    settings = {"annotators": ["url", "entity"], "disambiguation": str(tmp_path / "sets")}
    annotate(str(pages / "b.jsonl.gz"), tmp_path / "out", report=True, **settings)
    output = capsys.readouterr()
    lines = [re.sub(r"[\d,]+(/s| s\b)", r"N\1", line) for line in output.err.splitlines()]
    assert lines == [
        "reading input 100%, N s, N s left",
        "reading titles 100%, 9 pages, N/s, N s, N s left",
        "annotating 100%, 9 pages, N/s, N s, N s left",
        "annotating 100%, 9 pages, N/s, N s, N s left",  # the end of the file
        "writing sets 100%, 9 pages, N/s, N s, N s left",
    ]
    assert "9 pages, 9 rows in 1 shard (" in output.out
    assert "profiles.jsonl (9 lines), train.jsonl (0 lines)" in output.out


def test_two_runs_cannot_write_the_same_shard(pages: Path, tmp_path: Path) -> None:
    files = ShardFiles(tmp_path / "out", "a")
    files.lock.parent.mkdir(parents=True)
    with FileLock(files.lock), pytest.raises(ConfigurationError, match="written by another"):
        annotate(str(pages), tmp_path / "out")


def test_shards_of_files_with_equal_names_are_named_for_their_folders(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / "in" / folder).mkdir(parents=True)
        write_pages(tmp_path / "in" / folder / "a.jsonl.gz", some_pages(2))
    annotate(str(tmp_path / "in/*/*.gz"), tmp_path / "out")
    assert list(read_shards(tmp_path / "out")) == ["x_a.jsonl.gz", "y_a.jsonl.gz"]


def test_a_file_without_usable_pages_becomes_a_shard_without_rows(tmp_path: Path) -> None:
    write_pages(tmp_path / "a.jsonl.gz", [{"url": "https://a.org/", "html": "<p>"}])
    write_pages(tmp_path / "b.jsonl.gz", [])
    for _ in range(2):
        annotate([str(tmp_path / "a.jsonl.gz"), str(tmp_path / "b.jsonl.gz")], tmp_path / "out")
        for name in ("a", "b"):
            assert rows(tmp_path / "out" / f"{name}.jsonl.gz") == []
            assert ShardFiles(tmp_path / "out", name).open_complete() is not None
    assert len(read_first_lines(str(tmp_path / "out/a.jsonl.gz"), 1)) == 0
    assert not list((tmp_path / "out").rglob("*.part"))
