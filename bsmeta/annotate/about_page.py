"""Annotators of global records: the topic, the origin and the date of a page."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from operator import attrgetter
from urllib.parse import unquote, urlsplit

from bsmeta.annotate.annotator import (
    NO_HTML,
    AnnotationError,
    Annotator,
    Columns,
    Row,
    make_global_record,
)
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.dates import (
    format_date,
    list_dates_in_url,
    list_declared_dates,
    list_visible_dates,
    parse_crawl_time,
    read_latest_moment,
)
from bsmeta.annotate.descriptions import DescriptionTable, is_description
from bsmeta.core.enclosed import remove_enclosed

_PATH_SEPARATORS = re.compile(r"[-_+.&=]")
# pycld2 refuses text with control characters and unassigned code points.
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")

_TAG_END = attrgetter("char_end_idx", "relative_end_pos")

LONGEST_SAMPLE = 5000  # characters of the text by which its language is detected


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
    """When the page was published or changed, no later than it was crawled.

    The record's `source` is the kind of the date: an element of `timestamp_sources`.
    """

    name = "timestamp"
    version = 2
    columns = ("metadata_timestamp",)
    settings = ("timestamp_sources",)

    def annotate(self, row: Row) -> Columns:
        latest = read_latest_moment(row.timestamp)
        for source in self.config.timestamp_sources:
            for moment in DATE_SOURCES[source](row, latest):
                date = format_date(moment, latest)
                if date is not None:
                    record = make_global_record("timestamp", date, source=source)
                    return {"metadata_timestamp": [record]}
        return {"metadata_timestamp": []}


def _list_declared_dates(row: Row, latest: datetime) -> Iterable[datetime]:
    return list_declared_dates(row.page.declared) if row.html is not None else ()


def _list_visible_dates(row: Row, latest: datetime) -> Iterable[datetime]:
    if row.html is None:
        return ()
    _ = row.page  # refuses a page that no parser should see
    return list_visible_dates(row.html, latest)


def _list_crawl_times(row: Row, latest: datetime) -> Iterable[datetime]:
    moment = parse_crawl_time(row.timestamp or "")
    return () if moment is None else (moment,)


DATE_SOURCES: dict[str, Callable[[Row, datetime], Iterable[datetime]]] = {
    "url": lambda row, latest: list_dates_in_url(row.url),
    "page": _list_declared_dates,
    "visible": _list_visible_dates,
    "crawl": _list_crawl_times,
}
"""The values of `timestamp_sources`: the dates of a row, given its latest possible moment."""


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

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        import pycld2  # has no build for Python 3.14, where the other annotators work without it

        self._pycld2 = pycld2

    def annotate(self, row: Row) -> Columns:
        sample = _NOT_TEXT.sub(" ", row.text[:LONGEST_SAMPLE])
        try:
            is_reliable, _, languages = self._pycld2.detect(sample, isPlainText=True)
        except self._pycld2.error as error:
            raise AnnotationError("language_not_detected", str(error)) from error

        _, code, _, _ = languages[0]
        if not is_reliable or code == "un":
            return {"metadata_language": []}
        return {"metadata_language": [make_global_record("language", code)]}
