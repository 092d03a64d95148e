"""Writes the report of annotated shards: counts of records and failures, and sample pages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from markupsafe import escape

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.html.frames import make_inert_html
from bsmeta.annotate.html.page import PageError
from bsmeta.annotate.inputs.sources import decode_record, format_count, read_items
from bsmeta.annotate.plan import ShardPlan
from bsmeta.annotate.shard import Counts, read_existing_rows
from bsmeta.core.foreign_json import ForeignDecoder, split_columns
from bsmeta.core.terminal import Console
from bsmeta.metadata.annotated_columns import (
    CONTENT_SPANS,
    RECORD_COLUMN_PREFIX,
    Spans,
    decode_content_spans,
    decode_local_records,
    decode_records,
)
from bsmeta.metadata.content import KeptText
from bsmeta.metadata.records import BadDocument, Record
from bsmeta.report import figures
from bsmeta.report.drawing import draw_figures
from bsmeta.report.inference import read_value
from bsmeta.report.page import (
    COUNT,
    HTML_NAME,
    Column,
    Page,
    Section,
    Table,
    describe_command,
    print_table,
    write_html,
)
from bsmeta.report.palette import GOOD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JSON_FILE = "report.json"
PERCENT = "{:.1%}".format

_MAX_TEXT_CHARS = 4000  # of a sample page
_MAX_HTML_CHARS = 300_000
_MAX_VALUE_CHARS = 300  # of a record
_TAGS = "metadata_html"
_ENTITIES = "metadata_entity"


class _Row(msgspec.Struct):
    """The columns that every row has."""

    text: str
    url: str
    annotation_errors: dict[str, str]


_ROW_DECODER = ForeignDecoder(_Row)


@dataclass(frozen=True)
class Report:
    """Counts over complete shards; `report.json` has the same fields.

    Attributes:
        annotators: The names of the annotators, in the order of their columns.
        bytes: Size of the shards.
        total: The counts of all shards.
        shards: The counts of each shard, by the name of its input file.
    """

    annotators: list[str]
    bytes: int
    total: Counts
    shards: dict[str, Counts]


def make_report(plans: Sequence[ShardPlan], names: Sequence[str]) -> Report:
    """Sums the counts in the journals of complete shards.

    Args:
        names: The annotators to list, in the order of their columns.
    """
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
    """Makes the tables of the report, some of which may have no rows."""
    total = report.total
    pages = Column("pages", COUNT)
    share = Column("share", PERCENT)
    dropped = Table("Pages without a row", "", [Column("reason"), pages, share])
    for reason, count in Counter(total.dropped).most_common():
        dropped.rows.append([reason, count, count / total.pages])

    copy_columns = [Column("kind"), pages, share, Column("without a row", COUNT)]
    copies = Table("Duplicates", "", copy_columns)
    for kind, count in Counter(total.duplicates).most_common():
        copies.rows.append([kind, count, count / total.pages, total.dropped.get(kind, 0)])

    others = Table("Records that are not pages", "", [Column("type"), Column("records", COUNT)])
    for record_type, count in Counter(total.others).most_common():
        others.rows.append([record_type, count])
    return [_make_types_table(report), dropped, copies, others]


def _make_types_table(report: Report) -> Table:
    """Makes the table of the pages, records and failures of each annotator."""
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
    """Makes the histogram of text lengths, with a row for each number of bits of the length."""
    table = Table("Lengths", "", [Column("characters of text"), Column("pages", COUNT)])
    lengths = report.total.lengths
    if not lengths:
        return table

    for num_bits in range(min(lengths), max(lengths) + 1):
        end = 1 << num_bits
        first = end // 2
        table.rows.append([f"{first:,} to {end - 1:,}", lengths.get(num_bits, 0)])
    return table


def summarize_report(report: Report) -> str:
    """Summarizes the counts and the speed in one line."""
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
    """Prints the tables that have rows, and the summary."""
    for table in make_tables(report):
        if table.rows:
            print_table(console, table)
    console.print(summarize_report(report), highlight=False, soft_wrap=True)


def write_report(
    report: Report, config: AnnotateConfig, plans: Sequence[ShardPlan], output: Path
) -> list[Path]:
    """Writes the report as JSON and as a page; returns the paths of both files."""
    content = json.dumps(msgspec.to_builtins(report, str_keys=True), indent=1, ensure_ascii=False)
    json_path = output / JSON_FILE
    json_path.write_text(content + "\n", encoding="utf-8", errors="backslashreplace")

    sample = sample_pages(config, plans)
    page = _make_page(report, sample, output.name)
    page_path = output / HTML_NAME
    template = "annotate/pages.html.j2"
    drawings = draw_figures(page.plots, output)
    write_html(page, drawings, [JSON_FILE], page_path, template, pages=sample.pages)
    return [page_path, json_path]


def _make_page(report: Report, sample: PageSample, output_name: str) -> Page:
    """Makes the page of the report, without the sample pages themselves."""
    total = report.total
    lengths = _make_lengths_table(report)
    plots: dict[str, Callable[[], Figure]] = {}
    if total.rows:
        types_table = _make_types_table(report)
        plots["types"] = partial(_draw_bar_plot, types_table, "share", "% of the rows")
    if lengths.rows:
        label = "pages by characters of their text"
        plots["lengths"] = partial(_draw_bar_plot, lengths, "pages", label)

    tables = [*make_tables(report), lengths, _make_unshown_table(sample)]
    return Page(
        title="Annotated pages",
        answers=[f"{summarize_report(report)}."],
        facts={
            "pages": f"{total.pages:,}, {total.pages - total.rows:,} of them without a row",
            "annotators": ", ".join(report.annotators),
            "output": output_name,
        },
        sections=[Section(tables=tables, plots=plots)],
        commands=describe_command(),
    )


@figures.style_figure
def _draw_bar_plot(table: Table, column: str, label: str) -> Figure:
    """Draws the values of a column as horizontal bars, named by the first column.

    Args:
        column: The head of the column.
        label: The label of the axis.
    """
    index = table.heads.index(column)
    is_share = table.columns[index].format is PERCENT
    factor = 100 if is_share else 1
    values = [factor * read_value(row[index]) for row in table.rows]

    figure, (axes,) = figures.create_figure(1.0 + 0.3 * len(table.rows))
    axes.barh(range(len(values)), values, color=GOOD, height=0.6)
    figures.name_rows(axes, [str(row[0]) for row in table.rows])
    axes.set_xlim(0, 100 if is_share else None)
    axes.set_xlabel(label)
    return figure


@dataclass
class PageSample:
    """Sample pages of the report, for the template.

    Attributes:
        pages: The raw page and the row of each page; see `describe_row`.
        foreign_columns: Number of pages with each foreign column; see `find_foreign_columns`.
        unreadable: Number of pages that are not shown because their row cannot be decoded.
    """

    pages: list[dict[str, Any]] = field(default_factory=list)
    foreign_columns: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0


def sample_pages(config: AnnotateConfig, plans: Sequence[ShardPlan]) -> PageSample:
    """Samples `report_pages` pages: the first ones of evenly spaced shards."""
    sample = PageSample()
    count = config.report_pages
    step = max(len(plans) // max(count, 1), 1)
    shards = plans[::step][:count]
    for number, plan in enumerate(shards):
        # Differences of rounded cumulative shares, so that the counts of all shards add up.
        first = count * number // len(shards)
        end = count * (number + 1) // len(shards)
        for html, line in islice(_read_pages(config, plan), end - first):
            try:
                page = describe_row(line)
            except msgspec.DecodeError:
                sample.unreadable += 1
            else:
                sample.pages.append({"html": _cut_shown_html(html), **page})
                sample.foreign_columns.update(page["foreign"])
    return sample


def _read_pages(config: AnnotateConfig, plan: ShardPlan) -> Iterator[tuple[str, bytes]]:
    """Yields the raw page and the row of each page that has a row in a shard."""
    journal = plan.files.open_complete()
    if journal is None:
        return

    page_bytes = int(config.page_mb * 1e6)
    items = read_items(plan.file.path, page_bytes, on_bad_record=config.on_bad_record)
    for (item, _), line in zip(items, read_existing_rows(plan.files, journal), strict=False):
        if isinstance(line, bytes):
            yield decode_record(item, page_bytes).html or "", line


def describe_row(line: bytes) -> dict[str, Any]:
    """Returns the parts of a row that the template shows; of foreign columns, only the names.

    Raises:
        msgspec.DecodeError: If it is not a row of a shard.
    """
    row = _ROW_DECODER.decode(line)
    columns = split_columns(line)
    foreign_columns = find_foreign_columns(columns, row.text)
    for name in foreign_columns:
        del columns[name]
    return {
        "url": row.url,
        "parts": list(divide_text({**columns, "text": row.text})),
        "is_cut": len(row.text) > _MAX_TEXT_CHARS,
        "values": list(_list_shown_values(columns)),
        "errors": row.annotation_errors,
        "foreign": foreign_columns,
    }


def find_foreign_columns(columns: Mapping[str, Any], text: str) -> list[str]:
    """Lists the columns of the input that are named like annotated ones, but have another form."""
    foreign_columns = []
    for name, content in columns.items():
        try:
            if name == CONTENT_SPANS:
                _read_contents(content, text)
            elif name in (_TAGS, _ENTITIES):
                decode_local_records(name, content, len(text))
            elif name.startswith(RECORD_COLUMN_PREFIX):
                decode_records(name, content)
        except BadDocument:
            foreign_columns.append(name)
    return foreign_columns


def _make_unshown_table(sample: PageSample) -> Table:
    """Makes the table of the foreign columns and unreadable rows of the sample pages."""
    table = Table(
        "Not shown",
        "The columns have names that annotators use, and another form. The shards have them as "
        "they were in the input.",
        [Column("of the sample pages"), Column("pages", COUNT)],
    )
    for name, count in sorted(sample.foreign_columns.items()):
        table.rows.append([f"column {name}", count])
    if sample.unreadable:
        table.rows.append(["pages whose row cannot be decoded", sample.unreadable])
    return table


def _cut_shown_html(html: str) -> str:
    """Returns the beginning of a raw page, made inert, or a message if that is impossible."""
    try:
        return make_inert_html(html[:_MAX_HTML_CHARS])
    except PageError as error:
        return f"The raw page cannot be shown: {escape(str(error))}."


def _list_shown_values(columns: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the name and the value of each global record, and the number of local ones by name."""
    for column, content in columns.items():
        if not column.startswith(RECORD_COLUMN_PREFIX):
            continue

        name = column.removeprefix(RECORD_COLUMN_PREFIX)
        records = decode_records(column, content)
        values = [str(record.value) for record in records if record.type == "global"]
        for value in values:
            yield name, value[:_MAX_VALUE_CHARS]
        if len(records) > len(values):
            yield name, format_count(len(records) - len(values), "span")


def divide_text(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Splits the text wherever a tag, a content span or an entity begins or ends.

    Yields:
        For each part `text`, `labels` (the tags that begin or end before it), `contents` (the
        extractors that keep it) and `entity` (the mentioned entity, or "").

    Raises:
        BadDocument: If a column is foreign; see `find_foreign_columns`.
    """
    whole_text = row["text"]
    text = whole_text[:_MAX_TEXT_CHARS]
    tags = decode_local_records(_TAGS, row.get(_TAGS), len(whole_text))
    labels = _label_tags(tags, len(text))
    contents = _read_contents(row.get(CONTENT_SPANS), whole_text)
    mentions = decode_local_records(_ENTITIES, row.get(_ENTITIES), len(whole_text))
    entities = {_get_start(mention): mention for mention in mentions}

    cuts = {0, len(text), *labels, *entities}
    cuts.update(_get_end(mention) for mention in mentions)
    for spans in contents.values():
        cuts.update(chain.from_iterable(spans))
    positions = sorted(cut for cut in cuts if cut <= len(text))

    entity = ""  # of the last mention that began before the part
    entity_end = 0
    for start, end in pairwise([*positions, positions[-1]]):
        if start in entities:
            entity = str(entities[start].value)
            entity_end = _get_end(entities[start])
        yield {
            "text": text[start:end],
            "labels": labels.get(start, []),
            "contents": [name for name, spans in contents.items() if _is_within(start, spans)],
            "entity": entity if start < entity_end else "",
        }


def _get_start(record: Record) -> int:
    return record.char_start_idx or 0


def _get_end(record: Record) -> int:
    return record.char_end_idx or 0


def _read_contents(content: Any, text: str) -> dict[str, Spans]:
    """Decodes the content spans of each extractor that kept any.

    Raises:
        BadDocument: If the column has another form, or its spans do not fit the text.
    """
    all_contents = decode_content_spans(content) or {}
    contents = {name: spans for name, spans in all_contents.items() if spans}
    for spans in contents.values():
        KeptText(text, spans)  # raises BadDocument
    return contents


def _label_tags(tags: Sequence[Record], length: int) -> dict[int, list[str]]:
    """Returns the start and end tags at each position up to `length`, in their order."""
    # The labels at each position, each with its relative position among them.
    ordered_labels: dict[int, list[tuple[int, str]]] = {}
    for tag in tags:
        edges = (
            (_get_start(tag), tag.relative_start_pos, f"<{tag.value}>"),
            (_get_end(tag), tag.relative_end_pos, f"</{tag.value}>"),
        )
        for position, order, label in edges:
            if position <= length:
                ordered_labels.setdefault(position, []).append((order or 0, label))

    labels: dict[int, list[str]] = {}
    for position, pairs in ordered_labels.items():
        labels[position] = [label for _, label in sorted(pairs)]
    return labels


def _is_within(position: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= position < end for start, end in spans)
