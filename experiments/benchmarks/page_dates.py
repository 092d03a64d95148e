"""Compares the dates of pages with htmldate's, by the source of the date.

    python experiments/benchmarks/page_dates.py 'pages/*.jsonl.gz' [CRAWLED]

Pages have `url` and `html`; CRAWLED is the time of their crawl, for pages without `timestamp`.
htmldate searches extensively, as is its default, for the date of publication. The table has a row
for each source: its pages, those whose day and whose month are htmldate's, those that htmldate has
no date for, those later than the crawl, and the CPU time of the annotator and of htmldate on them.
The month is what training renders.

Then follow the pages whose day differs.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from glob import glob
from typing import NamedTuple

from htmldate import find_date

from bsmeta.annotate.about_page import Timestamp
from bsmeta.annotate.annotator import Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.dates import read_latest_moment
from bsmeta.annotate.inputs.sources import InputRecord
from bsmeta.core.process import run_and_report

NONE = "none"


class DatedPage(NamedTuple):
    """The dates of a page, and the CPU seconds that finding them took."""

    url: str
    source: str
    date: str  # empty if there is none
    expected: str  # by htmldate
    is_after_crawl: bool
    seconds: float
    expected_seconds: float


def main(pattern: str, crawled: str = "") -> None:
    """Prints the table."""
    annotator = Timestamp(AnnotateConfig(annotators=["timestamp"]))
    pages = [_date_page(record, annotator) for record in _read_records(pattern, crawled)]
    if not pages:
        sys.exit(f"{pattern}: no pages")

    by_source: dict[str, list[DatedPage]] = defaultdict(list)
    for page in pages:
        by_source[page.source].append(page)
    print(
        "| source | pages | same day | same month | htmldate has none | after the crawl "
        "| ms per page | htmldate |\n|---|---|---|---|---|---|---|---|"
    )
    for source in (*annotator.config.timestamp_sources, NONE):
        print(_format_row(source, by_source[source]))
    print(_format_row("all", pages))

    for page in pages:
        if page.date[:10] != page.expected:
            print(f"\n{page.url}\n  {page.source}: {page.date}; htmldate: {page.expected}", end="")
    print()


def _read_records(pattern: str, crawled: str) -> Iterator[InputRecord]:
    for path in sorted(glob(pattern)):
        with gzip.open(path) as file:
            for row in map(json.loads, file):
                timestamp = row.get("timestamp") or crawled or None
                yield InputRecord(url=row["url"], html=row["html"], timestamp=timestamp)


def _date_page(record: InputRecord, annotator: Timestamp) -> DatedPage:
    row = Row(record, annotator.config.profile)
    _ = row.page  # parsed for all annotators
    latest = read_latest_moment(record.timestamp)

    start = time.process_time()
    records = annotator.annotate(row)["metadata_timestamp"]
    seconds = time.process_time() - start
    source, date = (records[0]["source"], records[0]["value"]) if records else (NONE, "")

    start = time.process_time()
    expected = find_date(
        (record.html or "").encode(),
        original_date=True,
        url=record.url,
        max_date=latest.replace(tzinfo=None),
    )
    expected_seconds = time.process_time() - start

    is_after = bool(date) and datetime.fromisoformat(date) > latest.replace(tzinfo=None)
    return DatedPage(record.url, source, date, expected or "", is_after, seconds, expected_seconds)


def _format_row(source: str, pages: Sequence[DatedPage]) -> str:
    count = max(len(pages), 1)
    cells = [
        len(pages),
        sum(page.date[:10] == page.expected for page in pages),
        sum(page.date[:7] == page.expected[:7] for page in pages),
        sum(not page.expected for page in pages),
        sum(page.is_after_crawl for page in pages),
        f"{1000 * sum(page.seconds for page in pages) / count:.2f}",
        f"{1000 * sum(page.expected_seconds for page in pages) / count:.2f}",
    ]
    return f"| {source} | {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(run_and_report(lambda: main(*sys.argv[1:])))
