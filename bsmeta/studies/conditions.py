"""Machines and order as other explanations of a study's differences.

A seed's value of a difference should not depend on the machine that trained the seed, nor on when
it was trained. Where it does, something besides the seed differs between the runs, and the interval
over seeds, which takes them for draws of one population, is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import permutation_test

from bsmeta.report.inference import ALPHA
from bsmeta.report.page import Cell, Column, Table
from bsmeta.studies.config import WITHOUT
from bsmeta.studies.statistics import Measured

MACHINE, PROCESSOR, ORDER = "machine", "processor", "order"
FIRST_HALF, SECOND_HALF = "first half", "second half"
SIGNED = "{:+.4f}".format

_RESAMPLES = 9999


@dataclass(frozen=True)
class Association:
    """Whether the seeds of one group have another difference than those of other groups.

    Attributes:
        name: The claim, or the arm compared with the baseline.
        factor: `machine`, `processor`, or `order` (halves of the seeds by their start).
        means: By group: the mean of the difference over its seeds, in bits per byte where `name`
            names no other unit.
        counts: By group: its seeds.
        p_value: Of the permutation test over seeds; None if there are too few for 5%.
    """

    name: str
    factor: str
    means: dict[str, float]
    counts: dict[str, int]
    p_value: float | None


def associations(measured: Measured, differences: Mapping[str, np.ndarray]) -> list[Association]:
    """Tests of each difference against machine, processor and order of the seeds.

    Args:
        differences: By name: float64 [seeds], as `measured.seeds`.

    Returns:
        One per difference and factor that divides the seeds; none if nothing was recorded.
    """
    factors = list(_factors(measured))
    return [
        _associate(name, factor, groups, values)
        for name, values in differences.items()
        for factor, groups in factors
    ]


def differences_of_arms(measured: Measured, baseline: str) -> dict[str, np.ndarray]:
    """By arm: the last bits per byte of each seed minus those of the baseline, without metadata."""
    base = measured.estimate(baseline, WITHOUT).seeds
    return {
        arm: measured.estimate(arm, WITHOUT).seeds - base
        for arm in measured.arms
        if arm != baseline
    }


def permutation_p_value(groups: Sequence[np.ndarray]) -> float | None:
    """P-value of the hypothesis that groups of values are draws of one population.

    The statistic is the sum of squares between groups; all divisions of the values into such groups
    are tried, or 9,999 of them at random (with a fixed seed) where there are more.

    Returns:
        None if no division could have a p-value of at most 5%.
    """
    sizes = [len(group) for group in groups]
    divisions = math.factorial(sum(sizes)) // math.prod(math.factorial(size) for size in sizes)
    equals = math.prod(math.factorial(sizes.count(size)) for size in set(sizes))
    if len(groups) < 2 or equals / divisions > ALPHA:
        return None

    def between(*samples: np.ndarray) -> float:
        center = np.concatenate(samples).mean()
        return float(sum(len(own) * (own.mean() - center) ** 2 for own in samples))

    test = permutation_test(
        groups, between, vectorized=False, n_resamples=_RESAMPLES, alternative="greater",
        rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(test.pvalue)


def condition_table(found: Sequence[Association]) -> Table:
    """One row per difference and factor."""
    note = (
        "Mean difference, in bits per byte where no other unit is named, over the seeds of each "
        "machine, of each model of processor, and of the first and the second half of the seeds by "
        "the start of their training; p: permutation test over seeds, not corrected (–: too few "
        "seeds for 5%). If seeds differ by machine or order, the interval over seeds is too narrow."
    )
    columns = [
        Column("difference"), Column("by"), Column("means (seeds)", str),
        Column("p", "{:.2g}".format),
    ]  # fmt: skip
    table = Table("Machine and order", note, columns)
    for association in found:
        means = "; ".join(
            f"{group}: {SIGNED(mean)} ({association.counts[group]})"
            for group, mean in association.means.items()
        )
        cells: list[Cell] = [association.name, association.factor, means, association.p_value]
        table.rows.append(cells)
    return table


def condition_notes(measured: Measured, found: Sequence[Association]) -> list[str]:
    """Sentences on what matters: differences by machine or order, seeds of several machines."""
    notes = [
        f"{association.name}: the difference depends on the {association.factor} of the seeds "
        f"(p = {association.p_value:.2g}; of the {len(found)} tests, one in 20 comes out so by "
        "chance), so its interval over seeds may be too narrow."
        for association in found
        if association.p_value is not None and association.p_value <= ALPHA
    ]
    divided = [
        str(seed)
        for seed in measured.seeds
        if len({_machine(measured, arm, seed) for arm in measured.arms} - {None}) > 1
    ]
    if divided:
        plural = "s" if len(divided) > 1 else ""
        notes.append(
            f"The arms of seed{plural} {', '.join(divided)} were trained on different machines: "
            "a difference between them may be one of machines."
        )
    return [*notes, *_source_notes(measured)]


def missing_records(measured: Measured) -> list[str]:
    """A sentence about the runs whose machine and times are not recorded; [] if there are none."""
    runs = [(arm, seed) for arm in measured.arms for seed in measured.seeds]
    count = sum(not _starts(measured, *run) for run in runs)
    if not count:
        return []
    return [
        f"Machine and times of {count:,} of {len(runs):,} runs are not recorded (measurements "
        "that are older than the record), so no difference is tested against machine or order."
    ]


def _factors(measured: Measured) -> Iterator[tuple[str, list[str]]]:
    """Each factor that divides the seeds, with the group of each seed."""
    if missing_records(measured):
        return
    for factor in (MACHINE, PROCESSOR):
        groups = [_group_of_seed(measured, seed, factor) for seed in measured.seeds]
        if 1 < len(set(groups)) < len(groups):
            yield factor, groups
    if len(measured.seeds) > 1:
        starts = {
            seed: min(_starts(measured, arm, seed)[0]["started"] for arm in measured.arms)
            for seed in measured.seeds
        }
        ordered = sorted(measured.seeds, key=lambda seed: starts[seed])
        first = set(ordered[: (len(ordered) + 1) // 2])
        yield ORDER, [FIRST_HALF if seed in first else SECOND_HALF for seed in measured.seeds]


def _associate(name: str, factor: str, groups: Sequence[str], values: np.ndarray) -> Association:
    samples = {group: values[[own == group for own in groups]] for group in sorted(set(groups))}
    return Association(
        name,
        factor,
        {group: float(own.mean()) for group, own in samples.items()},
        {group: len(own) for group, own in samples.items()},
        permutation_p_value(list(samples.values())),
    )


def _starts(measured: Measured, arm: str, seed: int) -> list[dict[str, Any]]:
    """Each start of a run; none in older measurements."""
    starts = measured.run(arm, seed).facts.get("trained") or []
    needed = (MACHINE, PROCESSOR, "started")
    return [start for start in starts if all(start.get(name) for name in needed)]


def _machine(measured: Measured, arm: str, seed: int) -> str | None:
    """The machines that a run was trained on, joined; None if unknown."""
    machines = {start["machine"] for start in _starts(measured, arm, seed)}
    return "+".join(sorted(machines)) or None


def _group_of_seed(measured: Measured, seed: int, factor: str) -> str:
    """The machines or processors of all arms of a seed, joined."""
    names = {start[factor] for arm in measured.arms for start in _starts(measured, arm, seed)}
    return "+".join(sorted(names))


def _source_notes(measured: Measured) -> Iterator[str]:
    """Sentences on runs of different or unknown sources."""
    starts = {
        f"{arm} seed {seed}": _starts(measured, arm, seed)
        for arm in measured.arms
        for seed in measured.seeds
    }
    commits = {start["commit"] for own in starts.values() for start in own if start.get("commit")}
    if len(commits) > 1:
        listed = ", ".join(sorted(commit[:8] for commit in commits))
        yield f"The runs were trained by {len(commits)} commits of the code: {listed}."
    changed = [
        name for name, own in starts.items() if any(start.get("is_clean") is False for start in own)
    ]
    if changed:
        yield f"The code of {len(changed):,} runs had changes that are in no commit."
