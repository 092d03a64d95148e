"""The main content of pages, as extractors find it, as spans of their text."""

from __future__ import annotations

import gzip
import importlib
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.annotate import content
from bsmeta.annotate.annotator import AnnotationError, Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.content import Text
from bsmeta.annotate.plan import make_annotators
from bsmeta.core.errors import ConfigurationError
from bsmeta.metadata.decoding import make_decoder
from tests.annotate.helpers import ALL_DATA, annotate, annotated, page, rows, write_pages
from tests.conftest import REPOSITORY
from tests.metadata.helpers import config

EXPERIMENTS = REPOSITORY / "experiments"
Launch = Callable[..., subprocess.CompletedProcess[str]]

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


def test_an_extractor_that_fails_leaves_the_spans_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    assert [tag.value for tag in document.records("html")] == ["p", "article", "main", "body"]


def test_a_failure_is_counted_and_keeps_earlier_spans(
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


def test_a_missing_extractor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r"trafilatura cannot be imported .*resiliparse\]"):
        make_annotators(AnnotateConfig(annotators=["content"]))


def test_another_version_of_an_extractor_invalidates_the_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fingerprint() -> str:
        settings = AnnotateConfig(annotators=["content"], content_extractors=["resiliparse"])
        return make_annotators(settings)[0].fingerprint()

    before = fingerprint()
    assert fingerprint() == before
    monkeypatch.setattr(content, "version", lambda name: "99")
    assert fingerprint() != before


TEXT = """Home About Contact
The history of the bridge
The bridge (built 1874-1877) is 300 m long. It was painted red.
Length 300 m
Width 12 m
See also: other bridges
Home Imprint"""


def align(extract: str, text: str = TEXT) -> list[str]:
    return [text[start:end] for start, end in Text(text).align_extract(extract)]


ARTICLES = ALL_DATA / "article_extraction" / "pages.jsonl.gz"


@pytest.mark.parametrize("extractor", ["resiliparse", "trafilatura"])
def test_only_one_copy_of_a_repeated_article_is_kept(extractor: str) -> None:
    twice = f"<article>{ARTICLE}</article><nav>{MENU}</ul></nav><div hidden>{ARTICLE}</div>"
    columns = annotated(page(twice), "content", profile="all", content_extractors=[extractor])
    text = Row(page(twice), "all").text
    spans = columns["content_spans"][extractor]
    assert "\n".join(text[start:end] for start, end in spans) == "\n".join(LINES)


@pytest.mark.long
@pytest.mark.skipif(not ARTICLES.exists(), reason="data/article_extraction is not there")
def test_spans_are_as_good_as_the_extractor_alone(launch: Launch) -> None:
    """On news pages with articles marked by hand; some articles appear twice."""
    lines = launch(EXPERIMENTS / "content_f1.py", str(ARTICLES)).stdout.splitlines()
    assert lines[0].startswith("| 98 pages | precision | recall | F1 |")
    cells = [line.split("|") for line in lines if line.startswith("|")]
    f1 = {name.strip(): float(score) for _, name, _, _, score, *_ in cells[2:]}
    assert f1["resiliparse"] >= f1["resiliparse alone"] > 0.91
    assert f1["trafilatura"] >= f1["trafilatura alone"] > 0.96
    assert f1["intersection"] >= 0.96
    assert "extracts without spans: 0" in lines


@pytest.mark.parametrize(
    ("extract", "expected"),
    [
        ("", []),
        (TEXT, [TEXT]),
        ("  ".join(TEXT.split()), [TEXT]),
        (
            "The history of the bridge\n\nThe bridge ( built 1874 - 1877 ) is 300 m long.",
            ["The history of the bridge\nThe bridge (built 1874-1877) is 300 m long."],
        ),
        (
            "# The history of the bridge\n| Length | 300 m |\n| Width | 12 m |",
            ["The history of the bridge", "Length 300 m\nWidth 12 m"],
        ),
        (
            "The bridge (built 1874-1877) is 300 m long. See also: other bridges",
            ["The bridge (built 1874-1877) is 300 m long.", "See also: other bridges"],
        ),
        ("nothing of this is in it", []),
    ],
)
def test_an_extract_is_aligned_with_the_text(extract: str, expected: list[str]) -> None:
    assert align(extract) == expected


def test_a_repeated_menu_is_not_aligned_as_content() -> None:
    lines = [f"Paragraph {n} says {n * n} things about topic {n % 7}." for n in range(40)]
    menu = "Home\nAbout\n" * 10
    text = menu + "\n".join(lines) + "\n" + menu
    extract = "\n\n".join(lines[5:30])
    start = text.index(lines[5])
    assert Text(text).align_extract(extract) == [(start, text.index(lines[29]) + len(lines[29]))]


@pytest.mark.parametrize("words", ["a ", "a b ", "a b c d e "])
def test_repeated_words_are_aligned_completely(words: str) -> None:
    text = (words * 60_000).strip()
    assert Text(text).align_extract(text) == [(0, len(text))]
    half = text[: len(text) // 2].strip()
    assert Text(text).align_extract(half) == [(0, len(half))]


def test_the_first_of_two_copies_is_aligned() -> None:
    """The first copy is aligned completely; a part only in the second copy is aligned there."""
    article = "\n".join(LINES)
    assert align(article, f"Home\n{article}\nAbout\n{article}\nImprint") == [article]
    short = "\n".join(LINES[:20])
    twice = f"Home\n{short}\nAbout\n{article}"
    kept = "\n".join(align(article, twice))
    assert kept == article


def test_repeated_lines_of_the_extract_are_aligned() -> None:
    items = ["Add to the basket and compare it"] * 30
    text = "\n".join(["Home", "About", *items, "Imprint"])
    assert align("\n - ".join(items), text) == ["\n".join(items)]
    assert align("Yes", "No\n" * 40 + "Yes\n" * 40) == ["Yes"]


def test_lines_moved_by_an_extractor_are_aligned() -> None:
    caption = "The caption of a photograph of the bridge in 1877"
    text = "\n".join([caption, *LINES[:5]])
    assert align("\n".join([*LINES[:5], caption]), text) == [text]


def test_lines_also_in_a_menu_are_aligned_next_to_unique_lines() -> None:
    """Lines before all unique text are aligned next to it, not in the menu."""
    heads = [f"Part {number} of the manual" for number in range(5)]
    article = "\n".join([*heads, *LINES])
    text = "\n".join(["Home", *heads, "Search", article])
    assert align(article, text) == [article]


WORDS = [f"w{number}" for number in range(50)]


@pytest.mark.long
@settings(max_examples=300)
@given(st.lists(st.sampled_from(WORDS), max_size=200), st.randoms(use_true_random=False))
def test_spans_are_disjoint_and_have_only_words_of_the_extract(
    words: list[str], rng: random.Random
) -> None:
    text = "".join(word + rng.choice([" ", "\n", ". ", ", ", "-"]) for word in words).strip()
    parts = [word for word in words if rng.random() < 0.8]
    spans = Text(text).align_extract(" | ".join(parts))
    assert [position for span in spans for position in span] == sorted(
        {position for span in spans for position in span}
    )
    kept = Counter(word for start, end in spans for word in re.findall(r"\w+", text[start:end]))
    assert kept <= Counter(parts)
    if len(parts) >= 4 and " ".join(parts[:4]) in " ".join(words):
        assert spans


def test_most_of_an_extract_is_found() -> None:
    rng = random.Random(1)
    vocabulary = [f"word{number}" for number in range(300)]
    lines = [" ".join(rng.choices(vocabulary, k=rng.randrange(1, 30))) for _ in range(300)]
    kept = [line for line in lines if rng.random() < 0.6]
    text = "\n".join(lines)
    length = sum(end - start for start, end in Text(text).align_extract("\n- ".join(kept)))
    assert 0.98 < length / len("\n".join(kept)) <= 1
