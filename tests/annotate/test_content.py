"""The main content of pages, as extractors find it, as spans of their text."""

from __future__ import annotations

import gzip
import importlib
from pathlib import Path

import pytest

from bsmeta.annotate import content
from bsmeta.annotate.registry import make_annotators
from bsmeta.annotate.row import AnnotationError, InputRecord, Row
from bsmeta.config.annotate import AnnotateConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.metadata.mapping import make_decoder
from tests.annotate.helpers import annotate, annotated, page, rows, write_pages
from tests.metadata.helpers import config

MENU = "<ul class=menu>" + "".join(f"<li><a href=/{n}>Part {n} of this site</a>" for n in range(9))
LINES = [
    f"Sentence {n} of an article about bridges, rivers and those who build." for n in range(30)
]
ARTICLE = "".join(f"<p>{line}</p>" for line in LINES)
PAGE = page(f"<nav>{MENU}</ul></nav><main><article><h1>Bridges</h1>{ARTICLE}</article></main>")


@pytest.mark.parametrize("extractor", ["resiliparse", "trafilatura"])
def test_the_article_is_found(extractor: str) -> None:
    columns = annotated(PAGE, "content", content_extractors=[extractor])
    text = Row(PAGE, "published").text
    assert text.startswith("Part 0 of this site")
    spans = columns["content_spans"][extractor]
    assert "\n".join(text[start:end] for start, end in spans) == "\n".join(["Bridges", *LINES])


def test_a_page_of_bytes() -> None:
    record = InputRecord(url="", html=str(PAGE.html).encode("utf-16"))
    made = annotated(record, "content", content_extractors=["resiliparse"])
    assert made == annotated(PAGE, "content", content_extractors=["resiliparse"])


def test_one_extractor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(html: str) -> str:
        raise RecursionError

    monkeypatch.setitem(content.EXTRACTORS, "trafilatura", lambda: fail)
    with pytest.raises(AnnotationError) as error:
        annotated(PAGE, "content")
    assert error.value.reason == "trafilatura_RecursionError"
    spans = error.value.columns["content_spans"]
    assert spans["trafilatura"] is None
    assert spans["resiliparse"]


def test_rows_can_be_trained_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(content.EXTRACTORS, "trafilatura", lambda: lambda html: LINES[3])
    record = {"url": PAGE.url, "html": PAGE.html}
    pages = write_pages(tmp_path / "pages.jsonl.gz", [record, {"url": "", "html": "<p>x"}])
    assert annotate(str(pages), tmp_path / "out", annotators=["html", "content"]) == 0
    shard = tmp_path / "out" / "pages.jsonl.gz"
    (row,) = rows(shard)
    assert sorted(row["content_spans"]) == ["resiliparse", "trafilatura"]
    assert row["annotation_errors"] == {}
    line = gzip.decompress(shard.read_bytes()).splitlines()[0]
    document = make_decoder(config(["html"]), {}, content="trafilatura").decode(line)
    assert document.text == LINES[3]
    assert [tag.value for tag in document.records("html")] == ["body", "main", "article", "p"]


def test_a_failure_is_counted_and_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(html: str) -> str:
        raise ValueError("no")

    monkeypatch.setitem(content.EXTRACTORS, "trafilatura", lambda: fail)
    pages = write_pages(tmp_path / "a.jsonl.gz", [{"url": "", "html": PAGE.html}])
    assert annotate(str(pages), tmp_path / "out", annotators=["content"]) == 0
    (row,) = rows(tmp_path / "out" / "a.jsonl.gz")
    assert row["annotation_errors"] == {"content": "trafilatura_ValueError"}
    assert row["content_spans"]["trafilatura"] is None
    assert row["content_spans"]["resiliparse"]


def test_an_extractor_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"trafilatura cannot be imported .*resiliparse\]"):
        make_annotators(AnnotateConfig(annotators=["content"]))


def test_another_version_of_an_extractor_finds_other_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint() -> str:
        settings = AnnotateConfig(annotators=["content"], content_extractors=["resiliparse"])
        return make_annotators(settings)[0].fingerprint()

    before = fingerprint()
    assert fingerprint() == before
    monkeypatch.setattr(content, "version", lambda name: "99")
    assert fingerprint() != before


def test_an_unknown_extractor() -> None:
    with pytest.raises(ConfigurationError, match="content_extractors: found readability"):
        make_annotators(AnnotateConfig(annotators=["content"], content_extractors=["readability"]))
