"""Dates of pages: in an address, declared by a page, or in any notation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Any

from dateutil import parser as date_parser  # type: ignore[import-untyped]
from htmldate.extractors import extract_url_date
from htmldate.utils import Extractor

from bsmeta.annotate.page import Declared

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
    "article:published_time", "datepublished", "date", "dc.date", "dc.date.issued",
    "dcterms.created", "dcterms.date", "dcterms.issued", "citation_publication_date", "pubdate",
    "publishdate", "publish-date", "parsely-pub-date", "sailthru.date", "og:published_time",
)  # fmt: skip
_MODIFIED = (
    "article:modified_time", "datemodified", "og:updated_time", "dcterms.modified",
    "last-modified", "lastmod", "revised",
)  # fmt: skip
_IN_JSON_LD = ("datePublished", "dateCreated", "dateModified")
_LONGEST_DATE = 40  # characters; longer is prose
_DEEPEST = 8  # levels of JSON-LD


def date_of_url(url: str) -> str | None:
    """The date in an address that has a year and a month."""
    found = extract_url_date(url, _IN_URL)
    if found is None and (match := _YEAR_AND_MONTH.search(url)):
        found = f"{match[1]}-{match[2]}-01"
    return date_of_value(found or "")


def date_of_page(declared: Declared) -> str | None:
    """The first date that a page declares: in `<meta>`, JSON-LD or `<time>`; published before
    modified.
    """
    meta = (declared.meta.get(name, "") for name in (*_PUBLISHED, *_MODIFIED))
    json_ld = (value for name in _IN_JSON_LD for value in _values(declared.json_ld, name, _DEEPEST))
    for value in chain(meta, json_ld, declared.times):
        date = date_of_value(value)
        if date is not None:
            return date
    return None


def _values(node: Any, name: str, depth: int) -> Iterator[str]:
    """The strings of a name in nested JSON."""
    if depth and isinstance(node, dict):
        if isinstance(node.get(name), str):
            yield node[name]
        node = list(node.values())
    if depth and isinstance(node, list):
        for inner in node:
            yield from _values(inner, name, depth - 1)


def date_of_value(value: str) -> str | None:
    """A date as `2018-12-10 13:45:00`; None if the value has no year and month.

    Args:
        value: A date in any usual notation.
    """
    value = value.strip()
    if not value or len(value) > _LONGEST_DATE or not any(map(str.isdigit, value)):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        try:
            # Parsed twice: fields missing in the text come from the default, so they differ.
            moment = date_parser.parse(value, default=datetime(1, 1, 1))
            other = date_parser.parse(value, default=datetime(2, 2, 1))
        except (ValueError, OverflowError, TypeError):
            return None
        if (moment.year, moment.month) != (other.year, other.month):
            return None
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        return None
    return moment.replace(tzinfo=None, microsecond=0).isoformat(" ")
