"""The tables of a report, as text cells: for `evaluation.md`, `report.html` and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bsmeta.evaluation.arms import PROMPT, SHUFFLED, TEXT, WRONG
from bsmeta.evaluation.results import ModelReport, Report, Row
from bsmeta.evaluation.statistics import Figures

NONE = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its title, a note below it, the heads of the columns and the rows."""

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
    SHUFFLED: "{} (shuffled)",
    WRONG: "{} (wrong)",
    PROMPT: "{} (plain English)",
}
HEADS = [
    "comparison",
    "documents",
    "text bytes",
    "without",
    "with",
    "difference",
    "95% interval",
    "better : worse",
    "sign test p",
    "perplexity without",
    "perplexity with",
]
NOTE = (
    "Without and with are bits per byte over the same text bytes; the difference is with minus "
    "without (below 0: metadata helps), its interval a bootstrap over documents. Better : worse "
    "counts documents. Perplexity is per token of the text without metadata."
)


def tables_of(report: Report) -> list[Table]:
    """All tables of a report, in their order."""
    tables = [checkpoint_table(report)] if len(report.models) > 1 else []
    for model in report.models:
        own = [comparison_table(model), position_table(model)]
        own += [slice_table(model)] if model.slices else []
        for table in own:
            title = f"{table.title}: {model.checkpoint}" if len(report.models) > 1 else table.title
            tables.append(Table(title, table.note, table.heads, table.rows))
    return tables


def comparison_table(model: ModelReport) -> Table:
    """One row a comparison."""
    table = Table("Bits per byte with and without metadata", NOTE, HEADS)
    for row in model.rows:
        table.rows.append([label(row), *_cells(row)])
    return table


def checkpoint_table(report: Report) -> Table:
    """One row a model: the text alone, and the main comparison."""
    heads = ["checkpoint", "text alone", *HEADS[3:9]]
    table = Table("The checkpoints", NOTE, heads)
    for model in report.models:
        text, main = model.row(TEXT), main_row(model)
        alone = f"{text.figures.bits_per_byte_without:.4f}" if text and text.figures else NONE
        cells = _cells(main)[2:8] if main else [NONE] * 6
        table.rows.append([model.checkpoint, alone, *cells])
    return table


def position_table(model: ModelReport) -> Table:
    """The difference by position in the document: one row a comparison, one column a bin."""
    compared = [row for row in model.rows if row.compares]
    edges = sorted({one.first_byte for row in compared for one in row.positions})
    heads = ["comparison", *[f"from byte {edge:,}" for edge in edges]]
    note = "Difference in bits per byte, for text that begins so many bytes into its document."
    table = Table("By position in the document", note, heads)
    for row in compared:
        found = {one.first_byte: one.figures for one in row.positions}
        cells = [_difference(found[edge]) if edge in found else NONE for edge in edges]
        table.rows.append([label(row), *cells])
    return table


def slice_table(model: ModelReport) -> Table:
    """The main comparison over each slice."""
    main = main_row(model)
    heads = ["slice", "", *HEADS[1:8]]
    what = label(main) if main else "text alone"
    table = Table("By kind of document", f"The comparison shown is: {what}.", heads)
    for one in model.slices:
        rows = {row.comparison.name: row for row in one.rows}
        row = rows[main.comparison.name if main else TEXT]
        table.rows.append([one.slice.by, one.slice.name, *_cells(row)[:7]])
    return table


def main_row(model: ModelReport) -> Row | None:
    """The comparison that speaks for the model: all together if it was made, else the first."""
    return model.row("all") or next((row for row in model.rows if row.compares), None)


def summary(model: ModelReport) -> str:
    """The main comparison in a sentence."""
    row = main_row(model)
    if row is None or row.figures is None:
        return "No document has metadata to compare with."
    figures = row.figures
    sure = figures.difference_high < 0 or figures.difference_low > 0
    verdict = "fewer" if figures.difference < 0 else "more"
    return (
        f"With metadata ({label(row)}) the model needs {figures.bits_per_byte_with:.4f} bits per "
        f"byte of text, without it {figures.bits_per_byte_without:.4f}: "
        f"{abs(figures.difference):.4f} {verdict} "
        f"(95% interval of the difference: {figures.difference_low:+.4f} to "
        f"{figures.difference_high:+.4f}, over {figures.documents:,} documents"
        f"{'' if sure else ', which includes no difference'})."
    )


def label(row: Row) -> str:
    """What the row compares, in words."""
    group, name = row.comparison.group, row.comparison.name
    if group == TEXT:
        return "text alone"
    what = name.partition("/")[2] or name
    return GROUPS[group].format("all together" if what == "all" else what.replace("+", " + "))


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


def _cells(row: Row) -> list[str]:
    """The cells behind the label, for the columns of HEADS."""
    figures = row.figures
    if figures is None:
        return ["0", *[NONE] * (len(HEADS) - 2)]
    without = [
        f"{figures.documents:,}",
        f"{figures.bytes:,}",
        f"{figures.bits_per_byte_without:.4f}",
    ]
    if not row.compares:
        return [*without, *[NONE] * 5, f"{figures.perplexity_without:,.1f}", NONE]
    return [
        *without,
        f"{figures.bits_per_byte_with:.4f}",
        f"{figures.difference:+.4f}",
        f"{figures.difference_low:+.4f} to {figures.difference_high:+.4f}",
        f"{figures.documents_better} : {figures.documents_worse}",
        f"{figures.sign_test_p:.2g}",
        f"{figures.perplexity_without:,.1f}",
        f"{figures.perplexity_with:,.1f}",
    ]


def _difference(figures: Figures) -> str:
    low, high = figures.difference_low, figures.difference_high
    return f"{figures.difference:+.4f} ({low:+.4f} to {high:+.4f})"


def _escaped(cells: Sequence[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in cells]
