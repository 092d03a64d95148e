"""The report: shares, failures, lengths, and pages beside their text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from selectolax.lexbor import LexborHTMLParser

from bsmeta.annotate.report import divide_text, find_foreign_columns
from bsmeta.data.io import lines
from tests.annotate.helpers import WORDS, annotate, some_pages, write_pages


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Shards and report of 20 pages, of which four fail."""
    pages = some_pages(20)
    pages[0]["html"] = (
        f"<title>A &amp; B</title><script>alert('x')</script><img src='https://a.org/i.png'>"
        f"<p>1 &lt; 2 {WORDS}<b>bold</b></p>"
    )
    pages[4] = {"url": "https://www.example.org/none"}
    pages[5]["html"] = "<p>"
    pages[6]["html"] = "<p>"
    pages[7]["url"] = ""
    write_pages(tmp_path / "a.jsonl.gz", pages)
    annotate(str(tmp_path / "a.jsonl.gz"), tmp_path / "out", report=True, report_pages=3)
    return tmp_path / "out"


def test_the_report_counts_pages_records_and_failures(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads((out / "report.json").read_text())
    total = report["total"]
    assert (total["pages"], total["dropped"]) == (20, {"no_html": 1, "no_text": 2})
    assert total["present"] == {"html": 17, "url": 16, "title": 17}
    assert total["errors"] == {"url": {"no_url": 1}}
    assert sum(total["lengths"].values()) == 17
    assert list(report["shards"]) == ["a"]


def test_the_summary_is_printed(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    annotate(str(tmp_path / "a.jsonl.gz"), out, report=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["url", "16", "94.1%", "16", "no_url", "1"] in lines
    assert ["no_text", "2", "10.0%"] in lines
    assert ["no_html", "1", "5.0%"] in lines


def test_the_report_shows_pages_beside_their_text(out: Path) -> None:
    page = LexborHTMLParser((out / "report.html").read_text())
    assert [node.text() for node in page.css("h3")] == [
        f"https://www.example.org/pages/{number}.html" for number in range(3)
    ]
    frame = page.css("iframe")[0].attributes
    assert "sandbox" in frame  # without a value: no scripts
    raw = frame["srcdoc"] or ""
    assert raw.startswith(
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
    )
    assert "<script>alert('x')</script>" in raw
    assert len(page.css("script")) == 1  # that of the report
    text = page.css("pre.page-text")[0].text()
    assert text.startswith("<body><img></img><p>1 < 2 words of a paragraph")
    assert text.endswith("cut <b>bold</b></p></body>")
    tables = [[cell.text().strip() for cell in row.css("th, td")] for row in page.css("tr")]
    assert ["url", "16", "94.1%", "16", "no_url 1"] in tables
    assert ["no_text", "2", "10.0%"] in tables


def test_a_text_is_split_into_its_marked_parts() -> None:
    row: dict[str, Any] = {
        "text": "A set has no order.",
        "metadata_html": [
            {
                "value": "p",
                "char_start_idx": 0,
                "char_end_idx": 19,
                "relative_start_pos": 0,
                "relative_end_pos": 0,
            }
        ],
        "metadata_entity": [{"value": "Sets", "char_start_idx": 2, "char_end_idx": 5}],
        "content_spans": {"fast": [[0, 9]], "all": [[0, 19]]},
    }
    assert list(divide_text(row)) == [
        {"text": "A ", "labels": ["<p>"], "contents": ["fast", "all"], "entity": ""},
        {"text": "set", "labels": [], "contents": ["fast", "all"], "entity": "Sets"},
        {"text": " has", "labels": [], "contents": ["fast", "all"], "entity": ""},
        {"text": " no order.", "labels": [], "contents": ["all"], "entity": ""},
        {"text": "", "labels": ["</p>"], "contents": [], "entity": ""},
    ]


def test_a_page_whose_row_cannot_be_read_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Annotators make a row longer than its page, so it may exceed the longest line read."""
    pages = some_pages(3)
    pages[1]["html"] = f"<p>{WORDS * 2300}"
    path = write_pages(tmp_path / "a.jsonl.gz", pages)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 300_000)
    assert annotate(str(path), tmp_path / "out", keep_html=True, report=True) == 0
    page = LexborHTMLParser((tmp_path / "out" / "report.html").read_text())
    assert [node.text() for node in page.css("h3")] == [pages[0]["url"], pages[2]["url"]]
    tables = [[cell.text().strip() for cell in row.css("th, td")] for row in page.css("tr")]
    assert ["pages whose row cannot be decoded", "1"] in tables


def test_malformed_columns_are_listed() -> None:
    text = "A set has no order."
    span = {"value": "p", "char_start_idx": 0, "char_end_idx": 19}
    columns = {
        "metadata_html": [span],
        "metadata_entity": [{**span, "char_end_idx": 20}],
        "metadata_tags": ["a"],
        "metadata_url": [{"value": "u", "type": "global"}],
        "content_spans": {"fast": [[3, 9], [0, 2]]},
        "tags": ["a"],
    }
    assert find_foreign_columns(columns, text) == [
        "metadata_entity", "metadata_tags", "content_spans",
    ]  # fmt: skip
