"""The tables of a study's report, as text cells: for Markdown, HTML, LaTeX and the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from bsmeta.evaluation.tables import NONE, Table
from bsmeta.studies.measured import FLOPS, TEXT, TOKENS, WITH, WITHOUT
from bsmeta.studies.results import (
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    ArmResult,
    Claim,
    Results,
)
from bsmeta.studies.statistics import Estimate, Saving

AT = {TEXT: "at the same text tokens", TOKENS: "at the same tokens in all"}
INTERVALS = (
    "In brackets: 95% intervals over seeds (Student's t) and documents (bootstrap), paired by both."
)


def tables_of(results: Results) -> list[Table]:
    """All tables, in order."""
    found = [arm_table(results), effect_table(results), claim_table(results)]
    return [*found, *gain_tables(results)]


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
    heads = ["arm", "metadata", *AT.values()]
    heads += ["text saved", "tokens saved"]
    note = (
        f"Differences in bits per byte to {base.label}, read from its curve (below 0: fewer bits). "
        "Text saved, tokens saved: 1 - what the arm has used / what the baseline needs for the "
        "same bits per byte (below 0: the arm needs more); a bound (above, below) where the "
        "baseline's curve does not reach them. "
        f"{INTERVALS}"
    )
    table = Table(f"Against {base.label}", note, heads)
    for arm in results.arms.values():
        for mode, by_axis in arm.savings.items():
            cells = [arm.label, mode]
            for axis in (TEXT, TOKENS):
                there = base.curves[WITHOUT][axis].at(arm.amounts[axis])
                cells.append(difference(None if there is None else arm.last(mode) - there))
            cells += [str(by_axis[axis]) for axis in (TEXT, TOKENS)]
            table.rows.append(cells)
    return table


def claim_table(results: Results) -> Table:
    """One row per claim, with its verdict."""
    known = sum(claim.effect is not None for claim in results.claims)
    note = (
        "Each row is the claim that the arm needs fewer bits per byte than the other. The "
        f"intervals hold for all {known} claims at once, at 95%. Supported: all of the interval is "
        "below 0; refuted: all of it is above 0; undecided: it contains 0, or the baseline's curve "
        "does not reach the arm (–)."
    )
    heads = ["arm", "metadata", "fewer bits than", "difference", "all at once", "verdict"]
    table = Table("Claims", note, heads)
    for claim in results.claims:
        cells = [results.arms[claim.arm].label, claim.mode, _other(results, claim)]
        table.rows.append([*cells, *_claim_cells(claim), claim.verdict])
    return table


def claim_words(results: Results, claim: Claim) -> str:
    """A claim as a sentence."""
    label = results.arms[claim.arm].label
    return f"{label}, {claim.mode} metadata: fewer bits than {_other(results, claim)}"


def _other(results: Results, claim: Claim) -> str:
    label = results.arms[claim.other].label
    return label if claim.axis is None else f"{label} {AT[claim.axis]}"


def _claim_cells(claim: Claim) -> list[str]:
    if claim.effect is None:
        return [NONE, NONE]
    return [f"{claim.effect.value:+.4f}", f"{claim.low:+.4f} to {claim.high:+.4f}"]


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


def sentences(results: Results) -> list[str]:
    """The claims that the data decide, and what arms save or cost where the interval says which."""
    found = []
    for verdict in (SUPPORTED, REFUTED):
        for claim in results.claims:
            if claim.verdict == verdict and claim.effect is not None:
                found.append(
                    f"**{verdict.capitalize()}**: {claim_words(results, claim)} "
                    f"({claim.effect.value:+.4f} bits per byte, {claim.low:+.4f} to "
                    f"{claim.high:+.4f})."
                )
    undecided = sum(claim.verdict == UNDECIDED for claim in results.claims)
    found.append(f"**Undecided**: {undecided} of {len(results.claims)} claims (table below).")
    base = results.arms[results.study.baseline]
    for arm in results.arms.values():
        for mode, by_axis in arm.savings.items():
            saving = by_axis[TEXT]
            if saving.low.value > 0 or saving.high.value < 0:
                found.append(f"{arm.label}, {mode} metadata: {saved(base, arm, saving)}")
    return found


def saved(base: ArmResult, arm: ArmResult, saving: Saving) -> str:
    """The data efficiency in a sentence."""
    reach = f"{base.label} reaches its bits per byte after {saving.needed or 0:,.0f} text tokens"
    if saving.needed is None and saving.share.bound == "above":
        within = f"{base.amounts[TEXT]:,.0f} text tokens"
        reach = f"{base.label} does not reach its bits per byte within {within}"
    elif saving.needed is None:
        first = f"{base.curves[WITHOUT][TEXT].amounts[0]:,.0f} text tokens"
        reach = f"{base.label} needs fewer bits per byte already after {first}"
    return f"data saved: {saving}; {reach}, this arm has used {arm.amounts[TEXT]:,.0f}."


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


def markdown_lines(tables: Sequence[Table]) -> list[str]:
    """The tables as Markdown, under headings of the second level."""
    lines: list[str] = []
    for table in tables:
        lines += [f"## {table.title}", "", f"| {' | '.join(table.heads)} |"]
        lines += [
            f"|{'---|' * len(table.heads)}",
            *(f"| {' | '.join(row)} |" for row in table.rows),
        ]
        lines += ["", table.note, ""]
    return lines
