"""The measurements of a study, brought to the same documents and seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bsmeta.config.errors import DataError
from bsmeta.config.study import StudyConfig
from bsmeta.studies.measuring import Measurement, measure_path, measured_steps
from bsmeta.studies.runs import Run, runs_of
from bsmeta.studies.statistics import Estimate, Resampler, common

WITHOUT, WITH = "without", "with"
TEXT, TOKENS, FLOPS = "text tokens", "all tokens", "FLOPs"
AXES = (TEXT, TOKENS, FLOPS)


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

    def modes(self, arm: str) -> tuple[str, ...]:
        """Ways in which an arm is used: without metadata, and with it if it has any."""
        every = (one for seed in self.seeds for one, _ in self._found[arm, seed])
        has_metadata = any(not np.array_equal(one.without, one.shown) for one in every)
        return (WITHOUT, WITH) if has_metadata else (WITHOUT,)

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
    if not arms:
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
    """The arms and seeds with most runs such that each of these arms has each of these seeds.

    None if the baseline shares no seed with another arm.
    """
    by_arm = {arm: {seed for one, seed in found if one == arm} for arm in study.arms}
    base = by_arm[study.baseline]
    blocks: list[tuple[list[str], list[int]]] = [([], [])]
    for own in by_arm.values():
        seeds = [seed for seed in study.seeds if seed in own & base]
        arms = [arm for arm in study.arms if by_arm[arm] >= set(seeds)]
        if seeds and len(arms) > 1:
            blocks.append((arms, seeds))
    return max(blocks, key=lambda block: (len(block[0]) * len(block[1]), len(block[1])))
