"""Annotators of whole pages: the records that each makes, letter by letter."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from bsmeta.annotate.annotator import AnnotationError
from bsmeta.annotate.inputs.sources import InputRecord
from tests.annotate.helpers import WORDS, annotated, page, values


def page_of_url(url: str) -> InputRecord:
    return InputRecord(url=url, text="a text")


def test_the_url_of_a_page_is_recorded() -> None:
    assert annotated(page_of_url("https://example.org/%C3%A9?q=1"), "url") == {
        "metadata_url": [
            {"key": "url", "type": "global", "value": "https://example.org/%C3%A9?q=1"}
        ]
    }
    with pytest.raises(AnnotationError, match="no_url"):
        annotated(page_of_url(""), "url")


@pytest.mark.parametrize(
    ("head", "title"),
    [
        ("<title>Sets &amp; maps</title>", ["Sets & maps"]),
        ("<title>\n  over\n several\tlines </title>", ["over several lines"]),
        ("<title></title>", []),
        ("", []),
    ],
)
def test_the_title_of_a_page_is_recorded(head: str, title: list[str]) -> None:
    assert values(annotated(page(f"<p>{WORDS}", head), "title")) == title


def test_the_title_of_an_image_is_not_used_as_the_page_title() -> None:
    image = "<svg><title>Logo</title></svg>"
    assert values(annotated(page(image + WORDS, "<title>Real</title>"), "title")) == ["Real"]
    assert values(annotated(page(image + WORDS), "title")) == []


def test_a_title_is_read_from_a_shard_without_raw_pages() -> None:
    record = InputRecord(text="a", columns={"html_title": ["<title lang=en>A &lt; B\n</title>"]})
    assert values(annotated(record, "title")) == ["A < B"]
    with pytest.raises(AnnotationError, match="no_html"):
        annotated(InputRecord(text="a"), "title")


@pytest.mark.parametrize(
    ("url", "date"),
    [
        ("https://a.org/2018/12/10/story", "2018-12-10 00:00:00"),
        ("https://a.org/news/2018/12/story", "2018-12-01 00:00:00"),
        ("https://a.org/news-2018-12-10.html", "2018-12-10 00:00:00"),
        # Numbers that are not dates, of which a fuzzy parser makes some.
        ("https://docs.python.org/3.11/library/sys.html", None),
        ("https://www.boost.org/doc/libs/1_81_0/libs/a.html", None),
        ("https://a.org/2018/story", None),
        ("https://a.org/item/20010", None),
        ("https://a.org/1066/12/10/hastings", None),
    ],
)
def test_a_timestamp_is_read_from_the_address(url: str, date: str | None) -> None:
    records = annotated(page_of_url(url), "timestamp")["metadata_timestamp"]
    expected = {"key": "timestamp", "type": "global", "value": date, "source": "url"}
    assert records == ([expected] if date else [])


@pytest.mark.parametrize(
    ("declaration", "date"),
    [
        ('<meta property="article:published_time" content="2018-12-10T13:45:00+02:00">',
         "2018-12-10 13:45:00"),
        ('<meta name="date" content="December 10, 2018">', "2018-12-10 00:00:00"),
        ('<meta name="date" content="2018">', None),
        ('<meta name="date" content="soon">', None),
        ('<script type="application/ld+json">[{"a": {"datePublished": "2018-12-10"}}]</script>',
         "2018-12-10 00:00:00"),
        ('<time datetime="2018-12-10">last Monday</time>', "2018-12-10 00:00:00"),
        ("<p>On 2018-12-10 it rained.", None),
    ],
)  # fmt: skip
def test_a_timestamp_is_read_from_the_declarations_of_a_page(
    declaration: str, date: str | None
) -> None:
    records = annotated(page(declaration + WORDS), "timestamp")["metadata_timestamp"]
    expected = {"key": "timestamp", "type": "global", "value": date, "source": "page"}
    assert records == ([expected] if date else [])


def test_the_name_of_a_time_zone_raises_no_warning() -> None:
    record = page('<meta name="date" content="Wed Nov 20 10:00:00 QST 2019">' + WORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert values(annotated(record, "timestamp")) == ["2019-11-20 10:00:00"]


def test_timestamp_sources_are_tried_in_order() -> None:
    record = page(f'<time datetime="2017-05-04">{WORDS}', url="https://a.org/2018/12/10/")
    record.timestamp = "2019-04-05T00:00:00Z"

    def first(*sources: str) -> list[str]:
        return values(annotated(record, "timestamp", timestamp_sources=list(sources)))

    assert first("url", "page", "crawl") == ["2018-12-10 00:00:00"]
    assert first("page", "url") == ["2017-05-04 00:00:00"]
    assert first("crawl") == ["2019-04-05 00:00:00"]
    assert first() == []


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_a_website_description_is_read_from_a_table(suffix: str, tmp_path: Path) -> None:
    lines = {
        ".tsv": "example.org\tA site about the history of computing.\nb.org\tToo short.\n",
        ".jsonl": '{"domain": "example.org", "description": "A site about the history of '
        'computing."}\n{"domain": "b.org", "description": "Too short."}\n',
    }
    table = tmp_path / f"table{suffix}"
    table.write_text(lines[suffix])

    def described(url: str) -> list[dict[str, str]]:
        annotation = annotated(page_of_url(url), "website_description", descriptions=str(table))
        return annotation["metadata_website_desc"]

    record = {
        "key": "website_description",
        "type": "global",
        "value": "A site about the history of computing.",
        "source": "table",
    }
    assert described("https://www.example.org/a") == [record]
    assert described("https://en.example.org:8080/") == [record]
    assert described("https://b.org/") == described("https://c.org/") == []


def test_a_website_description_is_read_from_the_page() -> None:
    meta = '<meta name="description" content=" All about &quot;sets&quot;\n and  maps. ">'
    annotation = annotated(page(WORDS, meta), "website_description")
    assert annotation["metadata_website_desc"] == [
        {"key": "website_description", "type": "global", "value": 'All about "sets" and maps.',
         "source": "page"}
    ]  # fmt: skip
    refers = '<meta name="description" content="Mercury may commonly refer to a planet.">'
    assert values(annotated(page(WORDS, refers), "website_description")) == []
    settings = {"description_sources": ["table"]}
    assert values(annotated(page(WORDS, meta), "website_description", **settings)) == []


@pytest.mark.parametrize("url", ["", "https://[bad/"])
@pytest.mark.parametrize("has_table", [False, True])
def test_a_page_without_an_address_uses_its_declared_description(
    has_table: bool, url: str, tmp_path: Path
) -> None:
    (tmp_path / "table.tsv").write_text("example.org\tA site about the history of computing.\n")
    record = page(WORDS, '<meta name="description" content="All about sets and maps.">', url)
    table = str(tmp_path / "table.tsv") if has_table else None
    annotation = annotated(record, "website_description", descriptions=table)
    assert values(annotation) == ["All about sets and maps."]


@pytest.mark.parametrize(
    ("url", "value"),
    [
        # Those that the published annotator is tested with.
        ("https://seattlejob.us/finance-internships-miami.html",
         "seattlejob.us > finance internships miami html"),
        ("https://hawkeyesports.com/news/2005/03/22/on-time-and-on-budget/",
         "hawkeyesports.com > news > on time and on budget"),
        ("http://www.plumberscrib.com/steam-generators.html?cat=142&p=2",
         "www.plumberscrib.com > steam generators html"),
        # Those that it gets wrong.
        ("https://example.de/forum/21-new-project", "example.de > forum > new project"),
        ("https://example.de/1-of-2-parts-3", "example.de > of 2 parts"),
        ("https://example.de", "example.de"),
        ("https://example.de/", "example.de"),
        ("https://example.de/caf%C3%A9", "example.de > café"),
    ],
)  # fmt: skip
def test_the_datasource_consists_of_the_words_of_the_address(url: str, value: str) -> None:
    assert annotated(page_of_url(url), "datasource") == {
        "metadata_generation_datasource": [{"key": "datasource", "type": "global", "value": value}]
    }


def test_an_address_that_cannot_be_split_is_counted() -> None:
    with pytest.raises(AnnotationError, match="bad_url"):
        annotated(page_of_url("https://[bad/"), "datasource")


def test_the_language_of_a_text_is_recorded() -> None:
    german = "Das ist ein kleiner deutscher Text über Hunde und Katzen.\x00 Er ist kurz."
    assert annotated(InputRecord(text=german), "language") == {
        "metadata_language": [{"key": "language", "type": "global", "value": "de"}]
    }
    assert values(annotated(InputRecord(text="12 34"), "language")) == []
