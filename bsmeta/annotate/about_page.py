"""Annotators of global records: the topic, the origin and the date of a page.

A date is found in the address, in the page's declarations, or in any notation.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from operator import attrgetter
from typing import Any
from urllib.parse import unquote, urlsplit

import pycld2
from dateutil import parser as date_parser  # type: ignore[import-untyped]
from htmldate.extractors import extract_url_date
from htmldate.utils import Extractor

from bsmeta.annotate.annotator import (
    NO_HTML,
    AnnotationError,
    Annotator,
    Columns,
    Row,
    make_global_record,
)
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.descriptions import DescriptionTable, is_description
from bsmeta.annotate.page import Declared
from bsmeta.core.enclosed import remove_enclosed

FIRST_YEAR = 1983  # as published
LAST_YEAR = 2099

# The current date is no limit: the same page has the same records whenever it is annotated.
_IN_URL = Extractor(
    extensive=False,
    max=datetime(LAST_YEAR, 12, 31),
    min=datetime(FIRST_YEAR, 1, 1),
    original=True,
    format="%Y-%m-%d",
)
_YEAR_AND_MONTH = re.compile(r"/(\d{4})[/_-](0[1-9]|1[0-2])(?=[/_-]|$)")

_PUBLISHED = (
    "article:published_time",
    "datepublished",
    "date",
    "dc.date",
    "dc.date.issued",
    "dcterms.created",
    "dcterms.date",
    "dcterms.issued",
    "citation_publication_date",
    "pubdate",
    "publishdate",
    "publish-date",
    "parsely-pub-date",
    "sailthru.date",
    "og:published_time",
)
_MODIFIED = (
    "article:modified_time",
    "datemodified",
    "og:updated_time",
    "dcterms.modified",
    "last-modified",
    "lastmod",
    "revised",
)
_IN_JSON_LD = ("datePublished", "dateCreated", "dateModified")
_LONGEST_DATE = 40  # characters; longer is prose
_DEEPEST = 8  # levels of JSON-LD

_PATH_SEPARATORS = re.compile(r"[-_+.&=]")
# pycld2 refuses text with control characters and unassigned code points.
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")

_TAG_END = attrgetter("char_end_idx", "relative_end_pos")

LONGEST_SAMPLE = 5000  # characters of the text by which its language is detected


def read_date_in_url(url: str) -> str | None:
    """Returns the date in an address that has a year and a month."""
    date = extract_url_date(url, _IN_URL)
    if date is None and (match := _YEAR_AND_MONTH.search(url)):
        date = f"{match[1]}-{match[2]}-01"
    return parse_date(date or "")


def find_date_in_page(declared: Declared) -> str | None:
    """Returns the first date that a page declares: in `<meta>`, JSON-LD or `<time>`.

    Dates of publication come before dates of changes.
    """
    for value in _find_declared_dates(declared):
        date = parse_date(value)
        if date is not None:
            return date
    return None


def _find_declared_dates(declared: Declared) -> Iterator[str]:
    for name in (*_PUBLISHED, *_MODIFIED):
        yield declared.meta.get(name, "")
    for name in _IN_JSON_LD:
        yield from _find_json_strings(declared.json_ld, name, _DEEPEST)
    yield from declared.times


def _find_json_strings(node: Any, name: str, depth: int) -> Iterator[str]:
    """Yields the strings under a name in nested JSON, down to a depth."""
    if depth and isinstance(node, dict):
        if isinstance(node.get(name), str):
            yield node[name]
        node = list(node.values())
    if depth and isinstance(node, list):
        for inner in node:
            yield from _find_json_strings(inner, name, depth - 1)


def parse_date(value: str) -> str | None:
    """Returns a date in any usual notation as `2018-12-10 13:45:00`.

    None if it has no year and month, or is not a date.
    """
    value = value.strip()
    if not value or len(value) > _LONGEST_DATE or not any(map(str.isdigit, value)):
        return None

    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        # Parsed twice: fields that the text does not have come from the default, so they differ.
        try:
            moment = date_parser.parse(value, default=datetime(1, 1, 1))
            other = date_parser.parse(value, default=datetime(2, 2, 1))
        except (ValueError, OverflowError, TypeError):
            return None
        if (moment.year, moment.month) != (other.year, other.month):
            return None

    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        return None
    return moment.replace(tzinfo=None, microsecond=0).isoformat(" ")


class Html(Annotator):
    """The tags of the page, and its head, footers and titles.

    `metadata_html` has a local record for each tag, as published in the order of their ends;
    `html_head`, `html_footer` and `html_title` are the serialized subtrees of the whole page.
    """

    name = "html"
    columns = ("metadata_html", "html_head", "html_footer", "html_title")
    settings = ("profile",)

    def annotate(self, row: Row) -> Columns:
        page = row.page
        return {
            "metadata_html": sorted(page.tags, key=_TAG_END),
            "html_head": page.head,
            "html_footer": page.footer,
            "html_title": page.title_tags,
        }


class Url(Annotator):
    """The address of the page."""

    name = "url"
    columns = ("metadata_url",)

    def annotate(self, row: Row) -> Columns:
        return {"metadata_url": [make_global_record("url", row.require_url())]}


class Title(Annotator):
    """The title, on one line; for a shard without raw pages, from its column `html_title`."""

    name = "title"
    columns = ("metadata_title",)

    def annotate(self, row: Row) -> Columns:
        if row.html is not None:
            title = row.page.title
        else:
            titles = row.read_strings("html_title")
            if titles is None:
                raise AnnotationError(NO_HTML)
            text = remove_enclosed(titles[0], "<", ">") if titles else ""
            title = " ".join(html.unescape(text).split())
        return {"metadata_title": [make_global_record("title", title)] if title else []}


class Timestamp(Annotator):
    """When the page was published or changed; the record's `source` is the source of the date."""

    name = "timestamp"
    columns = ("metadata_timestamp",)
    settings = ("timestamp_sources",)

    def annotate(self, row: Row) -> Columns:
        for source in self.config.timestamp_sources:
            date = DATE_SOURCES[source](row)
            if date is not None:
                return {
                    "metadata_timestamp": [make_global_record("timestamp", date, source=source)]
                }
        return {"metadata_timestamp": []}


DATE_SOURCES: dict[str, Callable[[Row], str | None]] = {
    "url": lambda row: read_date_in_url(row.url),
    "page": lambda row: find_date_in_page(row.page.declared) if row.html is not None else None,
    "crawl": lambda row: parse_date(row.timestamp or ""),
}
"""The values of `timestamp_sources`."""


class WebsiteDescription(Annotator):
    """A sentence about the site, from a table of domains, or the page's own meta description."""

    name = "website_description"
    version = 2
    columns = ("metadata_website_desc",)
    settings = ("description_sources",)

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        uses_table = "table" in config.description_sources and config.descriptions is not None
        self._table = DescriptionTable(config.descriptions or "") if uses_table else None

    def annotate(self, row: Row) -> Columns:
        for source in self.config.description_sources:
            text = self._find_in_table(row) if source == "table" else _read_meta_description(row)
            if text and is_description(text):
                record = make_global_record("website_description", text, source=source)
                return {"metadata_website_desc": [record]}
        return {"metadata_website_desc": []}

    def _find_in_table(self, row: Row) -> str | None:
        try:
            host = urlsplit(row.url).hostname
        except ValueError:
            return None
        return self._table.find(host) if self._table is not None and host else None

    def fingerprint(self) -> str:
        return self.digest({"table": self._table.content_hash if self._table else None})


def _read_meta_description(row: Row) -> str | None:
    if row.html is None:
        return None
    meta = row.page.declared.meta
    return " ".join((meta.get("description") or meta.get("og:description") or "").split())


class Datasource(Annotator):
    """`example.org > news > a new project`: the host, and the words of the path."""

    name = "datasource"
    columns = ("metadata_generation_datasource",)

    def annotate(self, row: Row) -> Columns:
        url = row.require_url()
        try:
            parts = urlsplit(url)
            _ = parts.hostname  # an invalid port or bracket is only noticed here
        except ValueError as error:
            raise AnnotationError("bad_url", str(error)) from error
        words = [_extract_path_words(part) for part in parts.path.split("/")]
        value = " > ".join(filter(None, [parts.netloc, *words]))
        records = [make_global_record("datasource", value)] if value else []
        return {"metadata_generation_datasource": records}


def _extract_path_words(part: str) -> str:
    """Returns the words of a part of a path, without numbers at its beginning and end."""
    words = [word for word in _PATH_SEPARATORS.split(unquote(part)) if word]
    positions = [position for position, word in enumerate(words) if not word.isdigit()]
    return " ".join(words[positions[0] : positions[-1] + 1]) if positions else ""


class Language(Annotator):
    """The language of the beginning of the text, as an ISO 639 code, if pycld2 is sure of it."""

    name = "language"
    columns = ("metadata_language",)

    def annotate(self, row: Row) -> Columns:
        sample = _NOT_TEXT.sub(" ", row.text[:LONGEST_SAMPLE])
        try:
            is_reliable, _, languages = pycld2.detect(sample, isPlainText=True)
        except pycld2.error as error:
            raise AnnotationError("language_not_detected", str(error)) from error

        _, code, _, _ = languages[0]
        if not is_reliable or code == "un":
            return {"metadata_language": []}
        return {"metadata_language": [make_global_record("language", code)]}
