"""From the measurements of a study to its results: curves, effects, savings, gains, claims.

An effect is a difference in bits per byte; below 0, the arm needs fewer bits than what it is
compared with. The baseline is text alone: read from its curve at as many text tokens as the arm was
trained on (the same text), or at as many tokens in all (the same compute).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bsmeta.config.study import StudyConfig
from bsmeta.evaluation.documents import Slice
from bsmeta.studies.measured import AXES, TEXT, TOKENS, WITH, WITHOUT, Measured, load
from bsmeta.studies.measuring import slices_of
from bsmeta.studies.statistics import (
    Curve,
    Estimate,
    Saving,
    saving,
    simultaneous,
)

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"


@dataclass(frozen=True)
class Claim:
    """The claim that an arm needs fewer bits than another, and what the data say to it.

    Attributes:
        arm: The arm.
        mode: How it is used: `with` or `without` metadata.
        other: The arm that it is compared with.
        axis: Of what both have had as much: text tokens or all tokens; None for a control, which
            is compared at the end of the runs.
        effect: The difference in bits per byte; None where the curve of the baseline does not
            reach the arm.
        low, high: The interval that holds for all claims at once.
    """

    arm: str
    mode: str
    other: str
    axis: str | None
    effect: Estimate | None
    low: float = 0.0
    high: float = 0.0

    @property
    def verdict(self) -> str:
        """Supported if all of the interval is below 0, refuted if all of it is above."""
        if self.effect is None or self.low <= 0 <= self.high:
            return UNDECIDED
        return SUPPORTED if self.high < 0 else REFUTED


@dataclass(frozen=True)
class Gain:
    """The effect of an arm over a part of the documents, against the baseline's last checkpoint.

    Attributes:
        by: `length`, `site`, `position` or `type`.
        name: The part.
        documents: Documents in it.
        without, shown: The effect without and with metadata at inference; only without it for an
            arm without metadata; for a type, only with it (alone), against the same model without
            metadata.
    """

    by: str
    name: str
    documents: int
    without: Estimate | None
    shown: Estimate | None


@dataclass(frozen=True)
class ArmResult:
    """The results of an arm.

    Attributes:
        name, label: The arm.
        curves: By mode (`without`; `with`, if it has metadata) and axis.
        savings: By mode and axis, against the baseline; None for the baseline.
        inference: With minus without metadata at the last checkpoint; None if it has none.
        gains: The gain over parts of the documents.
        amounts: By axis: what the arm has used at its last checkpoint.
    """

    name: str
    label: str
    curves: dict[str, dict[str, Curve]]
    savings: dict[str, dict[str, Saving]] = field(default_factory=dict)
    inference: Estimate | None = None
    gains: list[Gain] = field(default_factory=list)
    amounts: dict[str, float] = field(default_factory=dict)

    def last(self, mode: str) -> Estimate:
        """Bits per byte at the last checkpoint."""
        return self.curves[mode][TEXT].points[-1]


@dataclass(frozen=True)
class Results:
    """The results of a study.

    Attributes:
        study: The study.
        seeds: The seeds that all arms have been measured with.
        documents: Held-out documents that all runs were measured on.
        bytes: Their bytes.
        arms: The arms that have been measured, in order.
        claims: The claims and their verdicts.
        notes: What is missing.
    """

    study: StudyConfig
    seeds: list[int]
    documents: int
    bytes: int
    arms: dict[str, ArmResult]
    claims: list[Claim]
    notes: list[str]


def results_of(study: StudyConfig) -> Results:
    """Everything that the report shows.

    Raises:
        DataError: If there is nothing to compare.
    """
    measured, runs, notes = load(study)
    if len(measured.seeds) == 1:
        notes.append("One seed: the intervals say nothing about other seeds.")
    curves = _curves(measured)
    digests, slices = slices_of(study, runs[0])
    base = study.baseline
    arms: dict[str, ArmResult] = {}
    for arm in measured.arms:
        label = study.arms[arm].label or arm
        amounts = {axis: float(curve.amounts[-1]) for axis, curve in curves[arm][WITHOUT].items()}
        arms[arm] = ArmResult(arm, label, curves[arm], amounts=amounts)
    for arm, one in arms.items():
        if arm == base:
            continue
        for mode, by_axis in one.curves.items():
            one.savings[mode] = {
                axis: saving(arms[base].curves[WITHOUT][axis], one.amounts[axis], one.last(mode))
                for axis in by_axis
            }
        gains = list(_gains(measured, base, arm, digests, slices, study.measure.position_edges))
        inference = one.last(WITH) - one.last(WITHOUT) if WITH in one.curves else None
        arms[arm] = replace(one, inference=inference, gains=gains)
    return Results(
        study,
        measured.seeds,
        len(measured.digests),
        int(measured.sizes.sum()),
        arms,
        claims_of(study, arms),
        notes,
    )


def _curves(measured: Measured) -> dict[str, dict[str, dict[str, Curve]]]:
    """By arm, mode and axis."""
    keys, cells = [], []
    for arm in measured.arms:
        for mode in measured.modes(arm):
            for point in range(measured.points(arm)):
                keys.append((arm, mode))
                cells.append(measured.cell(arm, point, mode).sum(2))
    found = measured.bits(cells, [measured.sizes.sum(1)] * len(cells))
    curves: dict[str, dict[str, dict[str, Curve]]] = {}
    for arm in measured.arms:
        amounts = measured.amounts(arm)
        for mode in measured.modes(arm):
            points = [one for key, one in zip(keys, found, strict=True) if key == (arm, mode)]
            own = {axis: Curve(amounts[axis], points) for axis in AXES}
            curves.setdefault(arm, {})[mode] = own
    return curves


def _gains(
    measured: Measured,
    base: str,
    arm: str,
    digests: np.ndarray,
    slices: Sequence[Slice],
    edges: Sequence[int],
) -> Iterator[Gain]:
    """The gains of an arm over parts of the documents, at the last checkpoints."""
    sizes = measured.sizes
    whole = [measured.cell(base, -1, WITHOUT)]
    whole += [measured.cell(arm, -1, mode) for mode in measured.modes(arm)]
    parts: list[tuple[str, str, np.ndarray]] = []
    for one in slices:
        inside = np.isin(measured.digests, digests[one.members])
        parts.append((one.by, one.name, sizes * inside[:, None]))
    for number, edge in enumerate(edges):
        only = np.zeros_like(sizes)
        only[:, number] = sizes[:, number]
        parts.append(("position", f"from byte {edge:,}", only))
    parts = [part for part in parts if part[2].any()]
    cells = [(cell * (own > 0)).sum(2) for _, _, own in parts for cell in whole]
    found = iter(measured.bits(cells, [own.sum(1) for _, _, own in parts for _ in whole]))
    for by, name, own in parts:
        text, without = next(found), next(found)
        shown = next(found) - text if WITH in measured.modes(arm) else None
        yield Gain(by, name, int(own.any(1).sum()), without - text, shown)
    for name, nats in measured.types(arm).items():
        has = ~np.isnan(nats).any(axis=0)
        if has.any():
            sizes_of_type = sizes.sum(1) * has
            cells = [whole[1].sum(2) * has, np.nan_to_num(nats)]
            without, shown = measured.bits(cells, [sizes_of_type] * 2)
            yield Gain("type", name, int(has.sum()), None, shown - without)


def claims_of(study: StudyConfig, arms: dict[str, ArmResult]) -> list[Claim]:
    """The claims about each arm, with intervals that hold for all of them at once."""
    claims = [claim for name in arms for claim in _claims(study, arms, name)]
    known = [claim for claim in claims if claim.effect is not None]
    bounds = iter(simultaneous([one.effect for one in known if one.effect is not None]))
    found = []
    for claim in claims:
        low, high = (0.0, 0.0) if claim.effect is None else next(bounds)
        found.append(replace(claim, low=low, high=high))
    return found


def _claims(study: StudyConfig, arms: dict[str, ArmResult], name: str) -> Iterator[Claim]:
    if name == study.baseline:
        return
    arm, base = arms[name], arms[study.baseline].curves[WITHOUT]
    for mode in arm.curves:
        for axis in (TEXT, TOKENS):
            there = base[axis].at(arm.amounts[axis])
            effect = None if there is None else arm.last(mode) - there
            yield Claim(name, mode, study.baseline, axis, effect)
    for control in arms:
        if study.arms[control].control_of == name:
            for mode in arm.curves:
                yield Claim(name, mode, control, None, arm.last(mode) - arms[control].last(mode))
