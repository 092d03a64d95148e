"""The report of annotated shards: how much has which type, what failed, and pages to look at."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bsmeta.annotate.chunks import ERRORS, Counts
from bsmeta.annotate.plans import ShardPlan
from bsmeta.annotate.shard import existing_rows
from bsmeta.annotate.sources import counted, decode, open_source
from bsmeta.config.annotate import AnnotateConfig

TEMPLATE = Path(__file__).with_name("report.html.j2")
PAGE, DATA = "report.html", "report.json"

_SHOWN_TEXT = 4000  # characters of a page
_SHOWN_HTML = 300_000
_LONGEST_VALUE = 300
_TAGS, _ENTITIES = "metadata_html", "metadata_entity"


@dataclass(frozen=True)
class Report:
    """What was found in shards.

    Attributes:
        names: The annotators, in the order of their columns.
        total: What was found in all shards.
        shards: What was found in each.
        bytes: Size of the shards.
    """

    names: list[str]
    total: Counts
    shards: dict[str, Counts]
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "annotators": self.names,
            "bytes": self.bytes,
            "total": msgspec.to_builtins(self.total, str_keys=True),
            "shards": {
                name: msgspec.to_builtins(counts, str_keys=True)
                for name, counts in self.shards.items()
            },
        }

    def lengths(self) -> list[tuple[str, int]]:
        """Number of pages by the length of their text, in characters."""
        found = self.total.lengths
        if not found:
            return []
        digits = range(min(found), max(found) + 1)
        return [(f"{1 << n >> 1:,} to {(1 << n) - 1:,}", found.get(n, 0)) for n in digits]


def make_report(plans: Sequence[ShardPlan], names: Sequence[str]) -> Report:
    """Adds up what the journals of complete shards say."""
    total, shards, size = Counts(), {}, 0
    for plan in plans:
        journal = plan.files.complete()
        if journal is not None:
            counts = shards[plan.file.name] = journal.counts()
            total.add(counts)
            size += journal.end
    return Report(list(names), total, shards, size)


def tables(report: Report) -> Iterator[Table]:
    """The report as tables for the terminal."""
    total = report.total
    table = _table("annotator", "pages with it", "share", "records", "failures")
    for name in report.names:
        present = total.present.get(name, 0)
        reasons = total.errors.get(name, {})
        failures = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items()))
        share = f"{present / total.rows:.1%}" if total.rows else "–"
        table.add_row(name, f"{present:,}", share, f"{total.records.get(name, 0):,}", failures)
    yield table
    if total.dropped:
        table = _table("pages without a row", "pages", "share")
        for reason, count in sorted(total.dropped.items(), key=lambda one: -one[1]):
            table.add_row(reason, f"{count:,}", f"{count / total.pages:.1%}")
        yield table


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for number, head in enumerate(heads):
        is_text = number == 0 or head == "failures"
        table.add_column(head, justify="left" if is_text else "right")
    return table


def summary(report: Report) -> str:
    """The report in one line."""
    total = report.total
    speed = f", {total.pages / total.cpu_s:,.0f} pages per CPU second" if total.cpu_s else ""
    return (
        f"{counted(total.pages, 'page')}, {counted(total.rows, 'row')} in "
        f"{counted(len(report.shards), 'shard')} "
        f"({report.bytes / 1e6:,.1f} MB){speed}"
    )


def print_report(report: Report, console: Console) -> None:
    """Prints the tables and the summary."""
    for table in tables(report):
        console.print(table)
    console.print(summary(report), highlight=False, soft_wrap=True)


def write_report(
    report: Report, config: AnnotateConfig, plans: Sequence[ShardPlan], output: Path
) -> list[Path]:
    """Writes the report as JSON and as a page; returns the files."""
    data = json.dumps(report.as_dict(), indent=1, ensure_ascii=False)
    (output / DATA).write_text(data + "\n", encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    lengths = report.lengths()
    page = template.render(
        report=report,
        summary=summary(report),
        lengths=lengths,
        most=max((count for _, count in lengths), default=1),
        pages=list(shown_pages(config, plans)),
    )
    (output / PAGE).write_text(page, encoding="utf-8")
    return [output / PAGE, output / DATA]


def shown_pages(config: AnnotateConfig, plans: Sequence[ShardPlan]) -> Iterator[dict[str, Any]]:
    """The first pages of some shards: the raw page, and its row for the template."""
    wanted = config.report_pages
    step = max(len(plans) // max(wanted, 1), 1)
    chosen = plans[::step][:wanted]
    for number, plan in enumerate(chosen):
        left = wanted * (number + 1) // len(chosen) - wanted * number // len(chosen)
        yield from islice(_pages_of_shard(config, plan), left)


def _pages_of_shard(config: AnnotateConfig, plan: ShardPlan) -> Iterator[dict[str, Any]]:
    journal = plan.files.complete()
    if journal is None:
        return
    page_bytes = int(config.page_mb * 1e6)
    items = open_source(plan.file.path, page_bytes).items(0)
    for (item, _), line in zip(items, existing_rows(plan.files, journal), strict=False):
        if isinstance(line, bytes):
            html = decode(item, page_bytes).html
            row = msgspec.json.decode(line)
            yield {
                "url": row["url"],
                "html": (html or "")[:_SHOWN_HTML],
                "parts": list(text_parts(row)),
                "is_cut": len(row["text"]) > _SHOWN_TEXT,
                "values": list(_values(row)),
                "errors": row[ERRORS],
            }


def _values(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Column and value of global records, and the number of local ones."""
    for column, records in row.items():
        if column.startswith("metadata_") and isinstance(records, list):
            name = column.removeprefix("metadata_")
            values = [str(one["value"]) for one in records if one.get("type") == "global"]
            yield from ((name, value[:_LONGEST_VALUE]) for value in values)
            if len(records) > len(values):
                yield name, counted(len(records) - len(values), "span")


def text_parts(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The text in parts, cut where anything begins or ends.

    Each part has the tags that begin or end before it, whether it is in a main content (the names
    of the extractors), and the entity that it mentions.
    """
    text = row["text"][:_SHOWN_TEXT]
    labels: dict[int, list[tuple[int, str]]] = {}
    for tag in row.get(_TAGS) or []:
        for edge, label in (("start", "<{}>"), ("end", "</{}>")):
            place = tag[f"char_{edge}_idx"]
            if place <= len(text):
                order = tag[f"relative_{edge}_pos"]
                labels.setdefault(place, []).append((order, label.format(tag["value"])))
    found = row.get("content_spans") or {}
    contents = {name: spans for name, spans in found.items() if spans}
    entities = {one["char_start_idx"]: one for one in row.get(_ENTITIES) or []}
    cuts = {0, len(text), *labels}
    cuts |= {place for spans in contents.values() for span in spans for place in span}
    cuts |= {
        one[place] for one in entities.values() for place in ("char_start_idx", "char_end_idx")
    }
    places = sorted(cut for cut in cuts if cut <= len(text))
    starts = sorted(entities)
    for number, start in enumerate(places):
        end = places[number + 1] if number + 1 < len(places) else start
        near = bisect_left(starts, start + 1) - 1
        entity = entities[starts[near]] if near >= 0 else None
        is_in = entity is not None and start < entity["char_end_idx"]
        yield {
            "text": text[start:end],
            "labels": [label for _, label in sorted(labels.get(start, []))],
            "contents": [
                name
                for name, spans in contents.items()
                if any(first <= start < last for first, last in spans)
            ],
            "entity": entity["value"] if entity is not None and is_in else "",
        }
