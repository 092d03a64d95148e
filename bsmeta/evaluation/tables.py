"""The tables of a report: what `evaluation.md` and the terminal show, as text cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bsmeta.evaluation.arms import TEXT, Arm
from bsmeta.evaluation.results import Report, Row

TITLES = {
    TEXT: "text alone",
    "all": "all together",
    "each": "each type alone",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its title, a note below it, the heads of the columns and the rows."""

    title: str
    note: str
    heads: list[str]
    rows: list[list[str]] = field(default_factory=list)


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


def comparison_table(report: Report) -> Table:
    """One row a comparison."""
    table = Table("Bits per byte with and without metadata", NOTE, HEADS)
    for row in report.rows:
        table.rows.append([label(row), *_cells(row)])
    return table


def position_table(report: Report) -> Table:
    """The difference by position in the document: one row a comparison, one column a bin."""
    compared = [row for row in report.rows if is_comparison(row)]
    edges = sorted({one.first_byte for row in compared for one in row.positions})
    heads = ["comparison", *[f"from byte {edge:,}" for edge in edges]]
    note = "Difference in bits per byte, for text that begins so many bytes into its document."
    table = Table("By position in the document", note, heads)
    for row in compared:
        found = {one.first_byte: one.figures for one in row.positions}
        cells = [
            f"{found[edge].difference:+.4f} "
            f"[{found[edge].difference_low:+.4f}, {found[edge].difference_high:+.4f}]"
            if edge in found
            else "–"
            for edge in edges
        ]
        table.rows.append([label(row), *cells])
    return table


def is_comparison(row: Row) -> bool:
    """Whether the row compares two arms and found something to compare."""
    return row.figures is not None and row.comparison.group != TEXT


def label(row: Row) -> str:
    """What the row compares, in words."""
    group, name = row.comparison.group, row.comparison.name
    if name == group:
        return TITLES[group]
    return name.partition("/")[2]


def types_of(arm: Arm) -> str:
    """The types of an arm in words."""
    return ", ".join(arm.types) or "no metadata"


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
    figures = row.figures
    if figures is None:
        return ["0", *["–"] * (len(HEADS) - 2)]
    without = [
        f"{figures.documents:,}",
        f"{figures.bytes:,}",
        f"{figures.bits_per_byte_without:.4f}",
    ]
    if not is_comparison(row):
        return [*without, *["–"] * 5, f"{figures.perplexity_without:,.1f}", "–"]
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


def _escaped(cells: Sequence[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in cells]
