"""The tables of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bsmeta.metadata.metadata_type import MATCHED, SHUFFLED, WRONG
from bsmeta.report.byte_ranges import name_byte_ranges
from bsmeta.report.cells import Cell
from bsmeta.report.inference import Estimate, Interval
from bsmeta.report.page import COUNT, NO_VALUE, Column, Table
from bsmeta.tasks.causal_lm.evaluation.arms import AGAINST_PREFIX, FORM, PROMPT, SEPARATOR, TEXT
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport, PairedMetrics, Report, Row
from bsmeta.tasks.causal_lm.metrics import METRICS, Compared

GROUPS = {
    "all": "{}",
    "each": "{}",
    "left_out": "all but {}",
    "added": "{} added last",
    "chosen": "{}",
    PROMPT: "{} (plain English)",
}
"""Groups of comparisons other than controls, with the label of a comparison in each."""

CONTROL_WORDS = {
    SHUFFLED: "shuffled",
    WRONG: "wrong",
    MATCHED: "wrong, same length",
    FORM: "junk words",
    SEPARATOR: "separator alone",
}
"""The controls, with their names for readers."""

# Headings of the columns.
DOCUMENTS = "documents"
BYTES = "text bytes"
LEFT_OUT = "left out"
CUT = "prefix cut"
LOST = "lost by tokenizer"
WITHOUT = METRICS["bits_per_byte_without"].label
WITH = METRICS["bits_per_byte_with"].label
DIFFERENCE = METRICS["difference"].label
RELATIVE = "relative"
INTERVAL = "95% interval"
TOGETHER = "all at once"
SPLIT = "better : worse"
SIGN = METRICS["sign_test_p"].label
HOLM = "Holm p"
PERPLEXITY_WITHOUT = METRICS["perplexity_without"].label
PERPLEXITY_WITH = METRICS["perplexity_with"].label

# Formats of numbers.
BITS = METRICS["bits_per_byte_with"].format
SIGNED = METRICS["difference"].format
P_VALUE = METRICS["sign_test_p"].format


class MetricColumn(NamedTuple):
    """A column of a table of comparisons.

    Attributes:
        format: Formats the content of a cell.
        make_cell: Returns the content of the cell in a row, whose metrics are not None.
    """

    format: Callable[[Any], str]
    make_cell: Callable[[Row, PairedMetrics], Cell]


def make_metric_column(name: str) -> MetricColumn:
    """Makes the column of a metric of the task's table."""
    metric = METRICS[name]
    return MetricColumn(
        metric.format, lambda row, metrics: metric.compute(Compared(metrics, metrics))
    )


COLUMNS = {
    DOCUMENTS: MetricColumn(COUNT, lambda row, metrics: metrics.documents),
    BYTES: MetricColumn(COUNT, lambda row, metrics: metrics.bytes),
    LEFT_OUT: MetricColumn(
        "{:.1%}".format, lambda row, metrics: 1 - metrics.bytes / row.text_bytes
    ),
    LOST: MetricColumn("{:.1%}".format, lambda row, metrics: row.lost_bytes / row.text_bytes),
    CUT: MetricColumn("{:.0%}".format, lambda row, metrics: row.prefixes_cut / metrics.documents),
    WITHOUT: make_metric_column("bits_per_byte_without"),
    WITH: make_metric_column("bits_per_byte_with"),
    DIFFERENCE: make_metric_column("difference"),
    RELATIVE: MetricColumn("{:+.2%}".format, lambda row, metrics: metrics.relative),
    INTERVAL: MetricColumn(SIGNED, lambda row, metrics: find_interval(metrics)),
    TOGETHER: MetricColumn(SIGNED, lambda row, metrics: find_simultaneous_interval(metrics)),
    SPLIT: MetricColumn(
        str, lambda row, metrics: f"{metrics.documents_better} : {metrics.documents_worse}"
    ),
    SIGN: make_metric_column("sign_test_p"),
    HOLM: MetricColumn(P_VALUE, lambda row, metrics: metrics.sign_test_p_holm),
    PERPLEXITY_WITHOUT: make_metric_column("perplexity_without"),
    PERPLEXITY_WITH: make_metric_column("perplexity_with"),
}
"""The columns of comparisons, by heading."""

TEXT_COLUMNS = (DOCUMENTS, BYTES, LEFT_OUT, LOST, WITHOUT, PERPLEXITY_WITHOUT)
"""Columns that the text alone has as well."""

PERPLEXITIES = (PERPLEXITY_WITHOUT, PERPLEXITY_WITH)
MAIN_COLUMNS = (WITHOUT, WITH, DIFFERENCE, INTERVAL, TOGETHER, SPLIT)
DETAIL_COLUMNS = (DOCUMENTS, BYTES, LEFT_OUT, LOST, CUT, RELATIVE, SIGN, HOLM, *PERPLEXITIES)
TERMINAL_COLUMNS = (
    DOCUMENTS,
    BYTES,
    LEFT_OUT,
    LOST,
    CUT,
    WITHOUT,
    WITH,
    DIFFERENCE,
    INTERVAL,
    SPLIT,
)
"""Columns that fit into a terminal of 130 characters."""

NOTES = {
    WITHOUT: "Without and with are bits per byte over the same text bytes; the difference is with "
    "minus without (below 0: metadata helps).",
    LEFT_OUT: "Left out: share of the text bytes that one side cannot score (the first token; "
    "tokens that share characters with a tag).",
    LOST: "Lost by tokenizer: share of the text bytes that are left out because tokens do not give "
    "them back (unknown tokens, characters that a normalizer changes or drops).",
    CUT: "Prefix cut: share of the documents with a prefix longer than allowed.",
    INTERVAL: "Intervals are bootstraps over documents; better : worse counts documents "
    "(identical tokens are neither).",
    PERPLEXITY_WITHOUT: "Perplexity is per token of the text without metadata.",
}
"""Explanations of columns."""

OVER_HOSTS = (
    "Intervals are Student's, over hosts (jackknife), and sign tests count hosts; better : worse "
    "counts documents (identical tokens are neither)."
)
"""Explanation of the intervals with `cluster=host`."""


@dataclass(frozen=True, slots=True)
class ControlRows:
    """A comparison with one of its controls.

    Attributes:
        control: Name of the control, in CONTROL_WORDS.
        row: The comparison with the documents' own values.
        control_row: The comparison with the values or the style of the control.
        against_row: The documents' own values compared with the control.
    """

    control: str
    row: Row
    control_row: Row
    against_row: Row


def _make_columns(*heads: str) -> list[Column]:
    """Makes the columns with these headings of COLUMNS."""
    return [Column(head, COLUMNS[head].format) for head in heads]


def _join_notes(columns: Sequence[str], model: ModelReport) -> str:
    """Joins the explanations of the columns."""
    notes = NOTES
    if any(row.metrics and row.metrics.hosts is not None for row in model.rows):
        notes = NOTES | {INTERVAL: OVER_HOSTS}
    return " ".join(note for column, note in notes.items() if column in columns)


def count_comparisons(model: ModelReport) -> int:
    """Counts the comparisons that were made, controls included."""
    return sum(row.compares for row in model.rows)


def rank_rows(model: ModelReport) -> list[Row]:
    """Returns the comparisons without the controls by group, in each the most helpful first.

    The group `added` keeps the order in which the types are added.
    """
    rows = [row for row in model.rows if row.comparison.group in (TEXT, *GROUPS)]
    groups = list(dict.fromkeys(row.comparison.group for row in rows))

    def sort_key(row: Row) -> tuple[int, float]:
        group = row.comparison.group
        if row.metrics is None or group in (TEXT, "added"):
            return groups.index(group), 0.0
        return groups.index(group), row.metrics.difference

    return sorted(rows, key=sort_key)


def make_main_tables(report: Report) -> list[Table]:
    """Makes the tables of the checkpoints, of pairs of models, of comparisons and of controls."""
    tables = []
    if len(report.models) > 1:
        tables.append(make_checkpoint_table(report))
    if report.pairs:
        tables.append(make_pair_table(report))

    for model in report.models:
        model_tables = [make_comparison_table(model, MAIN_COLUMNS)]
        if list_controls(model):
            model_tables.append(make_control_table(model))
        tables += _name_tables(model_tables, model, report)
    return tables


def make_further_tables(report: Report) -> list[Table]:
    """Makes the tables with more metrics, with the differences by position, and of the slices."""
    tables = []
    for model in report.models:
        positions = {row.comparison.name: row.positions for row in model.rows}
        contexts = {row.comparison.name: row.contexts for row in model.rows}

        model_tables = [
            make_comparison_table(model, DETAIL_COLUMNS, "More about each comparison"),
            _make_bin_table(
                model,
                "By position in the document",
                "by distance in bytes from the start of the document",
                positions,
            ),
            _make_bin_table(
                model,
                "By text seen before",
                "by the bytes of text before it in its window",
                contexts,
            ),
        ]
        if model.slices:
            model_tables.append(make_slice_table(model))
        tables += _name_tables(model_tables, model, report)
    return tables


def _name_tables(tables: Sequence[Table], model: ModelReport, report: Report) -> list[Table]:
    """Adds the name of the model to the titles of its tables, if there are several models."""
    if len(report.models) == 1:
        return [*tables]
    return [replace(table, title=f"{table.title}: {model.checkpoint}") for table in tables]


def make_comparison_table(
    model: ModelReport,
    columns: Sequence[str],
    title: str = "Bits per byte with and without metadata",
) -> Table:
    """Makes a table with one row per comparison, without the controls."""
    columns = [column for column in columns if column != LOST or model.lost_bytes]
    count = count_comparisons(model)
    note = (
        f"{_join_notes(columns, model)} {count} comparisons were made, controls included: a 95% "
        f"interval holds for one of them, `{TOGETHER}` for all {count} together, and Holm's p is "
        f"corrected for {count}."
    )
    rows = [[label_row(row), *_format_cells(row, columns)] for row in rank_rows(model)]
    return Table(title, note, [Column("comparison"), *_make_columns(*columns)], rows)


def list_controls(model: ModelReport) -> list[ControlRows]:
    """Returns the controls that were evaluated, for each comparison in turn."""
    rows = {row.comparison.name: row for row in model.rows}
    controls = []
    for row in rank_rows(model):
        if row.comparison.group not in ("all", "each", "chosen"):
            continue
        for control in CONTROL_WORDS:
            name = f"{control}/{row.comparison.subject}"
            if name in rows:
                controls.append(ControlRows(control, row, rows[name], rows[AGAINST_PREFIX + name]))
    return controls


def make_control_table(model: ModelReport) -> Table:
    """Makes the table of the effect of the content: each comparison next to its controls."""
    note = (
        "Own and control's are differences to the text alone; own - control compares the two over "
        "the same bytes (below 0: these values help more). Controls: the values of another "
        "document, different and of about the same length; junk words, to about the length of the "
        "document's own prefix in characters; only what closes a prefix. Where a control does as "
        "much as own, it is the form that helps."
    )
    columns = [
        Column("comparison"),
        Column("control"),
        Column("own", SIGNED),
        Column("control's", SIGNED),
        Column("its interval", SIGNED),
        Column("own - control", SIGNED),
        *_make_columns(INTERVAL, TOGETHER, HOLM),
    ]

    table = Table("Content or form", note, columns)
    for control in list_controls(model):
        table.rows.append(
            [
                label_row(control.row),
                CONTROL_WORDS[control.control],
                *_format_cells(control.row, (DIFFERENCE,)),
                *_format_cells(control.control_row, (DIFFERENCE, INTERVAL)),
                *_format_cells(control.against_row, (DIFFERENCE, INTERVAL, TOGETHER, HOLM)),
            ]
        )
    return table


def make_checkpoint_table(report: Report) -> Table:
    """Makes a table with one row per model: the text alone, and the main comparison."""
    heads = (WITHOUT, WITH, DIFFERENCE, INTERVAL, SPLIT)
    columns = [
        Column("checkpoint"),
        Column(METRICS["text_bits_per_byte"].label, BITS),
        *_make_columns(*heads),
    ]
    table = Table("The checkpoints", _join_notes(heads, report.models[0]), columns)
    for model in report.models:
        text = model.find_row(TEXT)
        bits = text.metrics.bits_per_byte_without if text and text.metrics else None
        main_row = find_main_row(model)
        cells = _format_cells(main_row, heads) if main_row else [None] * len(heads)
        table.rows.append([model.checkpoint, bits, *cells])
    return table


def make_pair_table(report: Report) -> Table:
    """Makes a table with one row per pair of models and arm."""
    note = (
        "Bits per byte, each model over the bytes that it scored, of the documents that both "
        "scored (matched by their text); the difference is second minus first. Better : worse "
        f"counts documents for the second. Holm's p is corrected for {len(report.pairs)}."
    )
    lossy = [model.checkpoint for model in report.models if model.lost_bytes]
    if lossy:
        note += (
            f" The bytes that the tokenizer loses are left out for {', '.join(lossy)}: the models "
            "are then not compared over the same text."
        )

    columns = [
        Column("first"),
        Column("second"),
        Column("shown"),
        Column(DOCUMENTS, COUNT),
        Column("first's", BITS),
        Column("second's", BITS),
        *_make_columns(DIFFERENCE, INTERVAL, SPLIT, SIGN, HOLM),
    ]
    rows: list[list[Cell]] = [
        [
            row.first,
            row.second,
            row.shown,
            row.documents,
            row.bits_per_byte_first,
            row.bits_per_byte_second,
            row.difference,
            _make_interval(row.difference_low, row.difference_high),
            f"{row.documents_better} : {row.documents_worse}",
            row.sign_test_p,
            row.sign_test_p_holm,
        ]
        for row in report.pairs
    ]
    return Table("The models compared with each other", note, columns, rows)


def _make_bin_table(
    model: ModelReport, title: str, by: str, bins: Mapping[str, Mapping[int, PairedMetrics]]
) -> Table:
    """Makes a table of the difference by bin: a row per comparison, a column per bin.

    It includes the controls of the main comparison.

    Args:
        by: What the bins divide the text by, for the note.
        bins: The metrics of each bin by its first byte, by the name of the comparison.
    """
    rows = _select_binned_rows(model)
    all_edges: set[int] = set()
    for row in rows:
        all_edges.update(bins[row.comparison.name])
    edges = sorted(all_edges)

    note = (
        f"Difference in bits per byte, {by}. The documents are those of the first comparison; "
        "intervals are not corrected. evaluation.json has the other controls."
    )
    columns = [Column("comparison")]
    columns += [Column(f"bytes {byte_range}", SIGNED) for byte_range in name_byte_ranges(edges)]
    table = Table(title, note, columns)

    if rows:
        first_bins = bins[rows[0].comparison.name]
        counts = [
            f"{first_bins[edge].documents:,}" if edge in first_bins else NO_VALUE for edge in edges
        ]
        table.rows.append([DOCUMENTS, *counts])
    for row in rows:
        row_bins = bins[row.comparison.name]
        cells = [
            estimate_difference(row_bins[edge]) if edge in row_bins else None for edge in edges
        ]
        table.rows.append([label_row(row), *cells])
    return table


def _select_binned_rows(model: ModelReport) -> list[Row]:
    """Selects the comparisons of two different arms, and the controls of the main comparison."""
    main_row = find_main_row(model)
    control_rows = [
        control.control_row for control in list_controls(model) if control.row is main_row
    ]
    return [row for row in (*rank_rows(model), *control_rows) if row.compares]


def make_slice_table(model: ModelReport) -> Table:
    """Makes the table of the main comparison over each slice."""
    main_row = find_main_row(model)
    description = "text alone"
    name = TEXT
    if main_row is not None:
        description = label_row(main_row)
        name = main_row.comparison.name

    note = f"The comparison shown is: {description}. Intervals are not corrected for their number."
    heads = (DOCUMENTS, BYTES, WITHOUT, WITH, DIFFERENCE, INTERVAL, SPLIT)
    columns = [Column("slice"), Column(""), *_make_columns(*heads)]
    table = Table("By kind of document", note, columns)
    for part, rows in model.slices:
        row = next(row for row in rows if row.comparison.name == name)
        table.rows.append([part.by, part.name, *_format_cells(row, heads)])
    return table


def find_main_row(model: ModelReport) -> Row | None:
    """Returns the comparison that represents the model: `all` if it was made, else the first."""
    return model.find_row("all") or next((row for row in model.rows if row.compares), None)


def label_row(row: Row) -> str:
    """Returns the label of a comparison: its types, and its control if it has one."""
    group = row.comparison.group
    if group == TEXT:
        return "text alone"
    types = label_types(row)
    if group.startswith(AGAINST_PREFIX):
        return f"{types} against {CONTROL_WORDS[group.removeprefix(AGAINST_PREFIX)]}"
    if group in CONTROL_WORDS:
        return f"{types} ({CONTROL_WORDS[group]})"
    return GROUPS[group].format(types)


def label_types(row: Row) -> str:
    """Returns the types of a comparison in words, without its group."""
    subject = row.comparison.subject
    return "all together" if subject == "all" else subject.replace("+", " + ")


def estimate_difference(metrics: PairedMetrics) -> Estimate | float:
    """Returns the difference of a comparison with its interval, if it has one."""
    interval = find_interval(metrics)
    return metrics.difference if interval is None else Estimate(metrics.difference, interval)


def find_simultaneous_interval(metrics: PairedMetrics) -> Interval | None:
    """Returns the interval of the difference that holds for all comparisons at once."""
    return _make_interval(metrics.simultaneous_low, metrics.simultaneous_high)


def find_interval(metrics: PairedMetrics) -> Interval | None:
    """Returns the interval of the difference; None for a single document or host."""
    return _make_interval(metrics.difference_low, metrics.difference_high)


def _make_interval(low: float | None, high: float | None) -> Interval | None:
    if low is None or high is None:
        return None
    return Interval(low, high)


def _format_cells(row: Row, heads: Sequence[str]) -> list[Cell]:
    """Returns the cells of a row under these headings of COLUMNS; None for an empty cell."""
    if row.metrics is None:
        return [0 if head == DOCUMENTS else None for head in heads]

    cells: list[Cell] = []
    for head in heads:
        if row.compares or head in TEXT_COLUMNS:
            cells.append(COLUMNS[head].make_cell(row, row.metrics))
        else:
            cells.append(None)
    return cells
