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

from bsmeta.report.cells import Cell
from bsmeta.report.inference import ALPHA
from bsmeta.report.page import Column, Table
from bsmeta.studies.config import WITHOUT
from bsmeta.studies.statistics import Measured

MACHINE = "machine"
PROCESSOR = "processor"
ORDER = "order"
FIRST_HALF = "first half"
SECOND_HALF = "second half"
SIGNED = "{:+.4f}".format

_RESAMPLES = 9999


@dataclass(frozen=True)
class Association:
    """A test of whether a difference depends on a condition of the seeds' training.

    Attributes:
        name: The claim, or the arm compared with the baseline.
        factor: `machine`, `processor`, or `order` (halves of the seeds by their start).
        means: By group of seeds: the mean of the difference, in bits per byte where `name` names
            no other unit.
        counts: By group: its number of seeds.
        p_value: P-value of the permutation test over seeds; None if there are too few for 5%.
    """

    name: str
    factor: str
    means: dict[str, float]
    counts: dict[str, int]
    p_value: float | None


def test_associations(
    measured: Measured, differences: Mapping[str, np.ndarray]
) -> list[Association]:
    """Tests each difference against machine, processor and order of the seeds.

    Args:
        differences: By name: float64 [seeds], as `measured.seeds`.

    Returns:
        One per difference and factor that divides the seeds; none if nothing was recorded.
    """
    factors = list(_list_factors(measured))
    tests = []
    for name, values in differences.items():
        for factor, groups in factors:
            tests.append(_test_factor(name, factor, groups, values))
    return tests


def compute_arm_differences(measured: Measured, baseline: str) -> dict[str, np.ndarray]:
    """Returns each arm's difference to the baseline: last bits per byte, without metadata.

    Returns:
        By arm: float64 [seeds].
    """
    base = measured.estimate(baseline, WITHOUT).seeds
    return {
        arm: measured.estimate(arm, WITHOUT).seeds - base
        for arm in measured.arms
        if arm != baseline
    }


def compute_permutation_p_value(groups: Sequence[np.ndarray]) -> float | None:
    """Returns the p-value of the hypothesis that groups of values are draws of one population.

    The statistic is the sum of squares between groups; all divisions of the values into such groups
    are tried, or 9,999 of them at random (with a fixed seed) where there are more.

    Returns:
        None if no division could have a p-value of at most 5%.
    """
    sizes = [len(group) for group in groups]
    divisions = math.factorial(sum(sizes)) // math.prod(map(math.factorial, sizes))
    # Divisions that differ only by an exchange of groups of equal size have the same statistic.
    equal_divisions = math.prod(math.factorial(sizes.count(size)) for size in set(sizes))
    if len(groups) < 2 or equal_divisions / divisions > ALPHA:
        return None

    def squares_between(*samples: np.ndarray) -> float:
        center = np.concatenate(samples).mean()
        return float(sum(len(sample) * (sample.mean() - center) ** 2 for sample in samples))

    test = permutation_test(
        groups,
        squares_between,
        vectorized=False,
        n_resamples=_RESAMPLES,
        alternative="greater",
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def make_condition_table(tests: Sequence[Association]) -> Table:
    """Makes a table with one row per difference and factor."""
    note = (
        "Mean difference, in bits per byte where no other unit is named, over the seeds of each "
        "machine, of each model of processor, and of the first and the second half of the seeds by "
        "the start of their training; p: permutation test over seeds, not corrected (–: too few "
        "seeds for 5%). If seeds differ by machine or order, the interval over seeds is too narrow."
    )
    columns = [
        Column("difference"),
        Column("by"),
        Column("means (seeds)", str),
        Column("p", "{:.2g}".format),
    ]

    table = Table("Machine and order", note, columns)
    for test in tests:
        means = "; ".join(
            f"{group}: {SIGNED(mean)} ({test.counts[group]})" for group, mean in test.means.items()
        )
        cells: list[Cell] = [test.name, test.factor, means, test.p_value]
        table.rows.append(cells)
    return table


def list_condition_notes(measured: Measured, tests: Sequence[Association]) -> list[str]:
    """Notes differences that depend on machine or order, and seeds of several machines."""
    notes = [
        f"{test.name}: the difference depends on the {test.factor} of the seeds "
        f"(p = {test.p_value:.2g}; of the {len(tests)} tests, one in 20 comes out so by "
        "chance), so its interval over seeds may be too narrow."
        for test in tests
        if test.p_value is not None and test.p_value <= ALPHA
    ]

    divided_seeds = []
    for seed in measured.seeds:
        machines = {_name_machines_of_run(measured, arm, seed) for arm in measured.arms}
        if len(machines - {None}) > 1:
            divided_seeds.append(str(seed))
    if divided_seeds:
        plural = "s" if len(divided_seeds) > 1 else ""
        notes.append(
            f"The arms of seed{plural} {', '.join(divided_seeds)} were trained on different "
            "machines: a difference between them may be one of machines."
        )
    return [*notes, *_list_source_notes(measured)]


def describe_missing_records(measured: Measured) -> list[str]:
    """Returns a sentence about runs whose machine and times are not recorded, if there are any."""
    starts = _list_starts_of_runs(measured)
    count = sum(not starts_of_run for starts_of_run in starts.values())
    if not count:
        return []
    return [
        f"Machine and times of {count:,} of {len(starts):,} runs are not recorded (measurements "
        "that are older than the record), so no difference is tested against machine or order."
    ]


def _list_factors(measured: Measured) -> Iterator[tuple[str, list[str]]]:
    """Yields each factor that divides the seeds, with the group of each seed."""
    if describe_missing_records(measured):
        return

    for factor in (MACHINE, PROCESSOR):
        groups = [_name_group_of_seed(measured, seed, factor) for seed in measured.seeds]
        if 1 < len(set(groups)) < len(groups):
            yield factor, groups

    if len(measured.seeds) > 1:
        first_starts: dict[int, str] = {}
        for seed in measured.seeds:
            starts = [_list_starts(measured, arm, seed)[0]["started"] for arm in measured.arms]
            first_starts[seed] = min(starts)
        ordered = sorted(measured.seeds, key=lambda seed: first_starts[seed])
        first_half = set(ordered[: (len(ordered) + 1) // 2])
        yield ORDER, [FIRST_HALF if seed in first_half else SECOND_HALF for seed in measured.seeds]


def _test_factor(name: str, factor: str, groups: Sequence[str], values: np.ndarray) -> Association:
    samples: dict[str, np.ndarray] = {}
    for group in sorted(set(groups)):
        is_in_group = [other == group for other in groups]
        samples[group] = values[is_in_group]
    return Association(
        name,
        factor,
        {group: float(sample.mean()) for group, sample in samples.items()},
        {group: len(sample) for group, sample in samples.items()},
        compute_permutation_p_value(list(samples.values())),
    )


def _list_starts(measured: Measured, arm: str, seed: int) -> list[dict[str, Any]]:
    """Returns the record of each start of a run; none in older measurements."""
    starts = measured.find_run(arm, seed).facts.get("trained") or []
    return [start for start in starts if _is_recorded(start)]


def _is_recorded(start: Mapping[str, Any]) -> bool:
    return all(start.get(name) for name in (MACHINE, PROCESSOR, "started"))


def _list_starts_of_runs(measured: Measured) -> dict[str, list[dict[str, Any]]]:
    """Returns the starts of all runs, by the name of the run."""
    starts = {}
    for arm in measured.arms:
        for seed in measured.seeds:
            starts[f"{arm} seed {seed}"] = _list_starts(measured, arm, seed)
    return starts


def _name_machines_of_run(measured: Measured, arm: str, seed: int) -> str | None:
    """Returns the machines that a run was trained on, joined; None if unknown."""
    machines = {start["machine"] for start in _list_starts(measured, arm, seed)}
    return "+".join(sorted(machines)) or None


def _name_group_of_seed(measured: Measured, seed: int, factor: str) -> str:
    """Returns the machines or processors of all arms of a seed, joined."""
    names: set[str] = set()
    for arm in measured.arms:
        names.update(start[factor] for start in _list_starts(measured, arm, seed))
    return "+".join(sorted(names))


def _list_source_notes(measured: Measured) -> Iterator[str]:
    """Yields notes on runs of different or unknown commits of the code."""
    commits: set[str] = set()
    changed_runs = 0
    for starts in _list_starts_of_runs(measured).values():
        commits.update(start["commit"] for start in starts if start.get("commit"))
        changed_runs += any(start.get("is_clean") is False for start in starts)

    if len(commits) > 1:
        names = ", ".join(sorted(commit[:8] for commit in commits))
        yield f"The runs were trained by {len(commits)} commits of the code: {names}."
    if changed_runs:
        yield f"The code of {changed_runs:,} runs had changes that are in no commit."
