"""The declared claims of a study as tables and sentences: the prediction, and what was found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bsmeta.config.study import WITH, WITHOUT, ClaimConfig, StudyConfig
from bsmeta.evaluation.tables import NONE, Table
from bsmeta.studies.claims import POWER, Claim, predicted_power, seeds_needed

if TYPE_CHECKING:
    from bsmeta.studies.results import Results

NOTHING_DECLARED = "No claim was declared: nothing is tested, and everything below is exploratory."


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
    heads = ["claim", "smallest difference", "pilot", "power", "bits per byte of", "minus those of"]
    table = Table("Declared claims", note, heads)
    for claim in study.claims.values():
        power = predicted_power(claim, seeds, count)
        pilot = NONE
        if claim.pilot_deviation is not None:
            pilot = f"{claim.pilot_deviation:.4f}, {claim.pilot_document_error:.4f}"
        table.rows.append([
            claim.label,
            f"{claim.smallest_difference:.4f}",
            pilot,
            NONE if power is None else f"{power:.0%}",
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
    heads = ["claim", "difference", "95% interval", "all at once", "p", "verdict"]
    table = Table("Claims", note, heads)
    for claim in results.claims:
        table.rows.append([claim.config.label, *_claim_cells(claim), claim.verdict])
    return table


def _claim_cells(claim: Claim) -> list[str]:
    effect = claim.effect
    if effect is None:
        return [NONE, NONE, NONE, NONE]
    own = f"{effect.low:+.4f} to {effect.high:+.4f}"
    if claim.reason:
        return [f"{effect.value:+.4f}", own, NONE, NONE]
    at_once = f"{claim.low:+.4f} to {claim.high:+.4f}"
    return [f"{effect.value:+.4f}", own, at_once, p_words(claim.corrected)]


def precision_table(results: Results) -> Table:
    """One row per claim: how precise the study is, and what a larger one would need."""
    note = (
        "Standard deviation of the difference over seeds and its standard error over documents, as "
        f"found here: for the power of a further study. Seeds: for a power of {POWER:.0%} with as "
        "many claims, if the difference is the smallest of interest."
    )
    heads = ["claim", "deviation over seeds", "error over documents", "seeds needed"]
    table = Table("Precision", note, heads)
    for claim in results.claims:
        cells = [NONE, NONE, NONE]
        if claim.effect is not None and math.isfinite(claim.effect.deviation):
            spread = (claim.effect.deviation, claim.effect.document_error)
            assert claim.config.smallest_difference is not None
            seeds = seeds_needed(claim.config.smallest_difference, *spread, claim.count)
            needed = "above 1,000" if seeds is None else f"{seeds}"
            cells = [f"{spread[0]:.4f}", f"{spread[1]:.4f}", needed]
        table.rows.append([claim.config.label, *cells])
    return table


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
