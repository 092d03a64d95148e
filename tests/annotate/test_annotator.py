"""Pages and their annotators: what fails is counted, and harms no other page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bsmeta.annotate.shard import ShardFiles, read_journal
from tests.annotate.conftest import CUSTOM, read_shards
from tests.annotate.helpers import WORDS, annotate, rows, some_pages, write_pages


@pytest.mark.long
def test_faulty_pages_are_counted_and_do_not_affect_other_pages(tmp_path: Path) -> None:
    pages = some_pages(40)
    faults = {
        3: "refuse",
        7: "raise",
        11: "hang",
        15: "crash",
        16: "crash",
        20: "swell",
        30: "object",
    }
    faults |= {31: "nothing", 32: "surrogate"}
    for number, fault in faults.items():
        pages[number]["url"] += f"#{fault}"
    pages[25]["html"] = "<p>"
    pages[26] = {"url": "https://www.example.org/none"}
    write_pages(tmp_path / "a.jsonl.gz", pages)
    for workers in (1, 2):
        annotate(
            str(tmp_path / "a.jsonl.gz"),
            tmp_path / str(workers),
            annotators=["url", f"{CUSTOM}.Faulty", "title"],
            workers=workers,
            chunk_pages=10,
            page_seconds=10,  # the page that hangs takes longer, and no other
        )
    annotated_rows = rows(tmp_path / "1/a.jsonl.gz")
    kept = [page for number, page in enumerate(pages) if number not in (25, 26)]
    assert [row["url"] for row in annotated_rows] == [page["url"] for page in kept]
    errors = {
        row["url"].rpartition("#")[2]: row["annotation_errors"]
        for row in annotated_rows
        if row["annotation_errors"]
    }
    assert errors == {
        "refuse": {"faulty": "refused"},
        "raise": {"faulty": "error_KeyError"},
        "hang": {"faulty": "time_limit"},
        "crash": {"faulty": "worker_died"},
        "swell": {"faulty": "memory"},
        "object": {"faulty": "error_TypeError"},
        "nothing": {"faulty": "error_AttributeError"},
        "surrogate": {"faulty": "error_UnicodeEncodeError"},
    }
    assert all(row["metadata_url"] and row["metadata_title"] for row in annotated_rows)
    assert sum(not row["metadata_faulty"] for row in annotated_rows) == 9
    journal = read_journal(ShardFiles(tmp_path / "1", "a").journal)
    assert journal is not None
    counts = journal.sum_counts()
    assert (counts.pages, counts.rows) == (40, 38)
    assert counts.dropped == {"no_text": 1, "no_html": 1}
    assert counts.errors == {
        "faulty": {
            "refused": 1,
            "error_KeyError": 1,
            "time_limit": 1,
            "worker_died": 2,
            "memory": 1,
            "error_TypeError": 1,
            "error_AttributeError": 1,
            "error_UnicodeEncodeError": 1,
        }
    }
    assert counts.present == {"url": 38, "title": 38, "faulty": 29}
    assert [entry.dropped for entry in journal.entries] == [
        [], [],
        [(5, "no_text", pages[25]["url"]), (6, "no_html", "https://www.example.org/none")], [],
    ]  # fmt: skip
    assert read_shards(tmp_path / "1") == read_shards(tmp_path / "2")


def test_a_page_with_another_text_is_not_annotated_from_its_html(tmp_path: Path) -> None:
    """Offsets into the text of the page would be wrong in another text."""
    html = f"<title>T</title><p>{WORDS}"
    lines = [{"url": "a", "html": html, "text": text} for text in (WORDS.strip(), "other")]
    write_pages(tmp_path / "a.jsonl.gz", lines)
    annotate(str(tmp_path / "a.jsonl.gz"), tmp_path / "out")
    same, other = rows(tmp_path / "out/a.jsonl.gz")
    assert same["annotation_errors"] == {}
    assert other["annotation_errors"] == {"html": "other_text", "title": "other_text"}
    assert (other["text"], other["html"], other["metadata_html"]) == ("other", html, [])
    assert json.dumps(same["metadata_title"]).count("T") == 1


def test_pages_are_not_parsed_for_annotators_that_do_not_need_them(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bsmeta.annotate import annotator

    names = ["html", "url", "length"]
    annotate(str(pages), tmp_path / "out", annotators=names)
    monkeypatch.setattr(annotator, "parse_page", None)
    annotate(str(pages), tmp_path / "out", annotators=names, replace=["length", "url"])
    assert read_shards(tmp_path / "out").keys() == {"a.jsonl.gz", "b.jsonl.gz"}
    assert all(
        annotated_rows["annotation_errors"] == {}
        for annotated_rows in rows(tmp_path / "out/a.jsonl.gz")
    )
