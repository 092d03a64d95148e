"""From the measurements of a study to its results: curves, effects, savings, gains, claims.

An effect is a difference in bits per byte; below 0, the arm needs fewer bits than what it is
compared with. The baseline is text alone: read from its curve at as many text tokens as the arm was
trained on (the same text), or at as many tokens in all (the same compute).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from bsmeta.config.errors import DataError
from bsmeta.config.study import StudyConfig
from bsmeta.evaluation.slices import Slice
from bsmeta.studies.measuring import Measurement, measure_path, measured_steps, slices_of
from bsmeta.studies.runs import Run, runs_of
from bsmeta.studies.statistics import (
    Curve,
    Estimate,
    Resampler,
    Saving,
    common,
    saving,
    simultaneous,
)

WITHOUT, WITH = "without", "with"
TEXT, TOKENS, FLOPS = "text tokens", "all tokens", "FLOPs"
AXES = (TEXT, TOKENS, FLOPS)

SUPPORTED, NOT_SUPPORTED, UNDECIDED = "supported", "not supported", "undecided"


@dataclass(frozen=True)
class Claim:
    """A claim that an effect is below 0, and what the data say to it.

    Attributes:
        arm: The arm that it is about.
        words: The claim.
        effect: The difference in bits per byte; None where the curve of the baseline does not
            reach the arm.
        low, high: The interval that holds for all claims at once.
    """

    arm: str
    words: str
    effect: Estimate | None
    low: float = 0.0
    high: float = 0.0

    @property
    def verdict(self) -> str:
        """Supported if all of the interval is below 0, not supported if all of it is above."""
        if self.effect is None or self.low <= 0 <= self.high:
            return UNDECIDED
        return SUPPORTED if self.high < 0 else NOT_SUPPORTED


@dataclass(frozen=True)
class Gain:
    """The effect of an arm over a part of the documents, against the baseline's last checkpoint.

    Attributes:
        by: `length`, `site`, `position` or `type`.
        name: The part.
        documents: Documents in it.
        without, shown: The effect without and with metadata at inference; for a type, only with it
            (alone), against the same model without metadata.
    """

    by: str
    name: str
    documents: int
    without: Estimate | None
    shown: Estimate


@dataclass(frozen=True)
class ArmResult:
    """The results of an arm.

    Attributes:
        name, label: The arm.
        curves: By mode (`without`, `with`) and axis.
        savings: By mode and axis, against the baseline; None for the baseline.
        inference: With minus without metadata at the last checkpoint; None without metadata.
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


class Measured:
    """The measurements of all arms, over the same documents and seeds.

    Args:
        study: The study.
        found: The measurements of each run, in the order of their steps; all have equally many.

    Attributes:
        seeds: The seeds.
        digests: The hash of each document.
    """

    def __init__(self, study: StudyConfig, found: dict[tuple[str, int], list[Measurement]]) -> None:
        self.seeds = sorted({seed for _, seed in found})
        self.arms = [arm for arm in study.arms if (arm, self.seeds[0]) in found]
        self._resampler = Resampler(study.measure.resamples, study.measure.seed)
        every = [one for checkpoints in found.values() for one in checkpoints]
        places = iter(common([one.digests for one in every]))
        self._found = {
            key: [(one, next(places)) for one in checkpoints] for key, checkpoints in found.items()
        }
        first, own = self._found[self.arms[0], self.seeds[0]][-1]
        self.digests, self.sizes = first.digests[own], first.sizes[own]

    def cell(self, arm: str, point: int, mode: str) -> np.ndarray:
        """Nats of a checkpoint: float64 [seeds, documents, bins]."""
        return np.stack([
            (one.without if mode == WITHOUT else one.shown)[own]
            for one, own in (self._found[arm, seed][point] for seed in self.seeds)
        ])  # fmt: skip

    def types(self, arm: str) -> dict[str, np.ndarray]:
        """Nats of the last checkpoint with each type alone: float64 [seeds, documents]."""
        last = [self._found[arm, seed][-1] for seed in self.seeds]
        names = [name for name in last[0][0].types if all(name in one.types for one, _ in last)]
        return {name: np.stack([one.types[name][own] for one, own in last]) for name in names}

    def points(self, arm: str) -> int:
        """Number of checkpoints."""
        return len(self._found[arm, self.seeds[0]])

    def amounts(self, arm: str) -> dict[str, np.ndarray]:
        """By axis: what was used up to each checkpoint (geometric mean over seeds)."""
        runs = [[one for one, _ in self._found[arm, seed]] for seed in self.seeds]
        by_axis = {TEXT: "targets", TOKENS: "tokens", FLOPS: "flops"}
        return {
            axis: np.exp(np.mean([[np.log(getattr(one, name)) for one in run] for run in runs], 0))
            for axis, name in by_axis.items()
        }

    def bits(self, cells: Sequence[np.ndarray], sizes: Sequence[np.ndarray]) -> list[Estimate]:
        """Bits per byte of cells [seeds, documents], each over its own bytes [documents]."""
        return self._resampler.bits_per_byte(np.stack(cells), np.stack(sizes))


def load(study: StudyConfig) -> tuple[Measured, list[Run], list[str]]:
    """The measurements that can be compared, the runs that they are of, and what is missing.

    Raises:
        DataError: If the baseline, or everything else, has no seed that has been measured.
    """
    found: dict[tuple[str, int], list[Measurement]] = {}
    runs = runs_of(study)
    for run in runs:
        paths = [measure_path(study, run, step) for step in measured_steps(study, run)]
        if paths and all(path.exists() for path in paths):
            found[run.arm, run.seed] = [Measurement.load(path) for path in paths]
    arms, seeds = largest_block(study, list(found))
    if len(arms) < 2:
        listed = ", ".join(f"{arm} seed {seed}" for arm, seed in found) or "none"
        raise DataError(
            f"{study.out_dir}: measured so far: {listed}; expected a seed that the baseline "
            f"({study.baseline}) and another arm have been trained and measured with"
        )
    notes = []
    missing = [run for run in runs if run.arm not in arms or run.seed not in seeds]
    if missing:
        notes.append(
            f"{len(runs) - len(missing)} of {len(runs)} runs are compared, all arms with the same "
            f"seeds; not (yet): {', '.join(run.name for run in missing)}."
        )
    kept = {(arm, seed): found[arm, seed] for arm in arms for seed in seeds}
    compared = [run for run in runs if (run.arm, run.seed) in kept]
    return Measured(study, kept), compared, notes


def largest_block(
    study: StudyConfig, found: Sequence[tuple[str, int]]
) -> tuple[list[str], list[int]]:
    """The arms and seeds with most runs such that each of these arms has each of these seeds."""
    by_arm = {arm: {seed for one, seed in found if one == arm} for arm in study.arms}
    base = by_arm[study.baseline]
    blocks = []
    for own in by_arm.values():
        seeds = [seed for seed in study.seeds if seed in own & base]
        arms = [arm for arm in study.arms if seeds and by_arm[arm] >= set(seeds)]
        blocks.append((len(arms) * len(seeds) if len(arms) > 1 else 0, len(seeds), arms, seeds))
    _, _, arms, seeds = max(blocks, key=lambda block: block[:2])
    return arms, seeds


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
        arms[arm] = ArmResult(
            arm, one.label, one.curves, one.savings,
            one.last(WITH) - one.last(WITHOUT), gains, one.amounts,
        )  # fmt: skip
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
        for mode in (WITHOUT, WITH):
            for point in range(measured.points(arm)):
                keys.append((arm, mode))
                cells.append(measured.cell(arm, point, mode).sum(2))
    found = measured.bits(cells, [measured.sizes.sum(1)] * len(cells))
    curves: dict[str, dict[str, dict[str, Curve]]] = {}
    for arm in measured.arms:
        amounts = measured.amounts(arm)
        for mode in (WITHOUT, WITH):
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
    whole = [
        measured.cell(base, -1, WITHOUT),
        measured.cell(arm, -1, WITHOUT),
        measured.cell(arm, -1, WITH),
    ]
    parts: list[tuple[str, str, np.ndarray]] = []
    for one in slices:
        inside = np.isin(measured.digests, digests[one.members])
        parts.append((one.by, one.name, sizes * inside[:, None]))
    for number, edge in enumerate(edges):
        only = np.zeros_like(sizes)
        only[:, number] = sizes[:, number]
        parts.append(("position", f"from byte {edge:,}", only))
    for by, name, own in parts:
        count = int((own.sum(1) > 0).sum())
        if not count:
            continue
        cells = [(cell * (own > 0)).sum(2) for cell in whole]
        text, without, shown = measured.bits(cells, [own.sum(1)] * 3)
        yield Gain(by, name, count, without - text, shown - text)
    for name, nats in measured.types(arm).items():
        has = ~np.isnan(nats).any(axis=0)
        if has.any():
            own = sizes.sum(1) * has
            cells = [whole[1].sum(2) * has, np.nan_to_num(nats)]
            without, shown = measured.bits(cells, [own, own])
            yield Gain("type", name, int(has.sum()), None, shown - without)


def claims_of(study: StudyConfig, arms: dict[str, ArmResult]) -> list[Claim]:
    """The claims about each arm, with intervals that hold for all of them at once."""
    claims = [claim for name in arms for claim in _claims(study, arms, name)]
    known = [claim for claim in claims if claim.effect is not None]
    bounds = iter(simultaneous([one.effect for one in known if one.effect is not None]))
    return [
        Claim(one.arm, one.words, one.effect, *next(bounds)) if one.effect is not None else one
        for one in claims
    ]


def _claims(study: StudyConfig, arms: dict[str, ArmResult], name: str) -> Iterator[Claim]:
    if name == study.baseline:
        return
    arm, base = arms[name], arms[study.baseline].curves[WITHOUT]
    for mode in (WITHOUT, WITH):
        for axis in (TEXT, TOKENS):
            words = (
                f"{arm.label}: used {mode} metadata, it needs fewer bits than "
                f"{arms[study.baseline].label} after the same number of {axis}"
            )
            there = base[axis].at(arm.amounts[axis])
            yield Claim(name, words, None if there is None else arm.last(mode) - there)
    for control in arms:
        if study.arms[control].control_of == name:
            for mode in (WITHOUT, WITH):
                words = (
                    f"{arm.label}: used {mode} metadata, it needs fewer bits than its control, "
                    f"{arms[control].label}"
                )
                yield Claim(name, words, arm.last(mode) - arms[control].last(mode))
