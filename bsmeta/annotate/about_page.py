"""Annotators of global records: the topic, the origin and the date of a page."""

from __future__ import annotations

import html
import itertools
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
# pycld2 refuses text with control characters and noncharacters.
_REFUSED_CHARACTER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")

MAX_SAMPLE_CHARS = 5000
"""Number of characters, from the beginning of a text, by which its language is detected."""


class Html(Annotator):
    """Records the tags of the page, and its head, footers and titles.

    `metadata_html` has a local record for each tag, sorted by the end of the tags as in the
    published data. `html_head`, `html_footer` and `html_title` are lists of serialized elements.
    """

    name = "html"
    columns = ("metadata_html", "html_head", "html_footer", "html_title")
    settings = ("profile",)

    def annotate(self, row: Row) -> Columns:
        page = row.page
        get_tag_end = attrgetter("char_end_idx", "relative_end_pos")
        return {
            "metadata_html": sorted(page.tags, key=get_tag_end),
            "html_head": page.head,
            "html_footer": page.footer,
            "html_title": page.title_tags,
        }


class Url(Annotator):
    """Records the address of the page."""

    name = "url"
    columns = ("metadata_url",)

    def annotate(self, row: Row) -> Columns:
        return {"metadata_url": [make_global_record("url", row.require_url())]}


class Title(Annotator):
    """Records the title in one line, from the raw page or else from the column `html_title`."""

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
    """Records the date on which the page was published or changed, no later than its crawl.

    The `source` of the record is the entry of `timestamp_sources` that gave the date.
    """

    name = "timestamp"
    version = 2
    columns = ("metadata_timestamp",)
    settings = ("timestamp_sources",)

    def annotate(self, row: Row) -> Columns:
        latest = read_latest_moment(row.timestamp)
        for source in self.config.timestamp_sources:
            list_dates = DATE_SOURCES[source]
            for moment in list_dates(row, latest):
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
    _ = row.page  # raises PageError for a page that would take a parser too long
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
"""Functions that list the dates of a row, given the latest possible date, by source."""


class WebsiteDescription(Annotator):
    """Records a sentence about the site, from a table of domains or the meta description."""

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
        """Returns the description of the page's host; None without a table, host or entry."""
        if self._table is None:
            return None
        try:
            host = urlsplit(row.url).hostname
        except ValueError:
            return None
        return self._table.find(host) if host else None

    def fingerprint(self) -> str:
        return self.digest({"table": self._table.content_hash if self._table else None})


def _read_meta_description(row: Row) -> str | None:
    """Returns the meta description of a page in one line; None without a raw page."""
    if row.html is None:
        return None
    meta = row.page.declared.meta
    description = meta.get("description") or meta.get("og:description") or ""
    return " ".join(description.split())


class Datasource(Annotator):
    """Records the host and the words of the path: `example.org > news > a new project`."""

    name = "datasource"
    columns = ("metadata_generation_datasource",)

    def annotate(self, row: Row) -> Columns:
        url = row.require_url()
        try:
            parts = urlsplit(url)
            _ = parts.hostname  # raises for an invalid port or bracket
        except ValueError as error:
            raise AnnotationError("bad_url", str(error)) from error
        words = [_extract_path_words(segment) for segment in parts.path.split("/")]
        value = " > ".join(part for part in (parts.netloc, *words) if part)
        records = [make_global_record("datasource", value)] if value else []
        return {"metadata_generation_datasource": records}


def _extract_path_words(segment: str) -> str:
    """Returns the words of a path segment, without leading and trailing numbers."""
    words = [word for word in _PATH_SEPARATORS.split(unquote(segment)) if word]
    words = list(itertools.dropwhile(str.isdigit, words))
    while words and words[-1].isdigit():
        words.pop()
    return " ".join(words)


class Language(Annotator):
    """Records the ISO 639 code of the text's language, if pycld2 reports it as reliable.

    Only the first `MAX_SAMPLE_CHARS` characters are examined.
    """

    name = "language"
    columns = ("metadata_language",)

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        import pycld2  # has no build for Python 3.14, where the other annotators work without it

        self._pycld2 = pycld2

    def annotate(self, row: Row) -> Columns:
        sample = _REFUSED_CHARACTER.sub(" ", row.text[:MAX_SAMPLE_CHARS])
        try:
            is_reliable, _, languages = self._pycld2.detect(sample, isPlainText=True)
        except self._pycld2.error as error:
            raise AnnotationError("language_not_detected", str(error)) from error

        _, code, _, _ = languages[0]
        if not is_reliable or code == "un":
            return {"metadata_language": []}
        return {"metadata_language": [make_global_record("language", code)]}
