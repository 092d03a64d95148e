"""Finds dates of pages: in the address, declared, or visible; each no later than the crawl.

Every source yields moments, and `format_date` alone decides whether a moment may be the date of a
page. Impossible dates, such as 30 February, are ignored.
"""

from __future__ import annotations

import calendar
import contextlib
import logging
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from typing import Any

from htmldate import find_date
from htmldate.utils import load_html

from bsmeta.annotate.html.page import Declared
from bsmeta.core.dates import MONTH_NUMBERS, parse_any_date

FIRST_YEAR = 1983  # as in the published data
LAST_YEAR = 2099  # for pages without the time of their crawl

# Not the current date, so that a page has the same records whenever it is annotated.
_LATEST = datetime(LAST_YEAR, 12, 31, 23, 59, 59, tzinfo=UTC)

_UNIX_TIME = re.compile(r"(\d{9,11}|\d{12,13})(?:\.\d+)?")  # seconds or milliseconds
_MAX_SECONDS_DIGITS = 11  # longer Unix times are in milliseconds

_YEAR_FIRST = re.compile(
    r"(?<!\d)(?P<year>\d{4})[/_-](?P<month>\d{1,2}|[a-z]{3,9})[/_-](?P<day>\d{1,2})(?!\d)",
    re.IGNORECASE,
)
_DAY_FIRST = re.compile(
    r"(?<!\d)(?P<day>\d{1,2})[/_-](?P<month>[a-z]{3,9})[/_-](?P<year>\d{4})(?!\d)", re.IGNORECASE
)
# Not before a day: if the date is impossible or after the crawl, its month is not used either.
# The 24 of /2018/12/24-hours/ may be part of a title; the 24 of /2018/12/24/ is a day.
_YEAR_AND_MONTH = re.compile(
    r"/(?P<year>\d{4})[/_-](?:(?P<month>0[1-9]|1[0-2])(?=[/_-]|$)|(?P<name>[a-z]{3,9})(?=/|$))"
    r"(?!/\d{1,2}(?:[/.?#]|$)|[_-]\d{1,2}(?!\d))",
    re.IGNORECASE,
)
_NUMERIC_DATE = re.compile(
    r"(?<!\d)(?:(?P<year>\d{4})[/.-](?P<month>\d{1,2})[/.-](?P<day>\d{1,2})"
    r"|(?P<first_day>\d{1,2})[/.-](?P<middle_month>\d{1,2})[/.-](?P<last_year>\d{4}))(?!\d)"
)

_PUBLISHED_NAMES = (
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
_MODIFIED_NAMES = (
    "article:modified_time",
    "datemodified",
    "og:updated_time",
    "dcterms.modified",
    "last-modified",
    "lastmod",
    "revised",
)
_JSON_LD_NAMES = ("datePublished", "dateCreated", "dateModified")
_MAX_DATE_CHARS = 40  # longer strings are prose
_MAX_DATE_LINE_CHARS = 100  # of a line such as "Posted on … by …"; longer lines are prose
_MAX_JSON_LD_DEPTH = 8

# htmldate logs an error for each page that it cannot parse, which would flood the terminal. Setting
# a level would not help: trafilatura changes it when it is imported.
_LOGGER = logging.getLogger("htmldate")
_LOGGER.propagate = False
_LOGGER.addHandler(logging.NullHandler())


def format_date(moment: datetime, latest: datetime) -> str | None:
    """Formats a moment for a record, `2018-12-10 13:45:00`, in its own time zone.

    Args:
        moment: The moment; UTC if it has no time zone.
        latest: The latest possible date, with a time zone; see `read_latest_moment`.

    Returns:
        The text; None if the moment cannot be the date of the page, because it is before
        `FIRST_YEAR` or after the crawl.
    """
    is_possible_year = FIRST_YEAR <= moment.year <= LAST_YEAR
    if not is_possible_year or _assume_utc(moment) > latest:
        return None
    return moment.replace(tzinfo=None, microsecond=0).isoformat(" ")


def _assume_utc(moment: datetime) -> datetime:
    """Returns a moment with UTC as its time zone if it has none."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def read_latest_moment(crawled: str | None) -> datetime:
    """Returns the last moment at which a page can have been published: the time of its crawl.

    Args:
        crawled: The time of the crawl, as written in the input; None if unknown. A date without a
            time stands for the end of the day.

    Returns:
        The moment, with a time zone; the end of `LAST_YEAR` if the time of the crawl is unknown.
    """
    moment = parse_crawl_time(crawled or "")
    if moment is None or not FIRST_YEAR <= moment.year <= LAST_YEAR:
        return _LATEST  # some inputs have the year 1970 for an unknown time

    try:
        day = date.fromisoformat((crawled or "").strip())
    except ValueError:
        return _assume_utc(moment)
    return datetime.combine(day, time.max, UTC)


def parse_crawl_time(value: str) -> datetime | None:
    """Parses the time of a crawl: a date in any notation, or Unix time in (milli)seconds.

    Returns None if it is neither.
    """
    match = _UNIX_TIME.fullmatch(value.strip())
    if match is None:
        return parse_date(value)

    unix_time = int(match[1])
    is_milliseconds = len(match[1]) > _MAX_SECONDS_DIGITS
    seconds = unix_time / 1000 if is_milliseconds else unix_time
    return datetime.fromtimestamp(seconds, UTC)


def parse_date(value: str) -> datetime | None:
    """Parses a date in any usual notation; returns None if it is not a date, or has no month."""
    value = value.strip()
    if len(value) > _MAX_DATE_CHARS or not any(character.isdigit() for character in value):
        return None

    try:
        parsed = parse_any_date(value)
    except ValueError:
        return None
    return parsed.moment if parsed.has_year and parsed.has_month else None


def list_dates_in_url(url: str) -> Iterator[datetime]:
    """Yields the dates in an address: first days, then months (as the first day of the month).

    A month is a number or a name: `/2018/12/10/`, `/2018/dec/10/`, `/10-december-2018`.
    """
    for pattern in (_YEAR_FIRST, _DAY_FIRST):
        for match in pattern.finditer(url):
            yield from _make_date(match["year"], match["month"], match["day"])
    for match in _YEAR_AND_MONTH.finditer(url):
        yield from _make_date(match["year"], match["month"] or match["name"], "1")


def _make_date(year: str, month: str, day: str) -> Iterator[datetime]:
    """Yields the date if it exists in the calendar, otherwise nothing.

    Args:
        month: A number, or an English name.
    """
    number = int(month) if month.isdigit() else MONTH_NUMBERS.get(month.lower(), 0)
    with contextlib.suppress(ValueError):
        yield datetime(int(year), number, int(day))


def list_declared_dates(declared: Declared) -> Iterator[datetime]:
    """Yields the dates that a page declares in `<meta>`, JSON-LD and `<time>`, in this order.

    Within `<meta>` and JSON-LD, dates of publication come before dates of changes.
    """
    for value in _list_declared_values(declared):
        moment = parse_date(value)
        if moment is not None:
            yield moment


def _list_declared_values(declared: Declared) -> Iterator[str]:
    """Yields the declared values that may be dates, in order of preference."""
    for name in (*_PUBLISHED_NAMES, *_MODIFIED_NAMES):
        yield declared.meta.get(name, "")
    for name in _JSON_LD_NAMES:
        yield from _find_json_strings(declared.json_ld, name, _MAX_JSON_LD_DEPTH)
    yield from declared.times


def _find_json_strings(node: Any, name: str, depth: int) -> Iterator[str]:
    """Yields the string values of a key in nested JSON, down to a depth."""
    if depth and isinstance(node, dict):
        if isinstance(node.get(name), str):
            yield node[name]
        node = list(node.values())
    if depth and isinstance(node, list):
        for inner in node:
            yield from _find_json_strings(inner, name, depth - 1)


def list_visible_dates(html: str, latest: datetime) -> Iterator[datetime]:
    """Yields the date that htmldate finds on a page, if any, such as the date of a byline.

    htmldate's extensive search is off: it takes ten times as long, and uses the year of a copyright
    notice as a date. Long lines are skipped: the dates in prose are about its subject.

    Args:
        latest: See `read_latest_moment`.
    """
    # As bytes: a string that is an address would be downloaded.
    tree = load_html(html.encode("utf-8", "replace"))
    if tree is None:
        return

    for element in tree.iter():
        is_code = element.tag in ("script", "style")
        if not is_code and element.text and len(element.text) > _MAX_DATE_LINE_CHARS:
            element.text = None
        if element.tail and len(element.tail) > _MAX_DATE_LINE_CHARS:
            element.tail = None

    day = find_date(
        tree,
        extensive_search=False,
        original_date=True,
        min_date=datetime(FIRST_YEAR, 1, 1),
        # By the day, so that htmldate's caches serve the pages of one crawl.
        max_date=datetime.combine(latest.astimezone(UTC).date(), time.max),
    )
    if day is None:
        return
    moment = datetime.fromisoformat(day)
    if moment.day > 1 or not _has_impossible_day(html, moment.year, moment.month):
        yield moment


def _has_impossible_day(html: str, year: int, month: int) -> bool:
    """Whether a page has a numeric date in the given month whose day does not exist.

    htmldate reads such a date, 30.02.2019, as the first day of the month.
    """
    days = range(1, calendar.monthrange(year, month)[1] + 1)
    for match in _NUMERIC_DATE.finditer(html):
        year_text = match["year"] or match["last_year"]
        month_text = match["month"] or match["middle_month"]
        if int(year_text) == year and int(month_text) == month:
            day_text = match["day"] or match["first_day"]
            if int(day_text) not in days:
                return True
    return False
