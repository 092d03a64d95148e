"""Copies of held-out pages: dropped, marked, and an error in shards that are checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from tests.annotate.copies import make_corpus, make_text, read_lines, write_texts
from tests.annotate.helpers import annotate, rows, write_pages
from tests.conftest import REPOSITORY

HELD_OUT = make_text(range(100))
NEAR = f"{HELD_OUT} more"
OTHER = make_text(range(200, 300))
FRESH = make_text(range(400, 500))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A held-out file beside training files, one of which has copies of it."""
    folder = tmp_path / "pages"
    folder.mkdir()
    write_texts(folder / "a.jsonl.gz", [HELD_OUT, HELD_OUT, "short"])  # the held-out file
    write_texts(folder / "b.jsonl.gz", [OTHER, NEAR, HELD_OUT, "short", OTHER])
    write_texts(folder / "c.jsonl.gz", [FRESH])
    return folder


def held_out_of(folder: Path) -> str:
    return str(folder / "a.jsonl.gz")


def read_texts(shard: Path) -> list[str]:
    return [row["text"] for row in rows(shard)]


@pytest.mark.parametrize(
    ("mode", "kept"), [("off", [OTHER, OTHER]), ("mark", [OTHER, OTHER]), ("drop", [OTHER])]
)
def test_copies_are_dropped_and_the_held_out_file_stays_complete(
    mode: str, kept: list[str], folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    annotate(str(folder), output, held_out=held_out_of(folder), duplicates=mode)
    assert read_texts(output / "a.jsonl.gz") == [HELD_OUT, HELD_OUT, "short"]
    assert read_texts(output / "b.jsonl.gz") == kept
    assert read_texts(output / "c.jsonl.gz") == [FRESH]


def test_copies_are_marked(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    settings = {"held_out": held_out_of(folder), "held_out_copies": "mark", "duplicates": "drop"}
    annotate(str(folder), output, **settings)
    marks = [row["metadata_duplicate"] for row in rows(output / "b.jsonl.gz")]
    assert [[(record["value"], record["source"]) for record in records] for records in marks] == [
        [],
        [("a:0", "held_out_copy")],
        [("a:0", "held_out_copy")],
        [("a:2", "held_out_copy")],
    ]


def test_the_held_out_file_may_be_elsewhere_and_have_raw_pages(
    folder: Path, tmp_path: Path
) -> None:
    raw = [{"url": "https://a.org", "html": f"<title>t</title><p>{HELD_OUT}"}]
    held_out = write_pages(tmp_path / "b.jsonl.gz", raw)  # the name of an input file, too
    output = tmp_path / "out"
    annotate(str(folder), output, held_out=[str(held_out)])
    assert read_texts(output / "a.jsonl.gz") == ["short"]
    assert read_texts(output / "b.jsonl.gz") == [OTHER, "short", OTHER]


def test_a_copy_of_both_a_kept_and_a_held_out_page_counts_as_held_out(
    folder: Path, tmp_path: Path
) -> None:
    near = make_text([*range(95), *range(900, 905)])
    write_texts(folder / "c.jsonl.gz", [near, make_text([*range(93), *range(900, 905)])])
    output = tmp_path / "out"
    settings = {"duplicates": "mark", "duplicate_shingle": 1, "held_out_copies": "mark"}
    annotate(str(folder), output, held_out=held_out_of(folder), **settings)
    marks = [row["metadata_duplicate"] for row in rows(output / "c.jsonl.gz")]
    assert [[record["source"] for record in records] for records in marks] == [
        ["held_out_copy"],
        ["held_out_copy"],
    ]


def check(folder: Path, output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the check as a program."""
    return subprocess.run(
        [
            sys.executable, "-m", "bsmeta", "annotate", f"input={folder}", f"output={output}",
            "duplicates_only=true", "workers=1", *arguments,
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.long
def test_finished_shards_are_checked(folder: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    annotate(str(folder), shards)
    output = tmp_path / "check"
    checked = check(shards, output, f"held_out={shards / 'a.jsonl.gz'}")
    assert checked.returncode == 2, checked.stderr
    assert "input: 3 pages copy pages of held_out: b:1 of a:0 (0.9" in checked.stderr
    assert [*output.glob("*.gz")] == []
    lines = read_lines(output / "duplicates.jsonl")
    assert [(line["page"], line["kind"]) for line in lines] == [
        ("b:1", "held_out_copy"),
        ("b:2", "held_out_copy"),
        ("b:3", "held_out_copy"),
    ]

    # The way out that the error names.
    clean = tmp_path / "clean"
    annotate(str(shards), clean, held_out=str(shards / "a.jsonl.gz"), annotators=["url"])
    checked = check(clean, tmp_path / "again", f"held_out={clean / 'a.jsonl.gz'}")
    assert checked.returncode == 0, checked.stderr
    assert (tmp_path / "again" / "duplicates.jsonl").read_text() == ""


def test_the_table_has_the_numbers_of_each_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    annotate(str(folder), tmp_path / "out", duplicates="drop", duplicates_only=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["a", "1", "0", "0"] in lines
    assert ["b", "3", "1", "0"] in lines
    assert ["all", "files", "4", "1", "0"] in lines


def test_a_damaged_file_is_not_ignored(folder: Path, tmp_path: Path) -> None:
    path = write_texts(folder / "c.jsonl.gz", make_corpus(30, 0))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"c\.jsonl\.gz: damaged"):
        annotate(str(folder), tmp_path / "out", duplicates="drop", duplicates_only=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": "/none.jsonl"}, "held_out: /none.jsonl is missing or has another suffix"),
        ({"held_out": "/none/*.gz"}, r"held_out: /none/\*.gz leads to no such file"),
        ({"duplicates_only": True}, "duplicates_only=true looks for nothing: set duplicates=mark"),
    ],
)
def test_wrong_settings_are_refused(
    settings: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises((ConfigurationError, DataError), match=message):
        annotate(str(folder), tmp_path / "out", **settings)


def test_a_held_out_file_in_the_output_is_refused(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    annotate(str(folder), output)
    with pytest.raises(ConfigurationError, match="held_out: .*a.jsonl.gz is in output="):
        annotate(str(folder), output, held_out=str(output / "a.jsonl.gz"))


def test_a_held_out_file_that_cannot_be_protected_is_refused(folder: Path, tmp_path: Path) -> None:
    empty = write_pages(tmp_path / "empty.jsonl.gz", [{"url": "https://a.org", "body": HELD_OUT}])
    with pytest.raises(DataError, match=r"held_out: no page of .*empty.jsonl.gz has text"):
        annotate(str(folder), tmp_path / "out", held_out=str(empty))

    damaged = write_texts(tmp_path / "damaged.jsonl.gz", [HELD_OUT, OTHER, FRESH])
    damaged.write_bytes(damaged.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"held_out: .*damaged.jsonl.gz: damaged"):
        annotate(str(folder), tmp_path / "out", held_out=str(damaged))
    assert not [*(tmp_path / "out").glob("*.gz")]
