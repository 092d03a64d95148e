"""Entities from the hyperlinks of a crawl, and the disambiguation files made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bsmeta.annotate import links
from bsmeta.annotate.html.page import parse_page
from bsmeta.annotate.inputs.sources import InputRecord, Item, decode_record
from bsmeta.annotate.links import (
    LinkIndex,
    collect_pages,
    is_held_out,
    locate_index,
    make_linked_page,
    normalize_address,
    write_linked_sets,
)
from bsmeta.annotate.pool import DIED, PAGE_STEP, Chunk, Status
from bsmeta.core.errors import DataError
from tests.annotate.helpers import WORDS, annotate, rows, write_pages

SITE = "https://www.example.org"


def crawl() -> list[dict[str, str]]:
    """Returns the pages of a small site, and a page of another site."""

    def page(path: str, title: str, body: str) -> dict[str, str]:
        return {"url": f"{SITE}{path}", "html": f"<title>{title} — Example</title>{body}"}

    return [
        page("/", "Home", f"<p>{WORDS} See <a href='docs/sets.html'>Set  types</a>.</p>"),
        page("/docs/sets.html", "Sets", f"<p>A set has no order. {WORDS}</p>"),
        page(
            "/docs/lists.html",
            "Lists",
            f"<p>{WORDS}</p><p>A list has an order. Unlike <a href='sets.html#top'>a set</a>, or "
            "<a href='https://other.net/bags?id=1'>bags</a>. <a href='#here'>Here</a> and "
            "<a href='lists.html'>itself</a> and <a href='missing.html'>missing</a>, "
            "<a href='sets.html'>¶</a> <a href='mailto:me@example.org'>mail</a> "
            f"<a href='../index.html'>home</a> <a href='http://[bad'>bad</a>. {WORDS}",
        ),
        {"url": "http://other.net/bags?id=1", "html": f"<title>Bags</title><p>{WORDS}"},
    ]


@pytest.fixture
def annotated_crawl(tmp_path: Path) -> Path:
    """Annotates the crawl in two files, with links from one file to the other."""
    (tmp_path / "in").mkdir()
    write_pages(tmp_path / "in/a.jsonl.gz", crawl()[:1])
    write_pages(tmp_path / "in/b.jsonl.gz", crawl()[1:])
    names = ["url", "entity", "entity_paragraph"]
    settings: dict[str, Any] = {"annotators": names, "disambiguation_dev_share": 0}
    annotate(
        str(tmp_path / "in"), tmp_path / "out", disambiguation=str(tmp_path / "sets"), **settings
    )
    return tmp_path


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://Example.org/a/index.html#top", "example.org/a"),
        ("http://example.org/a/", "example.org/a"),
        ("https://example.org/a?id=1", "example.org/a?id=1"),
        ("http://localhost:8000/a", "localhost:8000/a"),
        ("https://example.org:443/a", "example.org/a"),
        ("https://example.org:x/a", None),
        ("mailto:me@example.org", None),
        ("http://[bad", None),
    ],
)
def test_equivalent_addresses_have_the_same_key(url: str, key: str | None) -> None:
    assert normalize_address(url) == key


@pytest.mark.parametrize(
    ("url", "site", "section"),
    [
        ("https://example.org/?u=a/b", "example.org", ""),
        ("https://example.org/wiki?x=1/2", "example.org", ""),
        ("https://example.org/wiki/a?x=1", "example.org", "wiki"),
    ],
)
def test_the_query_of_an_address_is_not_part_of_the_site(url: str, site: str, section: str) -> None:
    page = make_linked_page(parse_page("<title>A page</title><p>Its text.</p>"), url)
    assert page is not None
    assert (page.site, page.section) == (site, section)


def test_the_index_has_titles_without_the_name_of_the_site(annotated_crawl: Path) -> None:
    pages = list(LinkIndex(locate_index(annotated_crawl / "out")).iterate_pages())
    assert [(page.key, page.title, page.site, page.section) for page in pages] == [
        ("other.net/bags?id=1", "Bags", "other.net", ""),
        ("www.example.org", "Home", "www.example.org", ""),
        ("www.example.org/docs/lists.html", "Lists", "www.example.org", "docs"),
        ("www.example.org/docs/sets.html", "Sets", "www.example.org", "docs"),
    ]
    assert pages[3].description.startswith("A set has no order.")


def test_an_anchor_is_a_mention_of_its_target_page(annotated_crawl: Path) -> None:
    row = rows(annotated_crawl / "out/b.jsonl.gz")[1]
    entities = row["metadata_entity"]
    anchors = [
        row["text"][entity["char_start_idx"] : entity["char_end_idx"]] for entity in entities
    ]
    assert anchors == ["a set", "bags", "home"]
    start = row["text"].index("a set,")
    assert entities[0] == {
        "key": "entity", "type": "local", "value": "Sets", "char_start_idx": start,
        "char_end_idx": start + 5, "url": "www.example.org/docs/sets.html",
    }  # fmt: skip
    assert [record["value"] for record in entities] == ["Sets", "Bags", "Home"]


def test_links_are_relative_to_the_declared_base(tmp_path: Path) -> None:
    pages = crawl()[:2]
    pages[0]["html"] = f"<base href='/docs/'><p>{WORDS}<a href='sets.html'>Sets</a>"
    write_pages(tmp_path / "a.jsonl.gz", pages)
    annotate(str(tmp_path / "a.jsonl.gz"), tmp_path / "out", annotators=["entity"])
    [entity] = rows(tmp_path / "out/a.jsonl.gz")[0]["metadata_entity"]
    assert entity["url"] == "www.example.org/docs/sets.html"


def test_links_to_the_same_page_are_not_mentions(tmp_path: Path) -> None:
    anchors = "<a href=''>empty</a> <a href=' #top'>top</a> <a href=' ?q'>query</a>"
    pages = [
        {"url": f"{SITE}/a/b.html", "html": f"<title>B</title><p>{anchors} {WORDS}"},
        {"url": f"{SITE}/a/", "html": f"<title>A</title><p>{WORDS}"},
        {"url": f"{SITE}/a/b.html?q", "html": f"<title>Q</title><p>{WORDS}"},
    ]
    write_pages(tmp_path / "a.jsonl.gz", pages)
    annotate(str(tmp_path / "a.jsonl.gz"), tmp_path / "out", annotators=["entity"])
    entities = rows(tmp_path / "out/a.jsonl.gz")[0]["metadata_entity"]
    assert [record["url"] for record in entities] == ["www.example.org/a/b.html?q"]


def test_the_index_follows_the_current_page_limit(tmp_path: Path) -> None:
    pages = crawl()[:2]
    pages[1]["html"] += WORDS * 100
    write_pages(tmp_path / "a.jsonl.gz", pages)
    for page_mb, expected in ((0.005, []), (8, ["www.example.org/docs/sets.html"])):
        settings = {"annotators": ["entity"], "page_mb": page_mb}
        annotate(str(tmp_path / "a.jsonl.gz"), tmp_path / "out", **settings)
        entities = rows(tmp_path / "out/a.jsonl.gz")[0]["metadata_entity"]
        assert [record["url"] for record in entities] == expected


def test_a_page_that_crashes_its_process_is_left_out_of_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ends(item: Item, page_bytes: int) -> InputRecord:
        assert b"deadly" not in item
        return decode_record(item, page_bytes)

    monkeypatch.setattr(links, "decode_record", ends)
    lines = [f'{{"url": "{SITE}/{name}", "html": "<title>T"}}' for name in ("deadly", "a")]
    chunk = Chunk(0, [line.encode() for line in lines])
    entities = collect_pages(8_000_000, chunk, {(0, PAGE_STEP): DIED}, Status())
    assert [json.loads(line)[0] for line in entities.splitlines()] == ["www.example.org/a"]


@pytest.mark.parametrize("name", ["a#1", "a?b", "a%20b"])
def test_the_name_of_the_output_never_enters_an_address(name: str, tmp_path: Path) -> None:
    write_pages(tmp_path / "a.jsonl.gz", crawl()[:2])
    for _ in range(2):
        annotate(str(tmp_path / "a.jsonl.gz"), tmp_path / name, annotators=["entity"])
    assert len(rows(tmp_path / name / "a.jsonl.gz")[0]["metadata_entity"]) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl.gz", name}


def test_entities_are_listed_by_paragraph(annotated_crawl: Path) -> None:
    row = rows(annotated_crawl / "out/b.jsonl.gz")[1]
    entities = row["metadata_entity_paragraph"]
    places = [(record["relative_start_pos"], record["relative_end_pos"]) for record in entities]
    assert [record["value"] for record in entities] == ["Sets", "Bags", "Home"]
    assert places == [(0, 0), (1, 1), (2, 2)]
    [(start, end)] = {(record["char_start_idx"], record["char_end_idx"]) for record in entities}
    assert row["text"][start:end].lstrip().startswith("A list has an order.")


def test_a_new_page_changes_the_targets_of_links(annotated_crawl: Path) -> None:
    write_pages(
        annotated_crawl / "in/c.jsonl.gz",
        [{"url": f"{SITE}/docs/missing.html", "html": f"<title>Found</title>{WORDS}"}],
    )
    annotate(str(annotated_crawl / "in"), annotated_crawl / "out", annotators=["url", "entity"])
    row = rows(annotated_crawl / "out/b.jsonl.gz")[1]
    values = [record["value"] for record in row["metadata_entity"]]
    assert values == ["Sets", "Bags", "Found", "Home"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_links_become_disambiguation_files(annotated_crawl: Path) -> None:
    folder = annotated_crawl / "sets"
    profiles = {line["entity_id"]: line for line in lines(folder / "profiles.jsonl")}
    assert len(profiles) == 4
    sets = profiles["www.example.org/docs/sets.html"]
    assert sets["mentions"] == [["a set", 1], ["set types", 1], ["sets", 0.5]]
    assert sets["title"] == "Sets"
    assert sets["types"] == {"site": ["www.example.org"], "section": ["docs"]}
    assert profiles["www.example.org"]["relations"] == [
        {"relation": "links_to", "object": "www.example.org/docs/sets.html"}
    ]
    assert lines(folder / "dev.jsonl") == []
    train = lines(folder / "train.jsonl")
    assert [record["sent_idx_unq"] for record in train] == list(range(len(train)))
    assert train[0]["aliases"] == ["set types"]
    assert train[1]["sentence"] == "Unlike a set, or bags."
    assert train[1] | {"sent_idx_unq": 1} == {
        "sent_idx_unq": 1,
        "sentence": "Unlike a set, or bags.",
        "aliases": ["a set", "bags"],
        "qids": ["www.example.org/docs/sets.html", "other.net/bags?id=1"],
        "char_spans": [[7, 12], [17, 21]],
        "gold": [True, True],
        "document": f"{SITE}/docs/lists.html",
    }


def test_a_damaged_shard_is_not_converted_in_part(annotated_crawl: Path) -> None:
    out, folder = annotated_crawl / "out", annotated_crawl / "sets"
    before = (folder / "train.jsonl").read_bytes()
    content = bytearray((out / "b.jsonl.gz").read_bytes())
    content[-20] ^= 1
    (out / "b.jsonl.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"b\.jsonl\.gz: damaged .*; delete it, and repeat"):
        write_linked_sets(sorted(out.glob("*.gz")), out, folder, 0, lambda *_: None)
    assert (folder / "train.jsonl").read_bytes() == before
    assert len(list(folder.iterdir())) == 3  # nothing is left over


def test_pages_are_held_out_with_all_their_sentences(annotated_crawl: Path) -> None:
    out, folder = annotated_crawl / "out", annotated_crawl / "half"
    write_linked_sets(sorted(out.glob("*.gz")), out, folder, 0.5, lambda *_: None)
    split = {name: lines(folder / f"{name}.jsonl") for name in ("train", "dev")}
    for name, entities in split.items():
        assert {is_held_out(record["document"], 0.5) for record in entities} <= {name == "dev"}
    assert len(split["train"]) + len(split["dev"]) == 3
    shares = [is_held_out(f"{SITE}/{number}", 0.1) for number in range(2000)]
    assert 150 < sum(shares) < 250
