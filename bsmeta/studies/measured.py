"""The measurements of a study, brought to the same documents and seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bsmeta.core.errors import DataError
from bsmeta.studies.config import FLOPS, TEXT, TOKENS, WITH, WITHOUT, StudyConfig
from bsmeta.studies.measurement import Measurement, find_measurement, results_folder
from bsmeta.studies.runs import runs_of
from bsmeta.studies.statistics import Curve, Estimate, bits_per_byte, common

_COUNTS = {TEXT: "targets", TOKENS: "tokens", FLOPS: "flops"}


class Measured:
    """The measurements of all arms, over the same documents and seeds.

    Args:
        study: The study.
        found: The measurement of each run; every arm has all seeds.

    Attributes:
        seeds: The seeds.
        arms: The arms.
        digests, lengths, sites: Of each document, as in `Measurement`.
        bytes: Bytes that are scored.
    """

    def __init__(self, study: StudyConfig, found: dict[tuple[str, int], Measurement]) -> None:
        self.seeds = sorted({seed for _, seed in found})
        self.arms = [arm for arm in study.arms if (arm, self.seeds[0]) in found]
        self._edges = np.array(study.measure.position_edges)
        self._found = found
        places = common([run.digests for run in found.values()])
        self._places = dict(zip(found, places, strict=True))
        first = found[self.arms[0], self.seeds[0]]
        own = self._places[self.arms[0], self.seeds[0]]
        self.digests, self.lengths = first.digests[own], first.lengths[own]
        self.sites, self.bytes = first.sites[own], int(first.sizes[own].sum())

    def run(self, arm: str, seed: int) -> Measurement:
        """The measurement of a run."""
        return self._found[arm, seed]

    def has_metadata(self, arm: str) -> bool:
        """Whether an arm can be used with metadata."""
        return len(self._found[arm, self.seeds[0]].shown) > 0

    def modes(self, arm: str) -> tuple[str, ...]:
        """Ways in which an arm is used: without metadata, and with it if it has any."""
        return (WITHOUT, WITH) if self.has_metadata(arm) else (WITHOUT,)

    def types(self, arm: str) -> list[str]:
        """The types and combinations that the arm has been measured with by themselves."""
        return list(self._found[arm, self.seeds[0]].types)

    def having(self, arm: str, metadata: str) -> np.ndarray:
        """Documents that have these types, or all documents: bool [documents]."""
        if metadata in (WITHOUT, WITH):
            return np.ones(len(self.digests), bool)
        nats = self._found[arm, self.seeds[0]].types[metadata]
        has: np.ndarray = ~np.isnan(nats[self._places[arm, self.seeds[0]]]).any(axis=1)
        return has

    def part(self, part: Sequence[int]) -> np.ndarray:
        """The bins of bytes from the first number up to the second: bool [bins]."""
        low = part[0] if part else 0
        high = part[1] if len(part) > 1 else math.inf
        inside: np.ndarray = (self._edges >= low) & (self._edges < high)
        return inside

    def point(self, arm: str, share: float) -> int:
        """The checkpoint after a share of the arm's run."""
        steps = self._found[arm, self.seeds[0]].steps
        return int(np.abs(steps - max(round(share * int(steps[-1])), 1)).argmin())

    def estimate(
        self,
        arm: str,
        metadata: str,
        point: int = -1,
        *,
        bins: np.ndarray | slice = slice(None),
        documents: np.ndarray | slice = slice(None),
    ) -> Estimate:
        """Bits per byte of a checkpoint.

        Args:
            metadata: `without`, `with`, or types that the arm has been measured with.
            point: The checkpoint.
            bins: Only these bins of positions.
            documents: Only these documents.
        """
        nats, sizes = [], []
        for seed in self.seeds:
            found, own = self._found[arm, seed], self._places[arm, seed]
            cell = (
                (found.without if metadata == WITHOUT else found.shown)[point]
                if metadata in (WITHOUT, WITH)
                else found.types[metadata]
            )
            nats.append(cell[own][:, bins].sum(axis=1))
            sizes.append(found.sizes[own][:, bins].sum(axis=1))
        chosen = np.zeros(len(self.digests), bool)
        chosen[documents] = True
        return bits_per_byte(np.stack(nats), np.where(chosen, sizes[0], 0.0))

    def curve(
        self, arm: str, metadata: str, axis: str, *,
        bins: np.ndarray | slice = slice(None), documents: np.ndarray | slice = slice(None),
    ) -> Curve:  # fmt: skip
        """Bits per byte over what the arm had been trained on."""
        points = [
            self.estimate(arm, metadata, point, bins=bins, documents=documents)
            for point in range(self.points(arm))
        ]
        return Curve(self.amounts(arm)[axis], points)

    def points(self, arm: str) -> int:
        """Number of checkpoints."""
        return len(self._found[arm, self.seeds[0]].steps)

    def amounts(self, arm: str) -> dict[str, np.ndarray]:
        """By axis: what was used up to each checkpoint (geometric mean over seeds)."""
        runs = [self._found[arm, seed] for seed in self.seeds]
        return {
            axis: np.exp(np.mean([np.log(getattr(run, name)) for run in runs], axis=0))
            for axis, name in _COUNTS.items()
        }


def load(study: StudyConfig) -> tuple[Measured, list[str]]:
    """The measurements that can be compared, and what is missing.

    Raises:
        DataError: If the baseline, or everything else, has no seed that has been measured, or if
            runs were trained on different data.
    """
    found: dict[tuple[str, int], Measurement] = {}
    runs = runs_of(study)
    for run in runs:
        measurement = find_measurement(study, run.arm, run.seed)
        if measurement is not None:
            found[run.arm, run.seed] = measurement
    arms, seeds = largest_block(study, list(found))
    if not arms:
        listed = ", ".join(f"{arm} seed {seed}" for arm, seed in found) or "none"
        raise DataError(
            f"{results_folder(study)}: measured so far: {listed}; expected a seed that the "
            f"baseline ({study.baseline}) and another arm have been trained and measured with"
        )
    kept = {(arm, seed): found[arm, seed] for arm in arms for seed in seeds}
    _refuse_other_data(study, kept)
    notes = []
    missing = [run for run in runs if (run.arm, run.seed) not in kept]
    if missing:
        notes.append(
            f"{len(runs) - len(missing)} of {len(runs)} runs are compared, all arms with the same "
            f"seeds; not (yet): {', '.join(run.name for run in missing)}."
        )
    return Measured(study, kept), notes


def _refuse_other_data(study: StudyConfig, found: dict[tuple[str, int], Measurement]) -> None:
    """Raises if a run had other shards than the first: its machine has other files."""
    (arm, seed), first = next(iter(found.items()))
    others = [
        f"{name} seed {number}"
        for (name, number), run in found.items()
        if run.facts["shards"] != first.facts["shards"]
    ]
    if others:
        raise DataError(
            f"{results_folder(study)}: {', '.join(others)} were trained on other shards than "
            f"{arm} seed {seed}; expected the same data in all runs: delete the measurements that "
            "were made with the wrong files"
        )


def largest_block(
    study: StudyConfig, found: Sequence[tuple[str, int]]
) -> tuple[list[str], list[int]]:
    """The arms and seeds with most runs such that each of these arms has each of these seeds.

    Both are empty if the baseline shares no seed with another arm.
    """
    by_arm = {arm: {seed for name, seed in found if name == arm} for arm in study.arms}
    base = by_arm[study.baseline]
    blocks: list[tuple[list[str], list[int]]] = [([], [])]
    for own in by_arm.values():
        seeds = [seed for seed in study.seeds if seed in own & base]
        arms = [arm for arm in study.arms if by_arm[arm] >= set(seeds)]
        if seeds and len(arms) > 1:
            blocks.append((arms, seeds))
    return max(blocks, key=lambda block: (len(block[0]) * len(block[1]), len(block[1])))
