"""The tables of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bsmeta.metadata.metadata_type import MATCHED, SHUFFLED, WRONG
from bsmeta.report.byte_ranges import byte_ranges
from bsmeta.report.inference import Estimate, Interval
from bsmeta.report.page import COUNT, NONE, Cell, Column, Table
from bsmeta.tasks.causal_lm.arms import AGAINST, FORM, PROMPT, SEPARATOR, TEXT
from bsmeta.tasks.causal_lm.results import ModelReport, PairedMetrics, Report, Row

GROUPS = {
    "all": "{}", "each": "{}", "left_out": "all but {}", "added": "{} added last", "chosen": "{}",
    PROMPT: "{} (plain English)",
}  # fmt: skip
CONTROL_WORDS = {
    SHUFFLED: "shuffled", WRONG: "wrong", MATCHED: "wrong, same length", FORM: "junk words",
    SEPARATOR: "separator alone",
}  # fmt: skip
DOCUMENTS, BYTES, LEFT_OUT, CUT = "documents", "text bytes", "left out", "prefix cut"
LOST = "lost by tokenizer"
WITHOUT, WITH, DIFFERENCE, RELATIVE = "without", "with", "difference", "relative"
INTERVAL, TOGETHER, SPLIT = "95% interval", "all at once", "better : worse"
SIGN, HOLM = "sign test p", "Holm p"
PERPLEXITIES = ("perplexity without", "perplexity with")
BITS, SIGNED, P_VALUE = "{:.4f}".format, "{:+.4f}".format, "{:.2g}".format
PERPLEXITY = "{:,.1f}".format

COLUMNS: dict[str, tuple[Callable[[Any], str], Callable[[Row, PairedMetrics], Cell]]] = {
    DOCUMENTS: (COUNT, lambda row, own: own.documents),
    BYTES: (COUNT, lambda row, own: own.bytes),
    LEFT_OUT: ("{:.1%}".format, lambda row, own: 1 - own.bytes / row.text_bytes),
    LOST: ("{:.1%}".format, lambda row, own: row.lost_bytes / row.text_bytes),
    CUT: ("{:.0%}".format, lambda row, own: row.prefixes_cut / own.documents),
    WITHOUT: (BITS, lambda row, own: own.bits_per_byte_without),
    WITH: (BITS, lambda row, own: own.bits_per_byte_with),
    DIFFERENCE: (SIGNED, lambda row, own: own.difference),
    RELATIVE: ("{:+.2%}".format, lambda row, own: own.relative),
    INTERVAL: (SIGNED, lambda row, own: interval_of(own)),
    TOGETHER: (SIGNED, lambda row, own: all_at_once(own)),
    SPLIT: (str, lambda row, own: f"{own.documents_better} : {own.documents_worse}"),
    SIGN: (P_VALUE, lambda row, own: own.sign_test_p),
    HOLM: (P_VALUE, lambda row, own: own.sign_test_p_holm),
    PERPLEXITIES[0]: (PERPLEXITY, lambda row, own: own.perplexity_without),
    PERPLEXITIES[1]: (PERPLEXITY, lambda row, own: own.perplexity_with),
}
"""The columns of comparisons: the format of each, and its cell in a row with metrics."""

OF_TEXT = (DOCUMENTS, BYTES, LEFT_OUT, LOST, WITHOUT, PERPLEXITIES[0])
"""Columns that the text alone has as well."""

MAIN = (WITHOUT, WITH, DIFFERENCE, INTERVAL, TOGETHER, SPLIT)
DETAILS = (DOCUMENTS, BYTES, LEFT_OUT, LOST, CUT, RELATIVE, SIGN, HOLM, *PERPLEXITIES)
TERMINAL = (DOCUMENTS, BYTES, LEFT_OUT, LOST, CUT, WITHOUT, WITH, DIFFERENCE, INTERVAL, SPLIT)
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
    PERPLEXITIES[0]: "Perplexity is per token of the text without metadata.",
}
"""Explanations of columns."""

OVER_HOSTS = (
    "Intervals are Student's, over hosts (jackknife), and sign tests count hosts; better : worse "
    "counts documents (identical tokens are neither)."
)
"""Explanation of the intervals with `cluster=host`."""


def _columns(*heads: str) -> list[Column]:
    return [Column(head, COLUMNS[head][0]) for head in heads]


def _note(columns: Sequence[str], model: ModelReport) -> str:
    is_by_host = any(row.metrics and row.metrics.hosts is not None for row in model.rows)
    notes = NOTES | {INTERVAL: OVER_HOSTS} if is_by_host else NOTES
    return " ".join(note for column, note in notes.items() if column in columns)


def compared(model: ModelReport) -> int:
    """Number of comparisons that were made, controls included."""
    return sum(row.compares for row in model.rows)


def ranked(model: ModelReport) -> list[Row]:
    """The comparisons without the controls: of each group, the one that helps most first.

    Types that are added one after the other keep their order.
    """
    rows = [row for row in model.rows if row.comparison.group in (TEXT, *GROUPS)]
    groups = list(dict.fromkeys(row.comparison.group for row in rows))

    def place(row: Row) -> tuple[int, float]:
        group = row.comparison.group
        if row.metrics is None or group in (TEXT, "added"):
            return groups.index(group), 0.0
        return groups.index(group), row.metrics.difference

    return sorted(rows, key=place)


def main_tables(report: Report) -> list[Table]:
    """The main tables: the comparisons, each against its controls."""
    tables = [checkpoint_table(report)] if len(report.models) > 1 else []
    tables += [pair_table(report)] if report.pairs else []
    for model in report.models:
        own = [comparison_table(model, MAIN)]
        own += [control_table(model)] if controls_of(model) else []
        tables += _named(own, model, report)
    return tables


def further_tables(report: Report) -> list[Table]:
    """All other tables: more metrics of the comparisons, and where in the text they differ."""
    tables = []
    for model in report.models:
        own = [
            comparison_table(model, DETAILS, "More about each comparison"),
            _bin_table(
                model, "By position in the document",
                "by distance in bytes from the start of the document",
                {row.comparison.name: row.positions for row in model.rows},
            ),
            _bin_table(
                model, "By text seen before", "by the bytes of text before it in its window",
                {row.comparison.name: row.contexts for row in model.rows},
            ),
        ]  # fmt: skip
        own += [slice_table(model)] if model.slices else []
        tables += _named(own, model, report)
    return tables


def _named(tables: Sequence[Table], model: ModelReport, report: Report) -> list[Table]:
    """The tables of a model, whose titles name it if there are several."""
    if len(report.models) == 1:
        return [*tables]
    return [replace(table, title=f"{table.title}: {model.checkpoint}") for table in tables]


def comparison_table(
    model: ModelReport,
    columns: Sequence[str],
    title: str = "Bits per byte with and without metadata",
) -> Table:
    """One row per comparison, without the controls."""
    columns = [column for column in columns if column != LOST or model.lost_bytes]
    count = compared(model)
    note = (
        f"{_note(columns, model)} {count} comparisons were made, controls included: a 95% interval "
        f"holds for one of them, `{TOGETHER}` for all {count} together, and Holm's p is corrected "
        f"for {count}."
    )
    rows = [[label(row), *_cells(row, columns)] for row in ranked(model)]
    return Table(title, note, [Column("comparison"), *_columns(*columns)], rows)


def controls_of(model: ModelReport) -> list[tuple[str, Row, Row, Row]]:
    """The controls of all comparisons: name, and the rows own, control, own against control."""
    rows = {row.comparison.name: row for row in model.rows}
    return [
        (control, own, rows[name], rows[AGAINST + name])
        for own in ranked(model)
        for control in CONTROL_WORDS
        if own.comparison.group in ("all", "each", "chosen")
        and (name := f"{control}/{own.comparison.subject}") in rows
    ]


def control_table(model: ModelReport) -> Table:
    """The effect of the content: each comparison next to its controls."""
    note = (
        "Own and control's are differences to the text alone; own - control compares the two over "
        "the same bytes (below 0: these values help more). Controls: the values of another "
        "document, different and of about the same length; junk words, to about the length of the "
        "document's own prefix in characters; only what closes a prefix. Where a control does as "
        "much as own, it is the form that helps."
    )
    columns = [
        Column("comparison"), Column("control"), Column("own", SIGNED),
        Column("control's", SIGNED), Column("its interval", SIGNED),
        Column("own - control", SIGNED), *_columns(INTERVAL, TOGETHER, HOLM),
    ]  # fmt: skip
    table = Table("Content or form", note, columns)
    for control, own, varied, against in controls_of(model):
        table.rows.append([
            label(own), CONTROL_WORDS[control], *_cells(own, (DIFFERENCE,)),
            *_cells(varied, (DIFFERENCE, INTERVAL)),
            *_cells(against, (DIFFERENCE, INTERVAL, TOGETHER, HOLM)),
        ])  # fmt: skip
    return table


def checkpoint_table(report: Report) -> Table:
    """One row per model: the text alone, and the main comparison."""
    heads = (WITHOUT, WITH, DIFFERENCE, INTERVAL, SPLIT)
    columns = [Column("checkpoint"), Column("text alone", BITS), *_columns(*heads)]
    table = Table("The checkpoints", _note(heads, report.models[0]), columns)
    for model in report.models:
        text, main = model.row(TEXT), main_row(model)
        bits = text.metrics.bits_per_byte_without if text and text.metrics else None
        cells = _cells(main, heads) if main else [None] * len(heads)
        table.rows.append([model.checkpoint, bits, *cells])
    return table


def pair_table(report: Report) -> Table:
    """One row per pair of models and arm."""
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
        Column("first"), Column("second"), Column("shown"), Column(DOCUMENTS, COUNT),
        Column("first's", BITS), Column("second's", BITS),
        *_columns(DIFFERENCE, INTERVAL, SPLIT, SIGN, HOLM),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            row.first, row.second, row.shown, row.documents,
            row.bits_per_byte_first, row.bits_per_byte_second, row.difference,
            _ends(row.difference_low, row.difference_high),
            f"{row.documents_better} : {row.documents_worse}",
            row.sign_test_p, row.sign_test_p_holm,
        ]
        for row in report.pairs
    ]  # fmt: skip
    return Table("The models compared with each other", note, columns, rows)


def _bin_table(
    model: ModelReport, title: str, by: str, bins: Mapping[str, Mapping[int, PairedMetrics]]
) -> Table:
    """The difference in parts of the text: a row per comparison, a column per bin."""
    shown = [row for row in ranked(model) if row.compares]
    main = main_row(model)
    shown += [varied for _, own, varied, _ in controls_of(model) if own is main and varied.compares]
    edges = sorted({edge for row in shown for edge in bins[row.comparison.name]})
    columns = [
        Column("comparison"), *(Column(f"bytes {part}", SIGNED) for part in byte_ranges(edges))
    ]  # fmt: skip
    note = (
        f"Difference in bits per byte, {by}. The documents are those of the first comparison; "
        "intervals are not corrected. evaluation.json has the other controls."
    )
    table = Table(title, note, columns)
    if shown:
        first = bins[shown[0].comparison.name]
        counts = [f"{first[edge].documents:,}" if edge in first else NONE for edge in edges]
        table.rows.append([DOCUMENTS, *counts])
    for row in shown:
        found = bins[row.comparison.name]
        cells = [difference(found[edge]) if edge in found else None for edge in edges]
        table.rows.append([label(row), *cells])
    return table


def slice_table(model: ModelReport) -> Table:
    """The main comparison over each slice."""
    main = main_row(model)
    heads = (DOCUMENTS, BYTES, WITHOUT, WITH, DIFFERENCE, INTERVAL, SPLIT)
    what, shown = (label(main), main.comparison.name) if main else ("text alone", TEXT)
    note = f"The comparison shown is: {what}. Intervals are not corrected for their number."
    columns = [Column("slice"), Column(""), *_columns(*heads)]
    table = Table("By kind of document", note, columns)
    for part, rows in model.slices:
        row = next(row for row in rows if row.comparison.name == shown)
        table.rows.append([part.by, part.name, *_cells(row, heads)])
    return table


def main_row(model: ModelReport) -> Row | None:
    """The comparison that represents the model: `all` if it was made, otherwise the first."""
    return model.row("all") or next((row for row in model.rows if row.compares), None)


def label(row: Row) -> str:
    """Describes what the row compares."""
    group = row.comparison.group
    if group == TEXT:
        return "text alone"
    what = subject(row)
    if group.startswith(AGAINST):
        return f"{what} against {CONTROL_WORDS[group.removeprefix(AGAINST)]}"
    if group in CONTROL_WORDS:
        return f"{what} ({CONTROL_WORDS[group]})"
    return GROUPS[group].format(what)


def subject(row: Row) -> str:
    """The types of a comparison in words, without its group."""
    what = row.comparison.subject
    return "all together" if what == "all" else what.replace("+", " + ")


def difference(metrics: PairedMetrics) -> Estimate | float:
    """The difference of a comparison with its interval, if it has one."""
    ends = interval_of(metrics)
    return metrics.difference if ends is None else Estimate(metrics.difference, ends)


def all_at_once(metrics: PairedMetrics) -> Interval | None:
    """The interval of the difference that holds for all comparisons at once."""
    return _ends(metrics.simultaneous_low, metrics.simultaneous_high)


def interval_of(metrics: PairedMetrics) -> Interval | None:
    """The interval of the difference, if there is more than one document."""
    return _ends(metrics.difference_low, metrics.difference_high)


def _ends(low: float | None, high: float | None) -> Interval | None:
    return None if low is None or high is None else Interval(low, high)


def _cells(row: Row, heads: Sequence[str]) -> list[Cell]:
    """The cells of a row under some of the heads in COLUMNS."""
    if row.metrics is None:
        return [0 if head == DOCUMENTS else None for head in heads]
    return [
        COLUMNS[head][1](row, row.metrics) if row.compares or head in OF_TEXT else None
        for head in heads
    ]
