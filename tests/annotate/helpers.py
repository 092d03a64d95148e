"""Pages, files of pages, and runs of the annotators."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastwarc.warc import WarcRecord, WarcRecordType

from bsmeta.annotate import command
from bsmeta.annotate.annotator import Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.inputs.sources import InputRecord
from bsmeta.annotate.plan import make_annotators

WORDS = "words of a paragraph that is longer than the sixty-four characters below which it is cut "
RAWPAGES = Path(__file__).resolve().parents[2] / "examples" / "rawpages"

ALL_DATA = Path(
    os.environ.get("BSMETA_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")
)
ALL_RAWPAGES = ALL_DATA / "rawpages"


def page(body: str, head: str = "", url: str = "https://www.example.org/a/b.html") -> InputRecord:
    """Returns a raw page."""
    return InputRecord(url=url, html=f"<html><head>{head}</head><body>{body}</body></html>")


def annotated(record: InputRecord, name: str, **settings: Any) -> dict[str, Any]:
    """Returns the columns that an annotator makes for a record."""
    config = AnnotateConfig(annotators=[name], **settings)
    row = Row(record, config.profile)
    return make_annotators(config)[0].annotate(row)


def values(columns: dict[str, Any]) -> list[str]:
    """Returns the record values of the only column with records."""
    lists = [records for records in columns.values() if records]
    return [record["value"] for record in lists[0]] if lists else []


def write_pages(path: Path, pages: Sequence[dict[str, Any]]) -> Path:
    """Writes pages as JSON lines."""
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(page) + "\n" for page in pages)
    return path


def some_pages(count: int) -> list[dict[str, Any]]:
    """Returns different pages of a site."""
    return [
        {
            "url": f"https://www.example.org/pages/{number}.html",
            "timestamp": "2019-04-05T00:00:00Z",
            "html": f"<title>Page {number}</title><p>Page {number}: {WORDS * (number % 7 + 1)}",
        }
        for number in range(count)
    ]


def warc_record(
    url: str, body: bytes, content_type: str = "text/html", status: str = "200 OK", **headers: str
) -> WarcRecord:
    """Returns a WARC response record."""
    record = WarcRecord()
    record.init_headers(record_type=WarcRecordType.response)
    record.headers["WARC-Target-URI"] = url
    record.headers["WARC-Date"] = "2019-04-05T06:07:08Z"
    record.headers["Content-Type"] = "application/http; msgtype=response"
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    record.set_bytes_content("\r\n".join([*lines, "", ""]).encode() + body)
    return record


def annotate(input: Any, output: Path, **settings: Any) -> int:
    """Runs the command in this process; returns its exit code."""
    settings = {"workers": 1, "annotators": ["html", "url", "title"], "report": False} | settings
    return command.main(AnnotateConfig(input=input, output=str(output), **settings))


def rows(shard: Path) -> list[dict[str, Any]]:
    """Returns the rows of a shard."""
    with gzip.open(shard, "rt") as file:
        return [json.loads(line) for line in file]
