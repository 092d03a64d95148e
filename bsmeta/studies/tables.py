"""The exploratory tables of a report, as text cells: for Markdown, HTML, LaTeX and the terminal.

None of them tests a claim (`bsmeta.studies.claim_tables` does).
"""

from __future__ import annotations

from collections.abc import Sequence

from bsmeta.config.study import FLOPS, TEXT, TOKENS, WITH, WITHOUT
from bsmeta.evaluation.tables import NONE, Table
from bsmeta.studies.results import Results
from bsmeta.studies.statistics import Estimate

AT = {TEXT: "at the same text tokens", TOKENS: "at the same tokens in all"}
INTERVALS = (
    "In brackets: 95% intervals over seeds (Student's t) and documents (jackknife), paired by "
    "both, each for itself."
)


def exploratory_tables(results: Results) -> list[Table]:
    """All tables, in order."""
    tables = [arm_table(results), effect_table(results), control_table(results)]
    return [table for table in (*tables, *gain_tables(results)) if table.rows]


def arm_table(results: Results) -> Table:
    """One row per arm: what it was trained on, and its bits per byte."""
    heads = ["arm", "text tokens", "all tokens", "FLOPs"]
    heads += ["without metadata", "with metadata", "with - without"]
    note = (
        f"Bits per byte of the same {results.bytes:,} bytes of {results.documents:,} held-out "
        f"documents after training, without and with metadata at inference, as mean of "
        f"{len(results.seeds)} seeds. {INTERVALS}"
    )
    table = Table("Bits per byte", note, heads)
    for arm in results.arms.values():
        table.rows.append([
            arm.label,
            f"{arm.amounts[TEXT]:,.0f}",
            f"{arm.amounts[TOKENS]:,.0f}",
            f"{arm.amounts[FLOPS]:.2e}",
            number(arm.last(WITHOUT)),
            NONE if arm.inference is None else number(arm.last(WITH)),
            difference(arm.inference),
        ])  # fmt: skip
    return table


def effect_table(results: Results) -> Table:
    """One row per arm and mode: the difference to the baseline, and what it saves."""
    base = results.arms[results.study.baseline]
    heads = ["arm", "metadata", *AT.values(), "text saved", "tokens saved"]
    note = (
        f"Differences in bits per byte to {base.label}, read from its curve (below 0: fewer bits). "
        "Text saved, tokens saved: 1 - what the arm has used / what the baseline needs for the "
        "same bits per byte (below 0: the arm needs more); a bound (above, below) where the "
        f"baseline's curve does not reach them. {INTERVALS}"
    )
    table = Table(f"Against {base.label}", note, heads)
    for arm in results.arms.values():
        for mode, by_axis in arm.savings.items():
            cells = [difference(arm.effects[mode][axis]) for axis in (TEXT, TOKENS)]
            cells += [str(by_axis[axis]) for axis in (TEXT, TOKENS)]
            table.rows.append([arm.label, mode, *cells])
    return table


def control_table(results: Results) -> Table:
    """One row per control and mode: the arm minus its control, at the end of both runs."""
    note = f"Bits per byte of the arm minus those of its control. {INTERVALS}"
    table = Table("Against controls", note, ["arm", "metadata", "control", "difference"])
    for arm in results.arms.values():
        for (control, mode), effect in arm.controls.items():
            label = results.arms[control].label
            table.rows.append([arm.label, mode, label, difference(effect)])
    return table


def gain_tables(results: Results) -> list[Table]:
    """For each arm, the gain by length, site and position; and by type."""
    base = results.arms[results.study.baseline].label
    found = []
    for arm in results.arms.values():
        parts = [gain for gain in arm.gains if gain.without is not None]
        if parts:
            note = (
                f"Differences in bits per byte between the last checkpoint and that of {base}. "
                "Position: bytes of a document from this one up to the next. Each interval is for "
                f"itself. {INTERVALS}"
            )
            heads = ["by", "part", "documents", "used without", "used with"]
            rows = [
                [one.by, one.name, f"{one.documents:,}", difference(one.without),
                 difference(one.shown)]
                for one in parts
            ]  # fmt: skip
            found.append(Table(f"Where {arm.label} gains", note, heads, rows))
        types = [gain for gain in arm.gains if gain.by == "type"]
        if types:
            note = (
                "Bits per byte of the last checkpoint with this type alone, minus those without "
                f"metadata, over the documents that have it. {INTERVALS}"
            )
            rows = [[one.name, f"{one.documents:,}", difference(one.shown)] for one in types]
            heads = ["type", "documents", "with - without"]
            found.append(Table(f"{arm.label}: each type at inference", note, heads, rows))
    return found


def number(estimate: Estimate) -> str:
    """Bits per byte with their interval."""
    return f"{estimate.value:.4f} [{estimate.low:.4f} to {estimate.high:.4f}]"


def difference(estimate: Estimate | None) -> str:
    """A difference with its interval."""
    if estimate is None:
        return NONE
    return f"{estimate.value:+.4f} [{estimate.low:+.4f} to {estimate.high:+.4f}]"


def latex(results: Results, command: str) -> str:
    """The effects on the baseline as a LaTeX table (packages booktabs)."""
    table = effect_table(results)
    rows = [" & ".join(map(_escaped, row)) + r" \\" for row in table.rows]
    return "\n".join([
        f"% {command}",
        r"\begin{table}",
        r"\centering\small",
        rf"\begin{{tabular}}{{ll{'r' * (len(table.heads) - 2)}}}",
        r"\toprule",
        " & ".join(map(_escaped, table.heads)) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_escaped(results.study.title)}. {_escaped(table.note)}}}",
        r"\end{table}",
        "",
    ])  # fmt: skip


def _escaped(text: str) -> str:
    for character in "&%#_$":
        text = text.replace(character, f"\\{character}")
    return text.replace("–", "--")


def markdown_lines(tables: Sequence[Table], level: int) -> list[str]:
    """The tables as Markdown, under headings of this level."""
    lines: list[str] = []
    for table in tables:
        lines += [f"{'#' * level} {table.title}", "", f"| {' | '.join(table.heads)} |"]
        lines += [
            f"|{'---|' * len(table.heads)}",
            *(f"| {' | '.join(row)} |" for row in table.rows),
        ]
        lines += ["", table.note, ""]
    return lines
