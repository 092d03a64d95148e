"""Dates of pages: possible ones, no later than the crawl, in every notation that pages use."""

from __future__ import annotations

import calendar
import gzip
import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bsmeta.annotate.dates import (
    FIRST_YEAR,
    LAST_YEAR,
    format_date,
    list_dates_in_url,
    list_visible_dates,
    parse_crawl_time,
    parse_date,
    read_latest_moment,
)
from bsmeta.annotate.inputs.sources import InputRecord
from tests.annotate.helpers import ALL_DATA, WORDS, annotated, page, values

CRAWLED = "2021-06-15T12:00:00Z"
NEWS = ALL_DATA / "article_extraction" / "pages.jsonl.gz"


def dates_in(url: str) -> list[str]:
    return [f"{moment:%Y-%m-%d}" for moment in list_dates_in_url(url)]


def source_and_date(record: InputRecord, **settings: list[str]) -> tuple[str, str] | None:
    records = annotated(record, "timestamp", **settings)["metadata_timestamp"]
    return (records[0]["source"], records[0]["value"]) if records else None


@pytest.mark.parametrize(
    ("path", "dates"),
    [
        ("2019/11/20/", ["2019-11-20"]),
        ("2019-1-5-title", ["2019-01-05"]),
        ("news_2019_11_20.html", ["2019-11-20"]),
        ("2019/11/20-title", ["2019-11-20", "2019-11-01"]),  # perhaps no day
        ("a?day=2019-11-20", ["2019-11-20"]),
        ("1985/12/10/", ["1985-12-10"]),
        ("2019/11/", ["2019-11-01"]),
        ("2019/11/title", ["2019-11-01"]),
        ("2019/11/20191120", ["2019-11-01"]),
        # Names of months
        ("2019/nov/20/", ["2019-11-20"]),
        ("2019/Nov/20", ["2019-11-20"]),
        ("2019/november/20/title", ["2019-11-20"]),
        ("2019-sept-03", ["2019-09-03"]),
        ("title-20-nov-2019.html", ["2019-11-20"]),
        ("20/November/2019", ["2019-11-20"]),
        ("2019/nov/title", ["2019-11-01"]),
        ("2019/may-be-so", []),
        ("2019/new/20/", []),
        # No days of the calendar, of whose parts no month is made
        ("2019/02/30/", []),
        ("2019/02/30", []),
        ("2019/02/30.html", []),
        ("2019/02/30?page=2", []),
        ("2019-02-29-title", []),
        ("2019/feb/30/", []),
        ("2019/feb/30", []),
        ("30-feb-2019", []),
        ("2019/04/31/title", []),
        ("2019/04/00/title", []),
        ("2019/04/45/title", []),
        ("2019/13/20/", []),
        ("2019/00/20/", []),
        ("0000/11/20/", []),
        ("2020/02/29/", ["2020-02-29"]),
        # A number that begins a title is not a day.
        ("2019/02/30-best-books", ["2019-02-01"]),
        ("2019/02/101-books", ["2019-02-01"]),
        # No dates
        ("2019/20/11", []),
        ("120190/11/20", []),
        ("2019/11.5/20", []),
    ],
)  # fmt: skip
def test_dates_are_read_from_an_address(path: str, dates: list[str]) -> None:
    assert dates_in(f"https://a.org/{path}") == dates


def test_the_first_possible_date_of_an_address_is_used() -> None:
    record = InputRecord(url="https://a.org/2031/05/17/2019-11-20-title", text="a")
    record.timestamp = CRAWLED
    assert source_and_date(record) == ("url", "2019-11-20 00:00:00")


@pytest.mark.parametrize(
    ("crawled", "date"),
    [
        ("2021-06-15T12:00:00Z", None),
        ("2099-11-20T00:00:00Z", "2099-11-20 00:00:00"),
        ("2099-11-19T23:59:59Z", None),
        (None, "2099-11-20 00:00:00"),
    ],
)
def test_a_date_after_the_crawl_is_not_read_from_the_address(
    crawled: str | None, date: str | None
) -> None:
    record = InputRecord(url="https://a.org/2099/11/20/", timestamp=crawled, text="a")
    assert source_and_date(record) == (("url", date) if date else None)


MONTH_NAMES = st.sampled_from([calendar.month_abbr, calendar.month_name])
NUMBERS = st.integers(0, 40)
CRAWLS = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1))


@given(
    st.integers(1900, 2120),
    NUMBERS,
    NUMBERS,
    st.sampled_from(["/", "-", "_"]),
    st.sampled_from(["/", ".html", "", "?a=b", "/title"]),
    CRAWLS,
)
@example(2019, 2, 30, "/", "/", datetime(2021, 6, 15))
@example(2099, 11, 20, "/", "/", datetime(2021, 6, 15))
def test_dates_of_addresses_are_possible_and_not_after_the_crawl(
    year: int, month: int, day: int, separator: str, end: str, crawled: datetime
) -> None:
    url = f"https://a.org/{year}{separator}{month:02}{separator}{day:02}{end}"
    record = InputRecord(url=url, timestamp=f"{crawled.isoformat()}Z", text="a")
    try:
        expected = datetime(year, month, day)
    except ValueError:
        expected = None
    if expected and (expected > crawled or not FIRST_YEAR <= year <= LAST_YEAR):
        expected = None
    source_and_value = source_and_date(record)
    assert source_and_value == (("url", expected.isoformat(" ")) if expected else None)


@given(st.dates(date(FIRST_YEAR, 1, 1), date(2090, 1, 1)), MONTH_NAMES, st.booleans())
def test_months_in_addresses_may_be_names(day: date, names: list[str], is_lower: bool) -> None:
    month = names[day.month].lower() if is_lower else names[day.month]
    for path in (f"{day.year}/{month}/{day.day}", f"{day.day:02}-{month}-{day.year}"):
        assert dates_in(f"https://a.org/{path}/") == [f"{day:%Y-%m-%d}"]


@given(
    st.text(alphabet="0123456789/-_.?#= novfeb", max_size=40),
    CRAWLS,
)
def test_any_address_has_possible_dates_up_to_the_crawl(path: str, crawled: datetime) -> None:
    record = InputRecord(url=f"https://a.org/{path}", timestamp=f"{crawled}+00:00", text="a")
    source_and_value = source_and_date(record)
    if source_and_value is not None:
        moment = datetime.fromisoformat(source_and_value[1])
        assert moment.year >= FIRST_YEAR
        assert moment <= crawled


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.none() | st.timezones()),
    CRAWLS,
)
def test_no_source_yields_a_date_after_the_crawl(moment: datetime, crawled: datetime) -> None:
    written = moment.replace(microsecond=0)
    html = (
        f"<meta name=date content='{written.isoformat()}'><time datetime='{written.isoformat()}'>"
        f"</time><span class=date>{written:%Y-%m-%d}</span>"
    )
    record = page(html, url=f"https://a.org/{written:%Y/%m/%d}/")
    record.timestamp = f"{crawled.isoformat()}Z"
    limit = crawled.replace(tzinfo=UTC)
    for source in ("url", "page", "visible", "crawl"):
        source_and_value = source_and_date(record, timestamp_sources=[source])
        if source_and_value is not None:
            zone = written.tzinfo if source == "page" else None
            assert datetime.fromisoformat(source_and_value[1]).replace(tzinfo=zone or UTC) <= limit


def test_a_coming_event_is_not_the_date_of_its_page() -> None:
    event = (
        '<script type="application/ld+json">{"@type": "Event", "dateCreated": "2031-05-17"}'
        "</script><time datetime=2031-05-17>17 May 2031</time><time datetime=2021-03-04></time>"
    )
    record = page(event + WORDS)
    record.timestamp = CRAWLED
    assert source_and_date(record) == ("page", "2021-03-04 00:00:00")

    record = page(f"<span class=date>17 May 2031</span>{WORDS}", url="https://a.org/2031/05/17/")
    record.timestamp = CRAWLED
    assert source_and_date(record) is None


@pytest.mark.parametrize(
    ("crawled", "latest"),
    [
        ("2021-06-15T12:00:00Z", "2021-06-15T12:00:00+00:00"),
        ("2021-06-15 12:00:00", "2021-06-15T12:00:00+00:00"),
        ("2021-06-15T12:00:00+02:00", "2021-06-15T12:00:00+02:00"),
        ("20210615120000", "2021-06-15T12:00:00+00:00"),
        ("1623758400", "2021-06-15T12:00:00+00:00"),
        ("1623758400000", "2021-06-15T12:00:00+00:00"),
        ("1623758400.5", "2021-06-15T12:00:00+00:00"),
        # A day counts to its end.
        ("2021-06-15", "2021-06-15T23:59:59.999999+00:00"),
        # Unknown
        (None, "2099-12-31T23:59:59+00:00"),
        ("", "2099-12-31T23:59:59+00:00"),
        ("in June", "2099-12-31T23:59:59+00:00"),
        ("1970-01-01T00:00:00Z", "2099-12-31T23:59:59+00:00"),
        ("99999999999", "2099-12-31T23:59:59+00:00"),
    ],
)
def test_the_time_of_the_crawl_is_the_latest(crawled: str | None, latest: str) -> None:
    assert read_latest_moment(crawled).isoformat() == latest


def test_moments_are_compared_across_time_zones() -> None:
    latest = read_latest_moment("2021-06-15T23:00:00Z")
    east = datetime.fromisoformat("2021-06-16T07:30:00+09:00")
    assert format_date(east, latest) == "2021-06-16 07:30:00"
    assert format_date(east + timedelta(hours=1), latest) is None
    # Without a time zone, a moment counts as UTC.
    assert format_date(datetime(2021, 6, 15, 23), latest) == "2021-06-15 23:00:00"
    assert format_date(datetime(2021, 6, 15, 23, 0, 1), latest) is None


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("2018-12-10", "2018-12-10T00:00:00"),
        (" December 10, 2018 ", "2018-12-10T00:00:00"),
        ("2018", None),
        ("10 December", None),
        ("2019-02-30", None),
        ("30 February 2019", None),
        ("2018-12-10" + " " * 31 + "x", None),
        ("", None),
    ],
)
def test_a_date_has_a_year_and_a_month(value: str, moment: str | None) -> None:
    parsed = parse_date(value)
    assert (parsed and parsed.isoformat()) == moment


def test_the_time_of_a_crawl_may_be_unix_time() -> None:
    record = InputRecord(url="https://a.org/", timestamp="1623758400", text="a")
    source_and_value = source_and_date(record, timestamp_sources=["crawl"])
    assert source_and_value == ("crawl", "2021-06-15 12:00:00")
    assert parse_crawl_time("soon") is None


@pytest.mark.parametrize(
    ("body", "date"),
    [
        ("<div class=byline>By A. Writer, November 20, 2019</div>", "2019-11-20"),
        ("<p class=date>20.11.2019</p>", "2019-11-20"),
        ("<div id=footer>Last updated on 2019/11/20</div>", "2019-11-20"),
        ("<span>2019-11-20</span>", "2019-11-20"),
        ("<span class=date>30.02.2019</span>", None),
        ("<time datetime=2019-02-30></time>", None),
        ("<span class=date>02/2019</span>", "2019-02-01"),
        ("<span class=date>2031-05-17</span>", None),
        ("<div id=footer>© 2019 Example</div>", None),
        (f"<p>On 2019-11-20 it rained. {WORDS}</p>", None),
        (f"<script>a</script>{WORDS} It rained on 2019-11-20.", None),
        ("", None),
    ],
)
def test_a_date_is_read_from_visible_text(body: str, date: str | None) -> None:
    record = page(f"{body}<p>{WORDS}{WORDS}")
    record.timestamp = CRAWLED
    assert source_and_date(record) == (("visible", f"{date} 00:00:00") if date else None)


def test_declared_dates_precede_visible_dates() -> None:
    body = f"<span class=date>2019-11-20</span>{WORDS}"
    record = page(body, "<meta name=date content=2018-12-10>")
    assert source_and_date(record) == ("page", "2018-12-10 00:00:00")
    source_and_value = source_and_date(record, timestamp_sources=["visible", "page"])
    assert source_and_value == (
        "visible",
        "2018-12-10 00:00:00",
    )  # htmldate reads declarations, too
    assert source_and_date(page(body), timestamp_sources=["url", "page"]) is None


NOTHING = ["", " ", "http://127.0.0.1:9/", "<", "<!-- a -->", "\0", "\ud800"]


@pytest.mark.parametrize("html", NOTHING)
def test_an_empty_page_has_no_visible_date(html: str) -> None:
    """An address is not downloaded as a page."""
    assert list(list_visible_dates(html, read_latest_moment(CRAWLED))) == []


def test_htmldate_logs_nothing() -> None:
    """In a separate process, because pytest listens to all loggers."""
    code = (
        "import logging\n"
        "from bsmeta.annotate.content import EXTRACTORS\n"
        "from bsmeta.annotate.dates import list_visible_dates, read_latest_moment\n"
        "EXTRACTORS['trafilatura']()  # sets the level of htmldate's logger\n"
        "logging.basicConfig()\n"
        f"for html in {NOTHING!r}:\n"
        "    assert list(list_visible_dates(html, read_latest_moment(None))) == []\n"
    )
    command = [sys.executable, "-P", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.skipif(not NEWS.is_file(), reason="needs data/article_extraction")
def test_nearly_all_news_pages_have_a_date() -> None:
    """The pages were collected in November 2019."""
    crawled = datetime(2019, 11, 30, tzinfo=UTC)
    sources = []
    with gzip.open(NEWS) as file:
        for line in file:
            row = json.loads(line)
            record = InputRecord(url=row["url"], html=row["html"], timestamp=crawled.isoformat())
            source_and_value = source_and_date(record)
            if source_and_value is not None:
                assert datetime.fromisoformat(source_and_value[1]).replace(tzinfo=UTC) <= crawled
                sources.append(source_and_value[0])
    assert len(sources) >= 95
    assert (sources.count("url"), sources.count("page")) == (30, 58)


def test_json_ld_with_line_breaks_declares_a_date() -> None:
    block = '{"headline": "one\ntwo", "datePublished": "2019-11-20T10:00:00Z"}'
    record = page(f'<script type="application/ld+json">{block}</script>{WORDS}')
    assert source_and_date(record) == ("page", "2019-11-20 10:00:00")


def test_a_date_is_in_the_only_record() -> None:
    record = page(f"<span class=date>2019-11-20</span>{WORDS}")
    assert annotated(record, "timestamp") == {
        "metadata_timestamp": [
            {"key": "timestamp", "type": "global", "value": "2019-11-20 00:00:00",
             "source": "visible"}
        ]
    }  # fmt: skip
    assert values(annotated(InputRecord(url="https://a.org/", text="a"), "timestamp")) == []
