"""Pages made to break a parser: read, or refused with a reason, in bounded time and memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bsmeta.annotate.html.page import MAX_ATTRIBUTES, MAX_DEPTH, PageError, parse_page
from bsmeta.annotate.shard import ShardFiles, read_journal
from tests.annotate.helpers import WORDS, annotate, rows, write_pages
from tests.waiting import STUCK_S


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """Limits the processor time: pages that must be refused would take longer."""
    before = time.process_time()
    yield
    assert time.process_time() - before < 100


@pytest.mark.parametrize("tag", ["div", "span", "b", "blockquote", "font color=red", "x-y"])
def test_deep_nesting_is_refused(tag: str) -> None:
    with pytest.raises(PageError, match="too_deep: more than 5000 elements within each other"):
        parse_page(f"<{tag}>" * 100_000 + "x")


def test_nesting_that_unrelated_end_tags_hide_is_refused() -> None:
    with pytest.raises(PageError, match="too_deep"):
        parse_page("<div></b>" * 50_000)


@pytest.mark.parametrize("depth", [1_000, MAX_DEPTH - 1])
def test_nesting_within_the_limit_is_read(depth: int) -> None:
    page = parse_page("<blockquote>" * depth + "x" + "<i></i>" * 30_000, profile="all")
    assert page.text == "x"
    assert len(page.tags) == depth + 30_001


@pytest.mark.parametrize("unclosed", ["<p>x", "<li>x", "<tr><td>x", "<dt>x<dd>y", "<br>x", "<img>"])
def test_many_tags_without_end_tags_are_not_deep(unclosed: str) -> None:
    assert len(parse_page(f"<table>{unclosed * 30_000}", profile="all").tags) >= 1


def test_a_million_attributes_are_refused() -> None:
    attributes = " ".join(f"a{number}" for number in range(1_000_000))
    with pytest.raises(PageError, match="too_many_attributes: 1000000 in <div"):
        parse_page(f"<p>x</p><div {attributes}>")


def test_attributes_within_the_limit_are_read() -> None:
    attributes = " ".join(f"attribute{number}=x" for number in range(MAX_ATTRIBUTES - 1))
    page = parse_page(f"<b {attributes}>x</b>", profile="all")
    assert len(page.tags[1].html_attrs.attrs) == MAX_ATTRIBUTES - 1


def test_an_attribute_of_a_megabyte_is_read() -> None:
    page = parse_page(f"<img src='data:image/png;base64,{'A b' * 400_000}'>x", profile="all")
    assert len(page.tags[1].html_attrs.values[0]) > 1_000_000


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("\0one\0two", "onetwo"),
        ("one\ud800two", "onetwo"),
        ("<p title='\udfff'>one", "one"),
        ("< " * 100_000 + "one", "< " * 100_000 + "one"),
        ("&" * 100_000, "&" * 100_000),
        ("</b>" * 100_000 + "one", "one"),
        ("one<!--" + "-" * 1_000_000, "one"),
        ("one<![CDATA[" + "x" * 1_000_000, "one"),
        ("one<script>" + "<script><!--" * 5_000, "one"),
        ("<title>" * 10_000, ""),
        ("<svg>" * 4_000 + "<title>x", "x"),
        ("<a href=x>" * 1_000 + "one", "one"),
        ("<table>" * 2_000 + "one", "one"),
        ("<select>" * 10_000 + "one", "one"),
    ],
)
def test_unusual_pages_are_read(html: str, expected: str) -> None:
    page = parse_page(html, profile="all")
    assert page.text == expected
    page.text.encode()


@pytest.mark.slow
def test_50_mb_of_text_are_read() -> None:
    page = parse_page(f"<p>{WORDS}</p>" * 2_600 + "<p>" + "word " * 10_000_000)
    assert len(page.text) == 2_600 * len(WORDS) + 50_000_000 - 1


def test_nested_footers_are_serialized_once() -> None:
    page = parse_page("<footer>" * 4_000 + "x")
    assert [len(footer) for footer in page.footer] == [4_000 * 17 + 1]


def test_hostile_pages_are_counted_and_do_not_affect_other_pages(tmp_path: Path) -> None:
    good = {"url": "https://www.example.org/good", "html": f"<p>{WORDS}"}
    attributes = " ".join(f"a{number}" for number in range(100_000))
    formatting = "".join(f"<b id={number}>" for number in range(5_000))
    hostile = {
        "deep": "<div>" * 100_000 + WORDS,
        "attributes": f"<p {attributes}>{WORDS}",
        "large": f"<p>{WORDS * 100_000}",
        "reopened": f"<p>{formatting}</p>" + "<p>x" * 5_000,
        "surrogate": f"<p>{WORDS}\ud800",
        "zeros": f"<p>\0{WORDS}\0",
        "declaration": f"<?xml version='1.0'?><p>{WORDS}",
        "script": f"<script>'</p>' + '<p>'</script><p>{WORDS}",
        "drawing": f"<svg><title></title></svg><p>{WORDS}",
    }
    records = [good]
    for name, html in hostile.items():
        records += [{"url": f"https://www.example.org/{name}", "html": html}, good]
    records += [{"url": "https://www.example.org/" + "x" * 100_000, "html": f"<p>{WORDS}"}]
    write_pages(tmp_path / "pages.jsonl.gz", records)
    settings = {"page_mb": 2, "page_seconds": STUCK_S, "worker_gb": 0.5}
    input = str(tmp_path / "pages.jsonl.gz")
    assert annotate(input, tmp_path / "out", annotators=["html", "url", "title"], **settings) == 0
    annotated_rows = rows(tmp_path / "out" / "pages.jsonl.gz")
    texts = {row["url"].rpartition("/")[2][:20]: row["text"] for row in annotated_rows}
    assert texts == dict.fromkeys(
        ["good", "zeros", "declaration", "script", "drawing", "x" * 20], WORDS.strip()
    )
    assert sum(row["url"] == good["url"] for row in annotated_rows) == 10
    journal = read_journal(ShardFiles(tmp_path / "out", "pages").journal)
    assert journal is not None
    dropped = journal.sum_counts().dropped
    assert dropped == {
        "too_deep": 1,
        "too_many_attributes": 1,
        "too_large": 1,
        "not_parsed": 1,
        "not_json": 1,
    }
