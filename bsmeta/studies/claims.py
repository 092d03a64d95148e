"""Decides the declared claims of a study.

A claim says that one reading of the held-out text (an arm, used with or without metadata) needs
fewer bits per byte than another, or that one arm answers the questions of a task better than
another. The difference is paired by seed and by document, or question. Its p-value is corrected by
Holm's procedure for all declared claims of both kinds, including claims that cannot be decided yet.
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

from bsmeta.report.inference import (
    ALPHA,
    Interval,
    compute_simultaneous_half_widths,
    correct_p_values,
)
from bsmeta.studies.config import HOST, WITH, WITHOUT, ClaimConfig, StudyConfig
from bsmeta.studies.power import predict_power
from bsmeta.studies.statistics import AMOUNT_TOLERANCE, Estimate, StudyMeasurements
from bsmeta.studies.task_scores import ScoredRuns, TaskEffect, compute_task_effect
from bsmeta.studies.units import Unit, find_unit

SUPPORTED = "supported"
REFUTED = "refuted"
UNDECIDED = "undecided"
OPEN = "open"


@dataclass(frozen=True)
class Claim:
    """A declared claim and its result.

    Attributes:
        name: Its name in the file of the study.
        config: The claim in the file of the study.
        count: Number of declared claims.
        power: Probability, estimated from the pilot, that the declared seeds support the claim if
            the difference is the smallest of interest; None without a pilot.
        effect: The difference, negative if it is as claimed; None if it has not been measured.
        reason: Why the claim cannot be decided; empty if it can.
        p_value: P-value of the hypothesis of no difference, for this claim alone.
        corrected_p_value: The p-value after Holm's correction for all declared claims.
        low: Lower end of the interval that holds for all declared claims at once.
        high: Upper end of this interval.
        seeds: The seeds, in the order of `effect.seeds`.
        task: The result from the scores, for a claim about a task; otherwise None.
    """

    name: str
    config: ClaimConfig
    count: int
    power: float | None
    effect: Estimate | None
    reason: str
    p_value: float
    corrected_p_value: float
    low: float
    high: float
    seeds: list[int] = field(default_factory=list)
    task: TaskEffect | None = None

    @property
    def unit(self) -> Unit:
        """The unit of the difference."""
        return find_unit(self.config)

    @property
    def verdict(self) -> str:
        """`OPEN` with a reason; `UNDECIDED` above a p-value of 5%; else `SUPPORTED` or `REFUTED`.

        The p-value is the corrected one.
        """
        if self.reason:
            return OPEN
        if self.effect is None or self.corrected_p_value > ALPHA:
            return UNDECIDED
        return SUPPORTED if self.effect.value < 0 else REFUTED

    @property
    def excludes_smallest_difference(self) -> bool:
        """Whether the interval excludes a gain as large as the smallest of interest.

        False for a refuted claim, whose verdict is stronger.
        """
        assert self.config.smallest_difference is not None
        is_small = self.low > -self.config.smallest_difference
        return is_small and self.verdict in (SUPPORTED, UNDECIDED)


def decide_claims(
    study: StudyConfig, measured: StudyMeasurements, scored: ScoredRuns = MappingProxyType({})
) -> list[Claim]:
    """Decides every declared claim.

    Args:
        measured: The measurements of the runs on held-out text.
        scored: The scores of the runs on the downstream tasks.

    Raises:
        DataError: If two runs answered different questions of a task.
    """
    readings = {
        name: _read_claim(study, claim, measured, scored) for name, claim in study.claims.items()
    }
    effects = {
        name: reading.effect
        for name, reading in readings.items()
        if reading.effect is not None and not reading.reason
    }

    # Claims that cannot be decided count in the corrections, too.
    count = len(study.claims)
    sources = [effect.sources for effect in effects.values()]
    half_widths = dict(zip(effects, compute_simultaneous_half_widths(sources, count), strict=True))
    p_values = [effects[name].p_value if name in effects else 1.0 for name in readings]
    corrected_p_values = correct_p_values(p_values)

    claims = []
    for number, (name, reading) in enumerate(readings.items()):
        config = study.claims[name]
        value = reading.effect.value if reading.effect else 0.0
        half_width = half_widths.get(name, math.inf)
        claims.append(
            Claim(
                name=name,
                config=config,
                count=count,
                power=predict_power(config, len(study.seeds), count),
                effect=reading.effect,
                reason=reading.reason,
                p_value=p_values[number],
                corrected_p_value=corrected_p_values[number],
                low=value - half_width,
                high=value + half_width,
                seeds=reading.seeds,
                task=reading.task,
            )
        )
    return claims


@dataclass(frozen=True)
class _Reading:
    """The measured difference of a claim; see `Claim` for the fields."""

    effect: Estimate | None
    reason: str
    seeds: list[int]
    task: TaskEffect | None = None


def _read_claim(
    study: StudyConfig, claim: ClaimConfig, measured: StudyMeasurements, scored: ScoredRuns
) -> _Reading:
    """Reads the difference of a claim from the measurements or the scores."""
    if claim.task:
        task = compute_task_effect(study, claim, scored, measured.cluster)
        return _Reading(task.effect, task.reason, task.seeds, task)

    effect, reason = _compute_effect_of_claim(study, claim, measured)
    return _Reading(effect, reason, measured.seeds)


def _compute_effect_of_claim(
    study: StudyConfig, claim: ClaimConfig, measured: StudyMeasurements
) -> tuple[Estimate | None, str]:
    """Computes the difference of a claim about held-out text.

    Returns:
        The difference (None if it cannot be computed), and the reason why the claim cannot be
        decided (empty if it can).
    """
    pair = replace(claim, against=claim.against or study.baseline)
    effect, reason = _compute_effect_of_pair(pair, measured)
    if effect is None:
        return None, reason

    if claim.minus_arm:
        subtracted_pair = replace(pair, arm=claim.minus_arm, against=claim.minus_against)
        subtracted, reason = _compute_effect_of_pair(subtracted_pair, measured)
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


def _compute_effect_of_pair(
    claim: ClaimConfig, measured: StudyMeasurements
) -> tuple[Estimate | None, str]:
    """Computes the difference between the claim's arm and the arm that it is compared with.

    Returns:
        The difference and "", or None and the reason why it cannot be computed.
    """
    against = claim.against
    for arm in (claim.arm, against):
        if arm not in measured.arms:
            return None, f"{arm} has not been measured"

    has_types = measured.select_documents(claim.arm, claim.metadata)
    has_other_types = measured.select_documents(against, claim.against_metadata)
    is_selected = has_types & has_other_types
    if not is_selected.any():
        return None, "no held-out document has these types"

    checkpoint = measured.find_checkpoint(claim.arm, claim.at)
    amount = float(measured.compute_amounts(claim.arm)[claim.equal][checkpoint])
    other_amount = amount / (1 - claim.saves)
    effect = _compute_difference(claim, measured, other_amount, claim.bytes, is_selected)
    if effect is None:
        trained_on = measured.compute_amounts(against)[claim.equal][-1]
        return None, (
            f"{against} was trained on {trained_on:,.0f} {claim.equal}, not on {other_amount:,.0f}"
        )

    if claim.minus_bytes:
        subtracted = _compute_difference(
            claim, measured, other_amount, claim.minus_bytes, is_selected
        )
        assert subtracted is not None
        effect = effect - subtracted
    return effect, ""


def _compute_difference(
    claim: ClaimConfig,
    measured: StudyMeasurements,
    other_amount: float,
    byte_range: Sequence[int],
    documents: np.ndarray,
) -> Estimate | None:
    """Computes the difference of a pair of arms in bits per byte, over parts of some documents.

    Args:
        other_amount: The amount of training, in units of `claim.equal`, at which the other arm is
            read.
        byte_range: The bytes of each document, as in `ClaimConfig.bytes`.
        documents: bool [documents], whether each document is included.

    Returns:
        The difference; None if the curve of the other arm does not reach the amount.
    """
    bins = measured.select_bins(byte_range)
    checkpoint = measured.find_checkpoint(claim.arm, claim.at)
    bits = measured.estimate(claim.arm, claim.metadata, checkpoint, bins=bins, documents=documents)

    against = claim.against
    metadata = claim.against_metadata
    other_bits: Estimate | None = None
    if metadata in (WITHOUT, WITH):
        curves = measured.estimate_curves(against, metadata, bins=bins, documents=documents)
        other_bits = curves[claim.equal].interpolate_at(other_amount)
    else:  # types are measured at the end of the run only
        last_amount = float(measured.compute_amounts(against)[claim.equal][-1])
        if math.isclose(last_amount, other_amount, rel_tol=AMOUNT_TOLERANCE):
            other_bits = measured.estimate(against, metadata, bins=bins, documents=documents)
    return None if other_bits is None else bits - other_bits


def compute_simultaneous_interval(claim: Claim) -> Interval:
    """Returns the interval that holds for all claims at once, in the claim's unit."""
    return claim.unit.convert_to_unit(Interval(claim.low, claim.high)).interval


def is_over_hosts(claim: Claim) -> bool:
    """Whether the error of a claim decided with `cluster: host` is over hosts.

    It is over questions for a task whose questions have no known host.
    """
    return claim.task is None or claim.task.unit == HOST


def compute_design_effect(effect: Estimate, by_host: Estimate) -> float | None:
    """Computes the design effect of clustering by host (Kish 1965).

    Returns:
        The variance over hosts divided by the variance over documents; None if the effect has no
        error over documents.
    """
    if not effect.document_error:
        return None
    return (by_host.document_error / effect.document_error) ** 2
