"""The tables of a report, as text cells: for `evaluation.md`, `report.html` and the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bsmeta.evaluation.arms import AGAINST, FORM, PROMPT, SEPARATOR, TEXT
from bsmeta.evaluation.results import ModelReport, PositionBin, Report, Row
from bsmeta.evaluation.statistics import PairedMetrics, rough_intervals
from bsmeta.metadata.sampling import MATCHED, SHUFFLED, WRONG

NONE = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its title, a note below it, the column headers and the rows."""

    title: str
    note: str
    heads: list[str]
    rows: list[list[str]] = field(default_factory=list)


GROUPS = {
    "all": "{}",
    "each": "{}",
    "left_out": "all but {}",
    "added": "{} added last",
    "chosen": "{}",
    PROMPT: "{} (plain English)",
}
CONTROL_WORDS = {
    SHUFFLED: "shuffled",
    WRONG: "wrong",
    MATCHED: "wrong, same length",
    FORM: "junk words",
    SEPARATOR: "separator alone",
}

DOCUMENTS, BYTES, LEFT_OUT, CUT = "documents", "text bytes", "left out", "prefix cut"
WITHOUT, WITH, DIFFERENCE, RELATIVE = "without", "with", "difference", "relative"
INTERVAL, TOGETHER, SPLIT = "95% interval", "all at once", "better : worse"
SIGN, HOLM = "sign test p", "Holm p"
COLUMNS = [
    DOCUMENTS, BYTES, LEFT_OUT, CUT, WITHOUT, WITH, DIFFERENCE, RELATIVE, INTERVAL, TOGETHER, SPLIT,
    SIGN, HOLM, "perplexity without", "perplexity with",
]  # fmt: skip
NOTE = (
    "Without and with are bits per byte over the same text bytes; the difference is with minus "
    "without (below 0: metadata helps). Left out: share of the text bytes that one side cannot "
    "score (the first token; tokens that share characters with a tag). Prefix cut: share of the "
    "documents with a prefix longer than allowed. Intervals are bootstraps over documents; better "
    ": worse counts documents (identical tokens are neither)."
)
PERPLEXITY_NOTE = " Perplexity is per token of the text without metadata."


def family_note(model: ModelReport) -> str:
    """A note on the number of comparisons and on the columns that are corrected for it."""
    count = sum(row.compares for row in model.rows)
    return (
        f"{count} comparisons were made, controls included: a 95% interval holds for one of them, "
        f"`{TOGETHER}` for all {count} together, and Holm's p is corrected for {count}."
    )


def tables_of(report: Report) -> list[Table]:
    """All tables of a report, in order."""
    tables = [checkpoint_table(report)] if len(report.models) > 1 else []
    tables += [pair_table(report)] if report.pairs else []
    for model in report.models:
        own = [comparison_table(model)]
        own += [control_table(model)] if controls_of(model) else []
        own += [position_table(model), context_table(model)]
        own += [slice_table(model)] if model.slices else []
        for table in own:
            title = f"{table.title}: {model.checkpoint}" if len(report.models) > 1 else table.title
            tables.append(Table(title, table.note, table.heads, table.rows))
    return tables


def comparison_table(model: ModelReport, columns: Sequence[str] = COLUMNS) -> Table:
    """One row per comparison, without the controls."""
    note = NOTE + (PERPLEXITY_NOTE if columns is COLUMNS else "") + " " + family_note(model)
    table = Table("Bits per byte with and without metadata", note, ["comparison", *columns])
    for row in model.rows:
        if row.comparison.group in (TEXT, *GROUPS):
            cells = _cells(row)
            table.rows.append([label(row), *(cells[head] for head in columns)])
    return table


def controls_of(model: ModelReport) -> list[tuple[str, Row, Row, Row]]:
    """The controls of all comparisons: name, and the rows own, control, own against control."""
    rows = {row.comparison.name: row for row in model.rows}
    return [
        (control, own, rows[f"{control}/{rest}"], rows[f"{AGAINST}{control}/{rest}"])
        for own in model.rows
        for control in CONTROL_WORDS
        if own.comparison.group in ("all", "each", "chosen")
        and f"{control}/{(rest := own.comparison.name.partition('/')[2] or own.comparison.name)}"
        in rows
    ]


def control_table(model: ModelReport) -> Table:
    """The effect of the content: each comparison next to its controls."""
    heads = ["comparison", "control", "own", "control's", "its interval"]
    heads += ["own - control", INTERVAL, TOGETHER, HOLM]
    note = (
        "Own and control's are differences to the text alone; own - control compares the two over "
        "the same bytes (below 0: these values help more). Controls: the values of another "
        "document, different and of about the same length; as many junk words; only what closes "
        "a prefix. Where a control does as much as own, it is the form that helps."
    )
    table = Table("Content or form", note, heads)
    for control, own, varied, against in controls_of(model):
        cells = [_cells(row) for row in (own, varied, against)]
        table.rows.append(
            [
                label(own),
                CONTROL_WORDS[control],
                cells[0][DIFFERENCE],
                cells[1][DIFFERENCE],
                cells[1][INTERVAL],
                cells[2][DIFFERENCE],
                cells[2][INTERVAL],
                cells[2][TOGETHER],
                cells[2][HOLM],
            ]
        )
    return table


def checkpoint_table(report: Report) -> Table:
    """One row per model: the text alone, and the main comparison."""
    columns = [WITHOUT, WITH, DIFFERENCE, INTERVAL, SPLIT]
    table = Table("The checkpoints", NOTE, ["checkpoint", "text alone", *columns])
    for model in report.models:
        text, main = model.row(TEXT), main_row(model)
        alone = f"{text.metrics.bits_per_byte_without:.4f}" if text and text.metrics else NONE
        cells = _cells(main) if main else dict.fromkeys(columns, NONE)
        table.rows.append([model.checkpoint, alone, *(cells[head] for head in columns)])
    return table


def pair_table(report: Report) -> Table:
    """One row per pair of models and arm."""
    heads = ["first", "second", "shown", DOCUMENTS, "first's", "second's", DIFFERENCE, INTERVAL]
    note = (
        "Bits per byte, each model over the bytes that it scored, of the documents that both "
        "scored (matched by their text); the difference is second minus first. Better : worse "
        f"counts documents for the second. Holm's p is corrected for {len(report.pairs)}."
    )
    table = Table("The models compared with each other", note, [*heads, SPLIT, SIGN, HOLM])
    for row in report.pairs:
        table.rows.append(
            [
                row.first,
                row.second,
                row.shown,
                f"{row.documents:,}",
                f"{row.bits_per_byte_first:.4f}",
                f"{row.bits_per_byte_second:.4f}",
                f"{row.difference:+.4f}",
                interval(row.difference_low, row.difference_high),
                f"{row.documents_better} : {row.documents_worse}",
                f"{row.sign_test_p:.2g}",
                f"{row.sign_test_p_holm:.2g}",
            ]
        )
    return table


def position_table(model: ModelReport) -> Table:
    """The difference by position in the document: a row per comparison, a column per bin."""
    note = "Difference in bits per byte, by distance in bytes from the start of the document."
    bins = {row.comparison.name: row.positions for row in model.rows}
    return _bin_table(model, "By position in the document", note, bins)


def context_table(model: ModelReport) -> Table:
    """The difference by the amount of preceding text in the same window."""
    note = "Difference in bits per byte, by the bytes of text before it in its window."
    bins = {row.comparison.name: row.contexts for row in model.rows}
    return _bin_table(model, "By text seen before", note, bins)


def _bin_table(
    model: ModelReport, title: str, note: str, bins: Mapping[str, Sequence[PositionBin]]
) -> Table:
    compared = [row for row in model.rows if row.compares]
    edges = sorted({bin_.first_byte for row in compared for bin_ in bins[row.comparison.name]})
    heads = ["comparison", *[f"from byte {edge:,}" for edge in edges]]
    note += " The documents are those of the first comparison; intervals are not corrected."
    table = Table(title, note, heads)
    for number, row in enumerate(compared):
        found = {bin_.first_byte: bin_.metrics for bin_ in bins[row.comparison.name]}
        if number == 0:
            counts = [f"{found[edge].documents:,}" if edge in found else NONE for edge in edges]
            table.rows.append([DOCUMENTS, *counts])
        cells = [_difference(found[edge]) if edge in found else NONE for edge in edges]
        table.rows.append([label(row), *cells])
    return table


def slice_table(model: ModelReport) -> Table:
    """The main comparison over each slice."""
    main = main_row(model)
    columns = [DOCUMENTS, BYTES, WITHOUT, WITH, DIFFERENCE, INTERVAL, SPLIT]
    what = label(main) if main else "text alone"
    note = f"The comparison shown is: {what}. Intervals are not corrected for their number."
    table = Table("By kind of document", note, ["slice", "", *columns])
    for part in model.slices:
        rows = {row.comparison.name: row for row in part.rows}
        cells = _cells(rows[main.comparison.name if main else TEXT])
        table.rows.append([part.slice.by, part.slice.name, *(cells[head] for head in columns)])
    return table


def main_row(model: ModelReport) -> Row | None:
    """The comparison that represents the model: `all` if it was made, otherwise the first."""
    return model.row("all") or next((row for row in model.rows if row.compares), None)


def summary(model: ModelReport) -> str:
    """The result of the main comparison in a sentence."""
    row = main_row(model)
    if row is None or row.metrics is None:
        return "No document has metadata to compare with."
    metrics = row.metrics
    low, high = metrics.difference_low, metrics.difference_high
    if low is None or high is None:
        sure = "over one document, so there is no interval"
    else:
        sure = (
            f"95% interval of the difference: {low:+.4f} to {high:+.4f}, "
            f"over {metrics.documents:,} documents"
            + ("" if high < 0 or low > 0 else ", which includes no difference")
        )
    rough = [] if low is None else rough_intervals(metrics.documents, "documents")
    verdict = "fewer" if metrics.difference < 0 else "more"
    sentence = (
        f"With metadata ({label(row)}) the model needs {metrics.bits_per_byte_with:.4f} bits per "
        f"byte of text, without it {metrics.bits_per_byte_without:.4f}: "
        f"{abs(metrics.difference):.4f} ({abs(metrics.relative):.2%}) {verdict} ({sure})."
    )
    return " ".join([sentence, *rough])


def label(row: Row) -> str:
    """Describes what the row compares."""
    group, name = row.comparison.group, row.comparison.name
    if group == TEXT:
        return "text alone"
    what = name.partition("/")[2] or name
    what = "all together" if what == "all" else what.replace("+", " + ")
    if group.startswith(AGAINST):
        return f"{what} against {CONTROL_WORDS[group.removeprefix(AGAINST)]}"
    if group in CONTROL_WORDS:
        return f"{what} ({CONTROL_WORDS[group]})"
    return GROUPS[group].format(what)


def markdown(tables: Sequence[Table]) -> str:
    """The tables in GitHub's Markdown."""
    parts = []
    for table in tables:
        lines = [f"## {table.title}", ""]
        lines.append("| " + " | ".join(table.heads) + " |")
        lines.append("|---" + "|---:" * (len(table.heads) - 1) + "|")
        lines += ["| " + " | ".join(_escaped(row)) + " |" for row in table.rows]
        parts.append("\n".join([*lines, "", table.note]))
    return "\n\n".join(parts)


def _cells(row: Row) -> dict[str, str]:
    """The cells of a row by the names in COLUMNS."""
    metrics = row.metrics
    cells = dict.fromkeys(COLUMNS, NONE)
    if metrics is None:
        return {**cells, DOCUMENTS: "0"}
    cells |= {
        DOCUMENTS: f"{metrics.documents:,}",
        BYTES: f"{metrics.bytes:,}",
        WITHOUT: f"{metrics.bits_per_byte_without:.4f}",
        "perplexity without": f"{metrics.perplexity_without:,.1f}",
    }
    if row.text_bytes:
        cells[LEFT_OUT] = f"{row.left_out:.1%}"
    if not row.compares:
        return cells
    p = metrics.sign_test_p_holm
    return cells | {
        CUT: f"{row.prefixes_cut / metrics.documents:.0%}",
        WITH: f"{metrics.bits_per_byte_with:.4f}",
        DIFFERENCE: f"{metrics.difference:+.4f}",
        RELATIVE: f"{metrics.relative:+.2%}",
        INTERVAL: interval(metrics.difference_low, metrics.difference_high),
        TOGETHER: interval(metrics.simultaneous_low, metrics.simultaneous_high),
        SPLIT: f"{metrics.documents_better} : {metrics.documents_worse}",
        SIGN: f"{metrics.sign_test_p:.2g}",
        HOLM: NONE if p is None else f"{p:.2g}",
        "perplexity with": f"{metrics.perplexity_with:,.1f}",
    }


def interval(low: float | None, high: float | None) -> str:
    """Both ends as text, or a dash if there is no interval."""
    return NONE if low is None or high is None else f"{low:+.4f} to {high:+.4f}"


def _difference(metrics: PairedMetrics) -> str:
    ends = interval(metrics.difference_low, metrics.difference_high)
    return f"{metrics.difference:+.4f}" + (f" ({ends})" if ends != NONE else "")


def _escaped(cells: Sequence[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in cells]
