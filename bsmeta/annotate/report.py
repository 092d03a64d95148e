"""The report of annotated shards: how many pages have each type, failures, and sample pages."""

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
from bsmeta.annotate.frames import make_inert_html
from bsmeta.annotate.page import PageError
from bsmeta.annotate.plan import ShardPlan
from bsmeta.annotate.shard import Counts, read_existing_rows
from bsmeta.annotate.sources import decode_record, format_count, read_items
from bsmeta.core.parsing import decode_json
from bsmeta.core.terminal import Console
from bsmeta.report import figures
from bsmeta.report.drawing import draw_figures
from bsmeta.report.figures import GOOD
from bsmeta.report.inference import read_value
from bsmeta.report.page import (
    COUNT,
    Column,
    Page,
    Section,
    Table,
    describe_command,
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
_TAGS = "metadata_html"
_ENTITIES = "metadata_entity"


@dataclass(frozen=True)
class Report:
    """Counts of shards; this is also the form of `report.json`."""

    annotators: list[str]  # in the order of their columns
    bytes: int  # size of the shards
    total: Counts
    shards: dict[str, Counts]


def make_report(plans: Sequence[ShardPlan], names: Sequence[str]) -> Report:
    """Adds up the counts in the journals of complete shards."""
    total = Counts()
    shards = {}
    size = 0
    for plan in plans:
        journal = plan.files.open_complete()
        if journal is not None:
            counts = journal.sum_counts()
            shards[plan.file.name] = counts
            total.add(counts)
            size += journal.end
    return Report(list(names), size, total, shards)


def make_tables(report: Report) -> list[Table]:
    """Makes the tables of the report; those without rows are not shown."""
    columns = [Column("reason"), Column("pages", COUNT), Column("share", PERCENT)]
    dropped = Table("Pages without a row", "", columns)
    for reason, count in Counter(report.total.dropped).most_common():
        dropped.rows.append([reason, count, count / report.total.pages])
    heads = [Column("kind"), *columns[1:], Column("without a row", COUNT)]
    copies = Table("Duplicates", "", heads)
    for kind, count in Counter(report.total.duplicates).most_common():
        without_row = report.total.dropped.get(kind, 0)
        copies.rows.append([kind, count, count / report.total.pages, without_row])
    others = Table("Records that are no pages", "", [Column("type"), Column("records", COUNT)])
    for record_type, count in Counter(report.total.others).most_common():
        others.rows.append([record_type, count])
    return [_make_types_table(report), dropped, copies, others]


def _make_types_table(report: Report) -> Table:
    columns = [
        Column("annotator"),
        Column("pages with it", COUNT),
        Column("share", PERCENT),
        Column("records", COUNT),
        Column("failures"),
    ]
    table = Table("Types", "", columns)
    total = report.total
    for name in report.annotators:
        present = total.present.get(name, 0)
        share = present / total.rows if total.rows else None
        records = total.records.get(name, 0)
        reasons = sorted(total.errors.get(name, {}).items())
        failures = ", ".join(f"{reason} {count:,}" for reason, count in reasons)
        table.rows.append([name, present, share, records, failures])
    return table


def _make_lengths_table(report: Report) -> Table:
    table = Table("Lengths", "", [Column("characters of text"), Column("pages", COUNT)])
    lengths = report.total.lengths
    if not lengths:
        return table

    # Lengths are counted by their number of binary digits.
    for digits in range(min(lengths), max(lengths) + 1):
        first = 1 << digits >> 1
        last = (1 << digits) - 1
        table.rows.append([f"{first:,} to {last:,}", lengths.get(digits, 0)])
    return table


def summarize_report(report: Report) -> str:
    """Summarizes the report in one line."""
    total = report.total
    speed = f", {total.pages / total.cpu_s:,.0f} pages per CPU second" if total.cpu_s else ""
    duplicates = sum(total.duplicates.values())
    copies = f" {format_count(duplicates, 'duplicate')}," if duplicates else ""
    return (
        f"{format_count(total.pages, 'page')},{copies} {format_count(total.rows, 'row')} in "
        f"{format_count(len(report.shards), 'shard')} "
        f"({report.bytes / 1e6:,.1f} MB){speed}"
    )


def print_report(report: Report, console: Console) -> None:
    """Prints the tables and the summary."""
    for table in make_tables(report):
        if table.rows:
            print_table(console, table)
    console.print(summarize_report(report), highlight=False, soft_wrap=True)


def write_report(
    report: Report, config: AnnotateConfig, plans: Sequence[ShardPlan], output: Path
) -> list[Path]:
    """Writes the report as JSON and as a page; returns the files."""
    data = json.dumps(msgspec.to_builtins(report, str_keys=True), indent=1, ensure_ascii=False)
    (output / DATA).write_text(data + "\n", encoding="utf-8", errors="backslashreplace")

    total = report.total
    lengths = _make_lengths_table(report)
    plots: dict[str, Callable[[], Figure]] = {}
    if total.rows:
        plots["types"] = partial(
            _draw_bar_plot, _make_types_table(report), "share", "% of the rows"
        )
    if lengths.rows:
        plots["lengths"] = partial(
            _draw_bar_plot, lengths, "pages", "pages by characters of their text"
        )

    page = Page(
        title="Annotated pages",
        answers=[f"{summarize_report(report)}."],
        facts={
            "pages": f"{total.pages:,}, {total.pages - total.rows:,} of them without a row",
            "annotators": ", ".join(report.annotators),
            "output": output.name,
        },
        sections=[Section(tables=[*make_tables(report), lengths], plots=plots)],
        commands=describe_command(),
    )
    drawings = draw_figures(page.plots, output)
    pages = list(sample_shown_pages(config, plans))
    write_html(page, drawings, [DATA], output / PAGE, "annotate/pages.html.j2", pages=pages)
    return [output / PAGE, output / DATA]


@figures.style_figure
def _draw_bar_plot(table: Table, column: str, label: str) -> Figure:
    """Draws a bar for each row of a table, as long as the row's number in a column."""
    index = table.heads.index(column)
    is_share = table.columns[index].format is PERCENT
    values = [read_value(row[index]) * (100 if is_share else 1) for row in table.rows]

    figure, (axes,) = figures.create_figure(1.0 + 0.3 * len(table.rows))
    axes.barh(range(len(values)), values, color=GOOD, height=0.6)
    figures.name_rows(axes, [str(row[0]) for row in table.rows])
    axes.set_xlim(0, 100 if is_share else None)
    axes.set_xlabel(label)
    return figure


def sample_shown_pages(
    config: AnnotateConfig, plans: Sequence[ShardPlan]
) -> Iterator[dict[str, Any]]:
    """Yields the first pages of some shards: the raw page, and its row for the template."""
    pages = config.report_pages
    step = max(len(plans) // max(pages, 1), 1)
    shards = plans[::step][:pages]
    for number, plan in enumerate(shards):
        pages_of_shard = pages * (number + 1) // len(shards) - pages * number // len(shards)
        yield from islice(_read_pages(config, plan), pages_of_shard)


def _read_pages(config: AnnotateConfig, plan: ShardPlan) -> Iterator[dict[str, Any]]:
    journal = plan.files.open_complete()
    if journal is None:
        return

    page_bytes = int(config.page_mb * 1e6)
    items = read_items(plan.file.path, page_bytes, on_bad_record=config.on_bad_record)
    for (item, _), line in zip(items, read_existing_rows(plan.files, journal), strict=False):
        if not isinstance(line, bytes):
            continue
        html = decode_record(item, page_bytes).html
        try:
            row = decode_json(line)
        except msgspec.DecodeError:  # in columns that are copied undecoded
            continue
        yield {
            "url": row["url"],
            "html": _cut_shown_html(html or ""),
            "parts": list(divide_text(row)),
            "is_cut": len(row["text"]) > _SHOWN_TEXT,
            "values": list(_list_shown_values(row)),
            "errors": row[ERRORS],
        }


def _cut_shown_html(html: str) -> str:
    """Returns the beginning of a raw page, for its frame."""
    try:
        return make_inert_html(html[:_SHOWN_HTML])
    except PageError as error:
        return f"The raw page cannot be shown: {escape(str(error))}."


def _list_shown_values(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields column and value of global records, and the number of local ones."""
    for column, records in row.items():
        if not column.startswith("metadata_") or not isinstance(records, list):
            continue
        name = column.removeprefix("metadata_")
        values = [str(record["value"]) for record in records if record.get("type") == "global"]
        for value in values:
            yield name, value[:_LONGEST_VALUE]
        if len(records) > len(values):
            yield name, format_count(len(records) - len(values), "span")


def divide_text(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the text in parts, cut wherever a tag, a content span or an entity begins or ends.

    Each part has the tags that begin or end before it, the names of the extractors in whose main
    content it is, and the entity that it mentions.
    """
    text = row["text"][:_SHOWN_TEXT]
    labels = _label_tags(row, len(text))
    all_contents = row.get("content_spans") or {}
    contents = {name: spans for name, spans in all_contents.items() if spans}
    entities = {entity["char_start_idx"]: entity for entity in row.get(_ENTITIES) or []}

    cuts = {0, len(text), *labels, *entities}
    cuts.update(entity["char_end_idx"] for entity in entities.values())
    for spans in contents.values():
        cuts.update(chain.from_iterable(spans))
    positions = sorted(cut for cut in cuts if cut <= len(text))

    entity = {"char_end_idx": 0}  # the last that has begun
    for start, end in pairwise([*positions, positions[-1]]):
        entity = entities.get(start, entity)
        yield {
            "text": text[start:end],
            "labels": labels.get(start, []),
            "contents": [name for name, spans in contents.items() if _is_within(start, spans)],
            "entity": entity["value"] if start < entity["char_end_idx"] else "",
        }


def _label_tags(row: dict[str, Any], length: int) -> dict[int, list[str]]:
    """Returns the start and end tags at each position up to a length of the text, in order."""
    ordered_labels: dict[int, list[tuple[int, str]]] = {}
    for tag in row.get(_TAGS) or []:
        for edge, label in (("start", "<{}>"), ("end", "</{}>")):
            position = tag[f"char_{edge}_idx"]
            if position <= length:
                order = tag[f"relative_{edge}_pos"]
                ordered_labels.setdefault(position, []).append((order, label.format(tag["value"])))

    labels: dict[int, list[str]] = {}
    for position, pairs in ordered_labels.items():
        labels[position] = [label for _, label in sorted(pairs)]
    return labels


def _is_within(position: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= position < end for start, end in spans)
