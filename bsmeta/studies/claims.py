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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from bsmeta.report.inference import ALPHA, holm, simultaneous_half_widths
from bsmeta.studies.config import WITH, WITHOUT, ClaimConfig, StudyConfig
from bsmeta.studies.measured import Measured
from bsmeta.studies.statistics import NEAR, Estimate

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
