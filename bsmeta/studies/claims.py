"""The declared claims of a study, and what the data say to each.

A claim says that one reading of the held-out text (an arm, used with or without metadata) needs
fewer bits per byte than another, or that one arm answers the questions of a task better than
another. The difference is paired by seed and by document, or question; its p-value is corrected by
Holm's procedure for all declared claims of both kinds, those included that cannot be decided yet.
So at most 5% of studies without any effect give a verdict. A claim is decided when every declared
seed has been measured, and not before: looking again after each seed would give more false
verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from bsmeta.report.inference import ALPHA, Interval, holm, simultaneous_half_widths
from bsmeta.studies.config import HOST, WITH, WITHOUT, ClaimConfig, StudyConfig
from bsmeta.studies.power import predicted_power
from bsmeta.studies.statistics import NEAR, Estimate, Measured
from bsmeta.studies.task_scores import ScoredRuns, TaskEffect, task_effect
from bsmeta.studies.units import Unit, unit_of

SUPPORTED, REFUTED, UNDECIDED, OPEN = "supported", "refuted", "undecided", "open"


@dataclass(frozen=True)
class Claim:
    """A declared claim and what the data say to it.

    Attributes:
        name: Its name in the file of the study.
        count: Number of declared claims.
        power: Probability that it is supported if the difference is the smallest of interest, at
            the declared seeds, by the pilot; None without a pilot.
        effect: The difference, below 0 as claimed; None if it has not been measured.
        reason: Why it cannot be decided; empty if it can.
        p_value: Of the hypothesis of no difference, for this claim alone.
        corrected: The p-value after Holm's correction for all declared claims.
        low, high: The interval that holds for all declared claims at once.
        seeds: The seeds of the difference, in its order.
        task: What the scores say, for a claim about a task; else None.
    """

    name: str
    config: ClaimConfig
    count: int
    power: float | None
    effect: Estimate | None
    reason: str
    p_value: float
    corrected: float
    low: float
    high: float
    seeds: list[int] = field(default_factory=list)
    task: TaskEffect | None = None

    @property
    def unit(self) -> Unit:
        """The unit of the difference."""
        return unit_of(self.config)

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
        """Whether a difference as large as the smallest of interest is excluded.

        False for a refuted claim, whose verdict says more than that.
        """
        assert self.config.smallest_difference is not None
        is_small = self.low > -self.config.smallest_difference
        return is_small and self.verdict in (SUPPORTED, UNDECIDED)


def decide(
    study: StudyConfig, measured: Measured, scored: ScoredRuns = MappingProxyType({})
) -> list[Claim]:
    """The verdict on every declared claim.

    Args:
        scored: The scores of the runs on the downstream tasks.

    Raises:
        DataError: If two runs answered different questions of a task.
    """
    count, seeds = len(study.claims), len(study.seeds)
    read = {name: _read(study, claim, measured, scored) for name, claim in study.claims.items()}
    decided = {
        name: reading.effect
        for name, reading in read.items()
        if reading.effect is not None and not reading.reason
    }
    sources = [effect.sources for effect in decided.values()]
    halves = dict(zip(decided, simultaneous_half_widths(sources, count), strict=True))
    p_values = [decided[name].p_value if name in decided else 1.0 for name in read]
    found = []
    for name, p_value, corrected in zip(read, p_values, holm(p_values), strict=True):
        config, reading = study.claims[name], read[name]
        effect, half = reading.effect, halves.get(name, math.inf)
        value = effect.value if effect else 0.0
        found.append(
            Claim(
                name, config, count, predicted_power(config, seeds, count), effect, reading.reason,
                p_value, corrected, value - half, value + half, reading.seeds, reading.task,
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class _Reading:
    """The difference that a claim is about, why it cannot be decided, and its seeds."""

    effect: Estimate | None
    reason: str
    seeds: list[int]
    task: TaskEffect | None = None


def _read(
    study: StudyConfig, claim: ClaimConfig, measured: Measured, scored: ScoredRuns
) -> _Reading:
    """What the measurements, or the scores, say to a claim."""
    if claim.task:
        task = task_effect(study, claim, scored, measured.cluster)
        return _Reading(task.effect, task.reason, task.seeds, task)
    return _Reading(*_effect(study, claim, measured), measured.seeds)


def _effect(
    study: StudyConfig, claim: ClaimConfig, measured: Measured
) -> tuple[Estimate | None, str]:
    """The difference that a claim is about, by itself, and why it cannot be decided."""
    compared = replace(claim, against=claim.against or study.baseline)
    effect, reason = _effect_of_pair(compared, measured)
    if effect is None:
        return None, reason
    if claim.minus_arm:
        others = replace(compared, arm=claim.minus_arm, against=claim.minus_against)
        subtracted, reason = _effect_of_pair(others, measured)
        if subtracted is None:
            return None, reason
        effect = effect - subtracted
    if len(measured.seeds) < len(study.seeds):
        return effect, f"{len(measured.seeds)} of {len(study.seeds)} declared seeds"
    if len(study.seeds) < 2:
        return effect, "one seed, which shows no variation over seeds"
    if measured.cluster == HOST and not measured.hosts:
        return effect, "the host of no held-out document is known (cluster: host)"
    if measured.cluster == HOST and effect.units < 2:
        return effect, "documents of one host, which show no variation over hosts"
    return effect, ""


def _effect_of_pair(claim: ClaimConfig, measured: Measured) -> tuple[Estimate | None, str]:
    """The difference between the claim's arm and the one that it is compared with.

    Returns:
        None and the reason, where it cannot be computed.
    """
    against = claim.against
    missing = [arm for arm in (claim.arm, against) if arm not in measured.arms]
    if missing:
        return None, f"{missing[0]} has not been measured"
    amount = float(measured.amounts(claim.arm)[claim.equal][measured.point(claim.arm, claim.at)])
    needed = amount / (1 - claim.saves)
    documents = measured.having(claim.arm, claim.metadata)
    documents = documents & measured.having(against, claim.against_metadata)
    if not documents.any():
        return None, "no held-out document has these types"
    effect = _difference(claim, against, measured, needed, claim.bytes, documents)
    if effect is None:
        reached = measured.amounts(against)[claim.equal][-1]
        return None, f"{against} was trained on {reached:,.0f} {claim.equal}, not on {needed:,.0f}"
    if claim.minus_bytes:
        other = _difference(claim, against, measured, needed, claim.minus_bytes, documents)
        assert other is not None
        effect = effect - other
    return effect, ""


def _difference(
    claim: ClaimConfig, against: str, measured: Measured, needed: float, part: Sequence[int],
    documents: np.ndarray,
) -> Estimate | None:  # fmt: skip
    """The difference over a part of the documents; None where the other curve does not reach it."""
    bins, point = measured.part(part), measured.point(claim.arm, claim.at)
    own = measured.estimate(claim.arm, claim.metadata, point, bins=bins, documents=documents)
    other: Estimate | None = None
    if claim.against_metadata in (WITHOUT, WITH):
        curves = measured.curves(against, claim.against_metadata, bins=bins, documents=documents)
        other = curves[claim.equal].at(needed)
    else:  # types are measured at the end of the run only
        last = float(measured.amounts(against)[claim.equal][-1])
        if math.isclose(last, needed, rel_tol=NEAR):
            metadata = claim.against_metadata
            other = measured.estimate(against, metadata, bins=bins, documents=documents)
    return None if other is None else own - other


def shown_at_once(claim: Claim) -> Interval:
    """The interval that holds for all claims at once, with the difference's own sign."""
    return claim.unit.shown(Interval(claim.low, claim.high)).interval


def is_over_hosts(claim: Claim) -> bool:
    """Whether hosts are the units of a claim decided with `cluster: host`.

    They are not for a task whose questions have no host that is known.
    """
    return claim.task is None or claim.task.unit == HOST


def error_ratio(effect: Estimate, by_host: Estimate) -> float | None:
    """Squared standard error over hosts / over documents; None without an error over documents."""
    if not effect.document_error:
        return None
    return (by_host.document_error / effect.document_error) ** 2
