"""Measures pages per CPU second: of each annotator, of all together, and of other programs.

    python experiments/benchmarks/annotate.py input='pages/*.jsonl.gz' [annotators=[html,content]]

Takes the keys of `annotate.py`, and limit (pages, taken evenly from the input) and repeats (the
fastest counts, for each page). Prints a JSON line for each measurement. Of an annotator, only its
own time counts: the page has been parsed. `all annotators` is everything that a worker does to a
row, from the line that was read to the compressed line that is written. Beside them: lexbor's
parser alone; text, tags and offsets by lxml; and the extractors alone.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lxml.html
from common import own_arguments
from resiliparse.extract.html2text import extract_plain_text
from selectolax.lexbor import LexborHTMLParser

from bsmeta.annotate.annotator import Annotation, Annotator, Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.html.page import parse_page
from bsmeta.annotate.inputs.sources import InputRecord, Item, decode_record, list_inputs, read_items
from bsmeta.annotate.plan import list_all_columns, make_annotators
from bsmeta.annotate.pool import Chunk, Status, reduce_garbage_collection
from bsmeta.config.entry_point import run_entry_point

OWN_KEYS = {"limit": "300", "repeats": "5"}
PAGE_BYTES = 100_000_000


def main(config: AnnotateConfig) -> None:
    """Prints the measurements."""
    reduce_garbage_collection()
    limit, repeats = int(OWN["limit"]), int(OWN["repeats"])
    paths = [path for path, _ in list_inputs(config.input)]
    items = [item for path in paths for item, _ in read_items(path, PAGE_BYTES)]
    items = items[:: max(1, len(items) // limit)][:limit]
    annotators = make_annotators(config)
    for what, seconds in _measure(config, annotators, items, repeats):
        speed = round(len(items) / seconds) if seconds else None
        print(json.dumps({"what": what, "pages_per_cpu_s": speed, "pages": len(items)}), flush=True)


def _measure(
    config: AnnotateConfig, annotators: Sequence[Annotator], items: Sequence[Item], repeats: int
) -> Iterator[tuple[str, float]]:
    records = [decode_record(item, PAGE_BYTES) for item in items]
    pages = [record.html for record in records if isinstance(record.html, str)]
    yield "lexbor: parse alone", _fastest(LexborHTMLParser, pages, repeats)
    yield "html with offsets", _fastest(parse_page, pages, repeats)
    yield "lxml: text, tags, offsets", _fastest(_walk_lxml, pages, repeats)
    for name, extract in _extractors():
        yield f"{name} alone", _fastest(extract, pages, repeats)
    for annotator in annotators:
        rows = [_row(config, record) for record in records]
        yield f"annotator {annotator.name}", _fastest(annotator.annotate, rows, repeats)
    names = frozenset(annotator.name for annotator in annotators)
    annotation, status = Annotation(config, annotators, list_all_columns(annotators)), Status()
    chunks = [Chunk(0, [item], names, rows=[None]) for item in items]
    yield (
        "all annotators: " + ",".join(annotator.name for annotator in annotators),
        _fastest(lambda chunk: annotation(chunk, {}, status), chunks, repeats),
    )


def _fastest(action: Callable[[Any], Any], arguments: Sequence[Any], repeats: int) -> float:
    """CPU seconds for all arguments, of each the fastest time."""
    fastest = [float("inf")] * len(arguments)
    for _ in range(repeats):
        for number, argument in enumerate(arguments):
            start = time.process_time()
            action(argument)
            fastest[number] = min(fastest[number], time.process_time() - start)
    return sum(fastest)


def _row(config: AnnotateConfig, record: InputRecord) -> Row:
    row = Row(record, config.profile)
    _ = row.text
    return row


def _extractors() -> Iterator[tuple[str, Callable[[str], Any]]]:
    yield "resiliparse", lambda html: extract_plain_text(html, main_content=True)
    trafilatura = importlib.import_module("trafilatura")
    yield "trafilatura (fast)", lambda html: trafilatura.extract(html, fast=True)


def _walk_lxml(html: str) -> tuple[str, list[tuple[str, int, int, dict[str, str]]]]:
    """The simplest walk with lxml: every text as it stands, every tag with its span."""
    pieces: list[str] = []
    tags = []
    length = 0
    starts = []
    root = lxml.html.fromstring(html.encode())
    for event, element in lxml.etree.iterwalk(root, events=("start", "end")):
        if not isinstance(element.tag, str):
            continue
        if event == "start":
            starts.append(length)
            text = element.text
        else:
            tags.append((element.tag, starts.pop(), length, dict(element.attrib)))
            text = element.tail
        if text:
            pieces.append(" ".join(text.split()))
            length += len(pieces[-1])
    return "".join(pieces), tags


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, AnnotateConfig, "annotate")
