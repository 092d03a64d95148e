"""The declared claims of a study: the power to decide them, and what the data say to each.

A claim says that one reading of the held-out text (an arm, used with or without metadata) needs
fewer bits per byte than another. The difference is paired by seed and by document; its p-value is
corrected by Holm's procedure for all declared claims, those included that cannot be decided yet. So
at most 5% of studies without any effect give a verdict. A claim is decided when every declared seed
has been measured, and not before: looking again after each seed would give more false verdicts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from bsmeta.report.inference import ALPHA, Interval, holm, simultaneous_half_widths
from bsmeta.report.page import Cell, Column, Table
from bsmeta.studies.config import WITH, WITHOUT, ClaimConfig, StudyConfig
from bsmeta.studies.statistics import NEAR, Estimate, Measured

if TYPE_CHECKING:
    from bsmeta.studies.results import Results

BITS, SIGNED = "{:.4f}".format, "{:+.4f}".format
NOTHING_DECLARED = "No claim was declared: nothing is tested, and everything below is exploratory."

SUPPORTED, REFUTED, UNDECIDED, OPEN = "supported", "refuted", "undecided", "open"

POWER = 0.8
"""The power that is asked for where a number of seeds, or a difference, is derived from it."""

_NODES = 1000
_MOST_SEEDS = 1000


@dataclass(frozen=True)
class Claim:
    """A declared claim and what the data say to it.

    Attributes:
        name: Its name in the file of the study.
        config: The claim.
        count: Number of declared claims.
        power: Probability that it is supported if the difference is the smallest of interest, at
            the declared seeds, by the pilot; None without a pilot.
        effect: The difference in bits per byte; None if it has not been measured.
        reason: Why it cannot be decided; empty if it can.
        p_value: Of the hypothesis of no difference, for this claim alone.
        corrected: The p-value after Holm's correction for all declared claims.
        low, high: The interval that holds for all declared claims at once.
        amounts: What each side had been trained on, of the claim's `equal`.
    """

    name: str
    config: ClaimConfig
    count: int
    power: float | None
    effect: Estimate | None
    reason: str
    p_value: float = 1.0
    corrected: float = 1.0
    low: float = -math.inf
    high: float = math.inf
    amounts: tuple[float, float] | None = None

    @property
    def verdict(self) -> str:
        """Supported or refuted if the corrected p-value is at most 5%; else undecided, or open."""
        if self.reason:
            return OPEN
        if self.effect is None or self.corrected > ALPHA:
            return UNDECIDED
        return SUPPORTED if self.effect.value < 0 else REFUTED

    @property
    def excludes_interest(self) -> bool:
        """Whether a difference as large as the smallest of interest is excluded."""
        assert self.config.smallest_difference is not None
        return self.verdict == UNDECIDED and self.low > -self.config.smallest_difference


@dataclass(frozen=True)
class _Reading:
    """What is known of a claim by itself: `effect`, `reason` and `amounts` as in `Claim`."""

    effect: Estimate | None
    reason: str = ""
    amounts: tuple[float, float] | None = None


def decide(study: StudyConfig, measured: Measured) -> list[Claim]:
    """The verdict on every declared claim."""
    readings = {name: _read(study, claim, measured) for name, claim in study.claims.items()}
    decided = {
        name: reading.effect
        for name, reading in readings.items()
        if reading.effect is not None and not reading.reason
    }
    p_values = {name: effect.p_value for name, effect in decided.items()}
    halves = simultaneous_half_widths(
        [effect.sources for effect in decided.values()], len(study.claims)
    )
    half_of = dict(zip(decided, halves, strict=True))
    corrected = holm([p_values.get(name, 1.0) for name in readings])
    found = []
    for (name, reading), holm_p in zip(readings.items(), corrected, strict=True):
        config, count = study.claims[name], len(study.claims)
        value = reading.effect.value if reading.effect else 0.0
        half = half_of.get(name, math.inf)
        found.append(
            Claim(
                name=name,
                config=config,
                count=count,
                power=predicted_power(config, len(study.seeds), count),
                effect=reading.effect,
                reason=reading.reason,
                p_value=p_values.get(name, 1.0),
                corrected=holm_p,
                low=value - half,
                high=value + half,
                amounts=reading.amounts,
            )
        )
    return found


def _read(study: StudyConfig, claim: ClaimConfig, measured: Measured) -> _Reading:
    """The difference that a claim is about."""
    against = claim.against or study.baseline
    missing = [arm for arm in (claim.arm, against) if arm not in measured.arms]
    if missing:
        return _Reading(None, f"{missing[0]} has not been measured")
    amount = float(measured.amounts(claim.arm)[claim.equal][measured.point(claim.arm, claim.at)])
    needed = amount / (1 - claim.saves)
    documents = measured.having(claim.arm, claim.metadata)
    documents = documents & measured.having(against, claim.against_metadata)
    if not documents.any():
        return _Reading(None, "no held-out document has these types", (amount, needed))
    effect = _difference(claim, against, measured, needed, claim.bytes, documents)
    if effect is not None and claim.minus_bytes:
        other = _difference(claim, against, measured, needed, claim.minus_bytes, documents)
        assert other is not None
        effect = effect - other
    if effect is None:
        reached = measured.amounts(against)[claim.equal][-1]
        reason = f"{against} was trained on {reached:,.0f} {claim.equal}, not on {needed:,.0f}"
        return _Reading(None, reason, (amount, needed))
    reason = ""
    if len(measured.seeds) < len(study.seeds):
        reason = f"{len(measured.seeds)} of {len(study.seeds)} declared seeds"
    elif len(study.seeds) < 2:
        reason = "one seed, which shows no variation over seeds"
    return _Reading(effect, reason, (amount, needed))


def _difference(
    claim: ClaimConfig,
    against: str,
    measured: Measured,
    needed: float,
    part: Sequence[int],
    documents: np.ndarray,
) -> Estimate | None:
    """The difference over a part of the documents; None where the other curve does not reach it."""
    bins = measured.part(part)
    point = measured.point(claim.arm, claim.at)
    own = measured.estimate(claim.arm, claim.metadata, point, bins=bins, documents=documents)
    if claim.against_metadata in (WITHOUT, WITH):
        curve = measured.curve(
            against, claim.against_metadata, claim.equal, bins=bins, documents=documents
        )
        other = curve.at(needed)
    else:  # types are measured at the end of the run only
        last = float(measured.amounts(against)[claim.equal][-1])
        is_equal = math.isclose(last, needed, rel_tol=NEAR)
        other = (
            measured.estimate(against, claim.against_metadata, bins=bins, documents=documents)
            if is_equal
            else None
        )
    return None if other is None else own - other


def predicted_power(claim: ClaimConfig, seeds: int, count: int) -> float | None:
    """Probability that a claim is supported if its difference is the smallest of interest.

    At the first step of Holm's procedure: where other claims hold as well, it is larger. None if
    `pilot_deviation` is not set.
    """
    if claim.pilot_deviation is None or claim.smallest_difference is None:
        return None
    return power(
        claim.smallest_difference, claim.pilot_deviation, claim.pilot_document_error, seeds, count
    )


@lru_cache(maxsize=1024)
def power(
    difference: float, deviation: float, document_error: float, seeds: int, count: int
) -> float:
    """Probability that a difference is found, as one of `count` claims.

    The test is that of `bsmeta.report.inference`: the distribution of the variance over seeds
    is integrated numerically (without errors over documents, the result is the noncentral t).

    Args:
        difference: The true difference, in absolute value.
        deviation: Standard deviation of the difference over seeds.
        document_error: Standard error of the difference over documents.
        seeds: Number of seeds.
        count: Number of claims.
    """
    if seeds < 2:
        return 0.0
    tail = ALPHA / count / 2
    shares = (np.arange(_NODES) + 0.5) / _NODES
    variance = deviation**2 / seeds
    estimated = variance * chdtri(seeds - 1, shares) / (seeds - 1)
    halves = np.sqrt(
        stdtrit(seeds - 1, tail) ** 2 * estimated + ndtri(tail) ** 2 * document_error**2
    )
    error = math.sqrt(variance + document_error**2)
    return float(ndtr((difference - halves) / error).mean())


def seeds_needed(
    difference: float, deviation: float, document_error: float, count: int
) -> int | None:
    """Seeds with which a difference is found with a power of 80%; None if 1,000 are too few."""
    tried = range(2, _MOST_SEEDS + 1)
    place = bisect_left(
        tried,
        True,
        key=lambda seeds: power(difference, deviation, document_error, seeds, count) >= POWER,
    )
    return tried[place] if place < len(tried) else None


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
