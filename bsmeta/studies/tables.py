"""The tables and sentences of a study: the declared claims, and what is exploratory.

Only the tables of the claims test anything.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from bsmeta.report.inference import Interval
from bsmeta.report.page import COUNT, Cell, Column, Table
from bsmeta.studies.claims import POWER, Claim, predicted_power, seeds_needed
from bsmeta.studies.config import FLOPS, TEXT, TOKENS, WITH, WITHOUT, ClaimConfig, StudyConfig

if TYPE_CHECKING:
    from bsmeta.studies.results import Gain, Results

BITS, SIGNED = "{:.4f}".format, "{:+.4f}".format
NOTHING_DECLARED = "No claim was declared: nothing is tested, and everything below is exploratory."

AT = {TEXT: "at the same text tokens", TOKENS: "at the same tokens in all"}
INTERVALS = (
    "In brackets: 95% intervals over seeds (Student's t) and documents (jackknife), paired by "
    "both, each for itself."
)


def claim_tables(results: Results) -> list[Table]:
    """All tables, in order; none if there are no claims."""
    if not results.claims:
        return []
    return [claim_table(results), declared_table(results.study), precision_table(results)]


def declared_table(study: StudyConfig) -> Table:
    """One row per declared claim: what would be found, before anything is measured."""
    seeds, count = len(study.seeds), len(study.claims)
    note = (
        "Pilot: standard deviation over seeds and standard error over documents of the difference. "
        f"Power: probability that the claim is supported, with {seeds} seeds and {count} claims, "
        "if the difference is the smallest of interest."
    )
    columns = [
        Column("claim"), Column("smallest difference", BITS), Column("pilot", str),
        Column("power", "{:.0%}".format), Column("bits per byte of"), Column("minus those of"),
    ]  # fmt: skip
    table = Table("Declared claims", note, columns)
    for claim in study.claims.values():
        power = predicted_power(claim, seeds, count)
        pilot = None
        if claim.pilot_deviation is not None:
            pilot = f"{claim.pilot_deviation:.4f}, {claim.pilot_document_error:.4f}"
        table.rows.append([
            claim.label,
            claim.smallest_difference,
            pilot,
            power,
            *_sides(study, claim),
        ])  # fmt: skip
    return table


def claim_table(results: Results) -> Table:
    """One row per claim, with its verdict."""
    note = (
        "Difference: bits per byte, paired by seed and by document; below 0 as claimed. The first "
        "interval is for the claim alone; the second (Bonferroni) and the p-value (Holm) are "
        f"corrected for all {len(results.claims)} declared claims. Supported, refuted: p ≤ 0.05; "
        "undecided: p > 0.05; open: the claim cannot be decided."
    )
    columns = [
        Column("claim"), Column("difference", SIGNED), Column("95% interval", SIGNED),
        Column("all at once", SIGNED), Column("p", p_words), Column("verdict"),
    ]  # fmt: skip
    table = Table("Claims", note, columns)
    for claim in results.claims:
        table.rows.append([claim.config.label, *_claim_cells(claim), claim.verdict])
    return table


def _claim_cells(claim: Claim) -> list[Cell]:
    effect = claim.effect
    if effect is None:
        return [None, None, None, None]
    own = Interval(effect.low, effect.high)
    if claim.reason:
        return [effect.value, own, None, None]
    return [effect.value, own, Interval(claim.low, claim.high), claim.corrected]


def precision_table(results: Results) -> Table:
    """One row per claim: how precise the study is, and what a larger one would need."""
    note = (
        "Standard deviation of the difference over seeds and its standard error over documents, as "
        f"found here: for the power of a further study. Seeds: for a power of {POWER:.0%} with as "
        "many claims, if the difference is the smallest of interest."
    )
    columns = [
        Column("claim"), Column("deviation over seeds", BITS), Column("error over documents", BITS),
        Column("seeds needed", str),
    ]  # fmt: skip
    table = Table("Precision", note, columns)
    for claim in results.claims:
        cells: list[Cell] = [None, None, None]
        if claim.effect is not None and math.isfinite(claim.effect.deviation):
            spread = (claim.effect.deviation, claim.effect.document_error)
            assert claim.config.smallest_difference is not None
            seeds = seeds_needed(claim.config.smallest_difference, *spread, claim.count)
            needed = "above 1,000" if seeds is None else f"{seeds}"
            cells = [*spread, needed]
        table.rows.append([claim.config.label, *cells])
    return table


def answer(results: Results) -> str:
    """How many claims have which verdict, in one sentence."""
    if not results.claims:
        return NOTHING_DECLARED
    counts = Counter(claim.verdict for claim in results.claims)
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    declared = "claim is" if len(results.claims) == 1 else "claims are"
    return f"{len(results.claims)} {declared} declared: {parts}."


def _sides(study: StudyConfig, claim: ClaimConfig) -> list[str]:
    """Both readings that a claim compares, in words."""
    against = claim.against or study.baseline
    own = _side(study, claim.arm, claim.metadata, claim.at, claim.equal)
    share = min(claim.at / (1 - claim.saves), 1.0)
    other = _side(study, against, claim.against_metadata, share, claim.equal)
    part = _bytes_words(claim.bytes) if claim.bytes or claim.minus_bytes else ""
    if claim.minus_bytes:
        part += f" minus {_bytes_words(claim.minus_bytes)}"
    return [f"{own}, {part}" if part else own, other]


def _side(study: StudyConfig, arm: str, metadata: str, share: float, axis: str) -> str:
    words = [study.arms[arm].label or arm]
    if metadata != WITHOUT:
        words.append("with metadata" if metadata == WITH else f"with {metadata}")
    elif arm != study.baseline:
        words.append("without metadata")
    if share < 1:
        words.append(f"after {share:.0%} of the {axis}")
    return ", ".join(words)


def _bytes_words(part: list[int]) -> str:
    if not part:
        return "all bytes"
    first, *end = part
    return f"bytes {first:,} to {end[0] - 1:,}" if end else f"bytes from {first:,} on"


def sentences(results: Results) -> list[str]:
    """One sentence for each claim."""
    return [_sentence(claim) for claim in results.claims] or [NOTHING_DECLARED]


def _sentence(claim: Claim) -> str:
    words = f"**{claim.verdict.capitalize()}**: {claim.config.label}"
    effect = claim.effect
    if effect is None:
        return f"{words}: {claim.reason}."
    found = (
        f"{effect.value:+.4f} bits per byte, 95% interval {effect.low:+.4f} to {effect.high:+.4f}"
    )
    if claim.reason:
        return f"{words}: {claim.reason}; so far {found}."
    words = (
        f"{words}: {found}; {p_words(claim.corrected)} after correction for {claim.count} claims"
    )
    if claim.excludes_interest:
        words += f"; a gain of {claim.config.smallest_difference} or more is excluded"
    return f"{words}."


def p_words(p_value: float) -> str:
    """A p-value as text."""
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.2g}"


def exploratory_tables(results: Results) -> list[Table]:
    """What the arms reach, beside the baseline and their controls."""
    return [arm_table(results), effect_table(results), control_table(results)]


def arm_table(results: Results) -> Table:
    """One row per arm: what it was trained on, and its bits per byte."""
    note = (
        f"Bits per byte of the same {results.bytes:,} bytes of {results.documents:,} held-out "
        f"documents after training, without and with metadata at inference, as mean of "
        f"{len(results.seeds)} seeds. {INTERVALS}"
    )
    columns = [
        Column("arm"), Column("text tokens", COUNT), Column("all tokens", COUNT),
        Column("FLOPs", "{:.2e}".format), Column("without metadata", BITS),
        Column("with metadata", BITS), Column("with - without", SIGNED),
    ]  # fmt: skip
    table = Table("Bits per byte", note, columns)
    for arm in results.arms.values():
        shown = None if arm.inference is None else arm.last(WITH)
        amounts = [arm.amounts[axis] for axis in (TEXT, TOKENS, FLOPS)]
        table.rows.append([arm.label, *amounts, arm.last(WITHOUT), shown, arm.inference])
    return table


def effect_table(results: Results) -> Table:
    """One row per arm and mode: the difference to the baseline, and what it saves."""
    base = results.arms[results.study.baseline]
    note = (
        f"Differences in bits per byte to {base.label}, read from its curve (below 0: fewer bits). "
        "Text saved, tokens saved: 1 - what the arm has used / what the baseline needs for the "
        "same bits per byte (below 0: the arm needs more); a bound (above, below) where the "
        f"baseline's curve does not reach them. {INTERVALS}"
    )
    columns = [
        Column("arm"), Column("metadata"), *(Column(head, SIGNED) for head in AT.values()),
        Column("text saved", str), Column("tokens saved", str),
    ]  # fmt: skip
    table = Table(f"Against {base.label}", note, columns)
    for arm in results.arms.values():
        for mode, by_axis in arm.savings.items():
            effects = [arm.effects[mode][axis] for axis in (TEXT, TOKENS)]
            saved = [str(by_axis[axis]) for axis in (TEXT, TOKENS)]
            table.rows.append([arm.label, mode, *effects, *saved])
    return table.sorted_by(AT[TEXT])


def control_table(results: Results) -> Table:
    """One row per control and mode: the arm minus its control, at the end of both runs."""
    note = f"Bits per byte of the arm minus those of its control. {INTERVALS}"
    columns = [
        Column("arm"), Column("metadata"), Column("control"), Column("difference", SIGNED)
    ]  # fmt: skip
    table = Table("Against controls", note, columns)
    for arm in results.arms.values():
        for (control, mode), effect in arm.controls.items():
            label = results.arms[control].label
            table.rows.append([arm.label, mode, label, effect])
    return table.sorted_by("difference")


def gain_tables(results: Results) -> list[Table]:
    """For each arm, the gain by length, site and position; and by type."""
    found = []
    for arm in results.arms.values():
        parts = [gain for gain in arm.gains if gain.without is not None]
        types = [gain for gain in arm.gains if gain.by == "type"]
        found += [_part_table(results, arm.label, parts)] if parts else []
        found += [_type_table(arm.label, types)] if types else []
    return found


def _part_table(results: Results, arm: str, gains: list[Gain]) -> Table:
    base = results.arms[results.study.baseline].label
    note = (
        f"Differences in bits per byte between the last checkpoint and that of {base}. "
        "Position: bytes of a document from this one up to the next. Each interval is for "
        f"itself. {INTERVALS}"
    )
    columns = [
        Column("by"), Column("part"), Column("documents", COUNT), Column("used without", SIGNED),
        Column("used with", SIGNED),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [gain.by, gain.name, gain.documents, gain.without, gain.shown] for gain in gains
    ]
    return Table(f"Where {arm} gains", note, columns, rows)


def _type_table(arm: str, gains: list[Gain]) -> Table:
    note = (
        "Bits per byte of the last checkpoint with this type alone, minus those without "
        f"metadata, over the documents that have it. {INTERVALS}"
    )
    columns = [
        Column("type"), Column("documents", COUNT), Column("with - without", SIGNED)
    ]  # fmt: skip
    rows: list[list[Cell]] = [[gain.name, gain.documents, gain.shown] for gain in gains]
    table = Table(f"{arm}: each type at inference", note, columns, rows)
    return table.sorted_by("with - without")
