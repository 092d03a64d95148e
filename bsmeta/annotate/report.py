"""The report of annotated shards: how much has which type, what failed, and pages to look at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from markupsafe import escape

from bsmeta.annotate.annotator import ERRORS
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.frames import inert_html
from bsmeta.annotate.page import PageError
from bsmeta.annotate.plan import ShardPlan
from bsmeta.annotate.shard import Counts, existing_rows
from bsmeta.annotate.sources import counted, decode, read_items
from bsmeta.core.parsing import decode_json
from bsmeta.core.terminal import Console
from bsmeta.report import figures
from bsmeta.report.drawing import draw_figures
from bsmeta.report.figures import GOOD
from bsmeta.report.inference import value_of
from bsmeta.report.page import (
    COUNT,
    Column,
    Page,
    Section,
    Table,
    own_command,
    print_table,
    write_html,
)
from bsmeta.report.page import HTML as PAGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = "report.json"
PERCENT = "{:.1%}".format

_SHOWN_TEXT = 4000  # characters of a page
_SHOWN_HTML = 300_000
_LONGEST_VALUE = 300
_TAGS, _ENTITIES = "metadata_html", "metadata_entity"


@dataclass(frozen=True)
class Report:
    """What was found in shards, as it is written."""

    annotators: list[str]  # in the order of their columns
    bytes: int  # size of the shards
    total: Counts
    shards: dict[str, Counts]


def make_report(plans: Sequence[ShardPlan], names: Sequence[str]) -> Report:
    """Adds up what the journals of complete shards say."""
    total, shards, size = Counts(), {}, 0
    for plan in plans:
        journal = plan.files.complete()
        if journal is not None:
            counts = shards[plan.file.name] = journal.counts()
            total.add(counts)
            size += journal.end
    return Report(list(names), size, total, shards)


def tables(report: Report) -> list[Table]:
    """The tables of the report; those without rows have nothing to show."""
    columns = [Column("reason"), Column("pages", COUNT), Column("share", PERCENT)]
    dropped = Table("Pages without a row", "", columns)
    for reason, count in Counter(report.total.dropped).most_common():
        dropped.rows.append([reason, count, count / report.total.pages])
    return [_types(report), dropped]


def _types(report: Report) -> Table:
    columns = [
        Column("annotator"), Column("pages with it", COUNT), Column("share", PERCENT),
        Column("records", COUNT), Column("failures"),
    ]  # fmt: skip
    table, total = Table("Types", "", columns), report.total
    for name in report.annotators:
        present, reasons = total.present.get(name, 0), total.errors.get(name, {})
        failures = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items()))
        share = present / total.rows if total.rows else None
        table.rows.append([name, present, share, total.records.get(name, 0), failures])
    return table


def _lengths(report: Report) -> Table:
    table = Table("Lengths", "", [Column("characters of text"), Column("pages", COUNT)])
    found = report.total.lengths
    for n in range(min(found), max(found) + 1) if found else ():
        table.rows.append([f"{1 << n >> 1:,} to {(1 << n) - 1:,}", found.get(n, 0)])
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
        if table.rows:
            print_table(console, table)
    console.print(summary(report), highlight=False, soft_wrap=True)


def write_report(
    report: Report, config: AnnotateConfig, plans: Sequence[ShardPlan], output: Path
) -> list[Path]:
    """Writes the report as JSON and as a page; returns the files."""
    data = json.dumps(msgspec.to_builtins(report, str_keys=True), indent=1, ensure_ascii=False)
    (output / DATA).write_text(data + "\n", encoding="utf-8", errors="backslashreplace")
    lengths, total = _lengths(report), report.total
    plots: dict[str, Callable[[], Figure]] = {}
    if total.rows:
        plots["types"] = partial(_bar_plot, _types(report), "share", "% of the rows")
    if lengths.rows:
        plots["lengths"] = partial(_bar_plot, lengths, "pages", "pages by characters of their text")
    page = Page(
        title="Annotated pages",
        answers=[f"{summary(report)}."],
        facts={
            "pages": f"{total.pages:,}, {total.pages - total.rows:,} of them without a row",
            "annotators": ", ".join(report.annotators),
            "output": output.name,
        },
        sections=[Section(tables=[*tables(report), lengths], plots=plots)],
        commands=own_command(),
    )
    drawings = draw_figures(page.plots, output)
    pages = list(shown_pages(config, plans))
    write_html(page, drawings, [DATA], output / PAGE, "annotate/pages.html.j2", pages=pages)
    return [output / PAGE, output / DATA]


@figures.styled
def _bar_plot(table: Table, head: str, words: str) -> Figure:
    """A bar for each row of a table, as long as its number in a column."""
    place = table.heads.index(head)
    is_share = table.columns[place].format is PERCENT
    figure, (axes,) = figures.canvas(1.0 + 0.3 * len(table.rows))
    values = [value_of(row[place]) * (100 if is_share else 1) for row in table.rows]
    axes.barh(range(len(values)), values, color=GOOD, height=0.6)
    figures.name_rows(axes, [str(row[0]) for row in table.rows])
    axes.set_xlim(0, 100 if is_share else None)
    axes.set_xlabel(words)
    return figure


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
    items = read_items(plan.file.path, page_bytes)
    for (item, _), line in zip(items, existing_rows(plan.files, journal), strict=False):
        if isinstance(line, bytes):
            html = decode(item, page_bytes).html
            try:
                row = decode_json(line)
            except msgspec.DecodeError:  # of columns that are only carried along
                continue
            yield {
                "url": row["url"],
                "html": _shown_html(html or ""),
                "parts": list(text_parts(row)),
                "is_cut": len(row["text"]) > _SHOWN_TEXT,
                "values": list(_values(row)),
                "errors": row[ERRORS],
            }


def _shown_html(html: str) -> str:
    """The beginning of a raw page, for its frame."""
    try:
        return inert_html(html[:_SHOWN_HTML])
    except PageError as error:
        return f"The raw page cannot be shown: {escape(str(error))}."


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
    entity_ends = (one["char_end_idx"] for one in entities.values())
    edges = chain.from_iterable(chain.from_iterable(contents.values()))
    cuts = {0, len(text), *labels, *entities, *entity_ends, *edges}
    places = sorted(cut for cut in cuts if cut <= len(text))
    entity = {"char_end_idx": 0}  # the last that has begun
    for start, end in pairwise([*places, places[-1]]):
        entity = entities.get(start, entity)
        yield {
            "text": text[start:end],
            "labels": [label for _, label in sorted(labels.get(start, []))],
            "contents": [
                name
                for name, spans in contents.items()
                if any(first <= start < last for first, last in spans)
            ],
            "entity": entity["value"] if start < entity["char_end_idx"] else "",
        }
