"""Tests whether machines or the order of training explain differences between seeds.

A seed's value of a difference should not depend on the machine that trained the seed, nor on when
it was trained. Where it does, something besides the seed differs between the runs, and the interval
over seeds, which assumes that they are draws from one population, is too narrow.
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
from bsmeta.studies.statistics import StudyMeasurements

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
        means: The mean difference of each group of seeds, in bits per byte unless `name` contains
            another unit.
        counts: The number of seeds of each group.
        p_value: P-value of the permutation test over seeds; None if there are too few for 5%.
    """

    name: str
    factor: str
    means: dict[str, float]
    counts: dict[str, int]
    p_value: float | None


def test_associations(
    measured: StudyMeasurements, differences: Mapping[str, np.ndarray]
) -> list[Association]:
    """Tests each difference against machine, processor and order of the seeds.

    Args:
        differences: The values of each difference by name, float64 [seeds], in the order of
            `measured.seeds`.

    Returns:
        A test for each difference and each factor that divides the seeds; none if machines and
        times were not recorded.
    """
    factors = list(_list_factors(measured))
    tests = []
    for name, values in differences.items():
        for factor, groups in factors:
            tests.append(_test_factor(name, factor, groups, values))
    return tests


def compute_arm_differences(measured: StudyMeasurements, baseline: str) -> dict[str, np.ndarray]:
    """Computes each arm's difference to the baseline at the last checkpoint, without metadata.

    Returns:
        The differences by arm, in bits per byte: float64 [seeds].
    """
    baseline_values = measured.estimate(baseline, WITHOUT).seeds
    return {
        arm: measured.estimate(arm, WITHOUT).seeds - baseline_values
        for arm in measured.arms
        if arm != baseline
    }


def compute_permutation_p_value(groups: Sequence[np.ndarray]) -> float | None:
    """Computes the p-value of the hypothesis that all groups are drawn from one population.

    The statistic is the sum of squares between groups. All partitions of the values into groups of
    these sizes are tried, or 9,999 random ones (with a fixed seed) if there are more.

    Returns:
        The p-value; None if no partition could have one of at most 5%.
    """
    sizes = [len(group) for group in groups]
    permutations_within = math.prod(math.factorial(size) for size in sizes)
    partitions = math.factorial(sum(sizes)) // permutations_within
    # Partitions that differ only by an exchange of groups of equal size have the same statistic.
    equal_partitions = math.prod(math.factorial(sizes.count(size)) for size in set(sizes))
    if len(groups) < 2 or equal_partitions / partitions > ALPHA:
        return None

    def sum_squares_between(*samples: np.ndarray) -> float:
        center = np.concatenate(samples).mean()
        return float(sum(len(sample) * (sample.mean() - center) ** 2 for sample in samples))

    test = permutation_test(
        groups,
        sum_squares_between,
        vectorized=False,
        n_resamples=_RESAMPLES,
        alternative="greater",
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def make_condition_table(tests: Sequence[Association]) -> Table:
    """Makes the table of the tests, with one row per difference and factor."""
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


def list_condition_notes(measured: StudyMeasurements, tests: Sequence[Association]) -> list[str]:
    """Writes notes on differences that depend on a factor, and on runs made differently."""
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
    return [*notes, *_list_code_notes(measured)]


def describe_missing_records(measured: StudyMeasurements) -> list[str]:
    """Returns a sentence about runs without a record of machine and times; [] if all have one."""
    starts_by_run = _list_starts_of_runs(measured)
    count = sum(not starts for starts in starts_by_run.values())
    if not count:
        return []

    return [
        f"Machine and times of {count:,} of {len(starts_by_run):,} runs are not recorded "
        "(measurements that are older than the record), so no difference is tested against machine "
        "or order."
    ]


def _list_factors(measured: StudyMeasurements) -> Iterator[tuple[str, list[str]]]:
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
    """Tests a difference against a factor.

    Args:
        groups: The group of each seed.
        values: The difference of each seed, float64 [seeds].
    """
    samples: dict[str, np.ndarray] = {}
    for group in sorted(set(groups)):
        is_in_group = [seed_group == group for seed_group in groups]
        samples[group] = values[is_in_group]
    return Association(
        name,
        factor,
        means={group: float(sample.mean()) for group, sample in samples.items()},
        counts={group: len(sample) for group, sample in samples.items()},
        p_value=compute_permutation_p_value(list(samples.values())),
    )


def _list_starts(measured: StudyMeasurements, arm: str, seed: int) -> list[dict[str, Any]]:
    """Returns the record of each start of a run; [] for measurements older than the record."""
    starts = measured.find_run(arm, seed).facts.get("trained") or []
    return [start for start in starts if _is_complete(start)]


def _is_complete(start: Mapping[str, Any]) -> bool:
    """Whether the record of a start has the machine, the processor and the time."""
    return all(start.get(name) for name in (MACHINE, PROCESSOR, "started"))


def _list_starts_of_runs(measured: StudyMeasurements) -> dict[str, list[dict[str, Any]]]:
    """Returns the records of the starts of all runs, by the name of the run."""
    starts_by_run = {}
    for arm in measured.arms:
        for seed in measured.seeds:
            starts_by_run[f"{arm} seed {seed}"] = _list_starts(measured, arm, seed)
    return starts_by_run


def _name_machines_of_run(measured: StudyMeasurements, arm: str, seed: int) -> str | None:
    """Returns the machines that a run was trained on, joined; None if unknown."""
    machines = {start["machine"] for start in _list_starts(measured, arm, seed)}
    return "+".join(sorted(machines)) or None


def _name_group_of_seed(measured: StudyMeasurements, seed: int, factor: str) -> str:
    """Returns the machines or processors that trained the arms of a seed, joined."""
    names: set[str] = set()
    for arm in measured.arms:
        names.update(start[factor] for start in _list_starts(measured, arm, seed))
    return "+".join(sorted(names))


def _list_code_notes(measured: StudyMeasurements) -> Iterator[str]:
    """Yields notes on runs of several commits, or with uncommitted changes of the code."""
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
