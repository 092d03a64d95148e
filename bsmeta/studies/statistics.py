"""Bits per byte over seeds and documents: estimates, curves, and the data that an arm saves.

An estimate is a mean over seeds, and over held-out documents. Both are sources of error: other
seeds would have given other models, other documents another mean. The variance over seeds is that
of the seeds' values (Student's t with S - 1 degrees of freedom), the variance over documents is
that of the jackknife (each document left out in turn; with `cluster: host`, each host with all of
its documents), and `bsmeta.report.inference` combines them. Estimates of a study have the same
seeds and documents, so differences are paired by both. Nothing is drawn at random: the same
measurements give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from bsmeta.report.inference import (
    ALPHA,
    Source,
    cluster_degrees,
    clusters_of_hosts,
    half_width,
    jackknife_variance,
    leave_one_out,
    p_value,
    sum_by_cluster,
)
from bsmeta.studies.config import DOCUMENT, FLOPS, TEXT, TOKENS, WITH, WITHOUT, StudyConfig
from bsmeta.studies.runs import Measurement

Floats = NDArray[np.float64]

NEAR = 0.02
"""Share of its tokens by which a curve may be exceeded and still counts as its end (padding)."""

_GRID = 512


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and documents.

    Attributes:
        seeds: float64 [seeds], the value of each seed.
        changes: float64 [all units], how leaving out each document, or each host, changes the mean
            over seeds; 0 for one that does not take part.
        units: Number of documents, or hosts, that take part.
        degrees: Degrees of freedom of the variance over them.
    """

    seeds: Floats
    changes: Floats
    units: int
    degrees: float

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(
            self.seeds - other.seeds,
            self.changes - other.changes,
            min(self.units, other.units),
            min(self.degrees, other.degrees),
        )

    @property
    def value(self) -> float:
        """The mean."""
        return float(self.seeds.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation of the values of the seeds; NaN for one seed."""
        return float(self.seeds.std(ddof=1)) if len(self.seeds) > 1 else math.nan

    @property
    def document_error(self) -> float:
        """Standard error over documents, or hosts (jackknife)."""
        return math.sqrt(jackknife_variance(self.changes, self.units))

    @property
    def sources(self) -> list[Source]:
        """The sources of error; with one seed, the documents alone."""
        documents = Source(self.document_error**2, self.degrees)
        count = len(self.seeds)
        if count == 1:
            return [documents]
        return [Source(self.deviation**2 / count, count - 1), documents]

    @property
    def low(self) -> float:
        """Lower end of the 95% interval."""
        return self.value - half_width(self.sources)

    @property
    def high(self) -> float:
        """Upper end of the 95% interval."""
        return self.value + half_width(self.sources)

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that the true value is 0; 1 for a single seed."""
        return 1.0 if len(self.seeds) == 1 else p_value(self.value, self.sources)


def bits_per_byte(nats: Floats, sizes: Floats) -> Estimate:
    """The mean over seeds of the bits per byte over documents, or hosts.

    Args:
        nats: float64 [seeds, documents].
        sizes: float64 [documents], bytes; 0 for a document that does not take part.
    """
    return ratio(nats / math.log(2), sizes)


def ratio(values: Floats, weights: Floats) -> Estimate:
    """The mean over seeds of sum(values) / sum(weights), over documents (or questions).

    Args:
        values: float64 [seeds, documents].
        weights: float64 [documents]; 0 for a document that does not take part.

    Returns:
        The estimate; NaN, of no documents, if none takes part.
    """
    takes_part = weights > 0
    values = np.where(takes_part, values, 0.0)
    totals, weight = values.sum(axis=1), float(weights.sum())
    if not weight:
        return Estimate(np.full(len(values), math.nan), np.zeros(len(weights)), 0, -1)
    changes = leave_one_out(values.mean(axis=0), weights)  # all seeds have the same weights
    units = int(takes_part.sum())
    return Estimate(totals / weight, changes, units, units - 1)


def ratio_over_clusters(values: Floats, weights: Floats, clusters: np.ndarray) -> Estimate:
    """As `ratio`, with clusters of documents (or questions) as the units.

    Args:
        clusters: int64 [documents], the number of each document's cluster, from 0.
    """
    of_clusters = sum_by_cluster(weights, clusters)
    sums = sum_by_cluster(np.where(weights > 0, values, 0.0), clusters)
    return replace(ratio(sums, of_clusters), degrees=cluster_degrees(of_clusters))


@dataclass(frozen=True)
class Curve:
    """Bits per byte at rising numbers of tokens (or FLOPs), float64 [points]."""

    amounts: Floats
    points: Sequence[Estimate]

    def at(self, amount: float) -> Estimate | None:
        """The bits per byte at an amount, interpolated on its logarithm; None outside the curve."""
        amounts = self.amounts
        if not amounts[0] * (1 - NEAR) <= amount <= amounts[-1] * (1 + NEAR):
            return None
        nearest = int(np.abs(amounts - amount).argmin())
        if math.isclose(amounts[nearest], amount, rel_tol=1e-9) or len(amounts) == 1:
            return self.points[nearest]
        return self._between(np.array([np.clip(amount, amounts[0], amounts[-1])]))[0]

    def _between(self, amounts: Floats) -> list[Estimate]:
        """The estimates at amounts: interpolated for each seed, and without each document."""

        def line(values: Floats) -> Floats:
            found: Floats = PchipInterpolator(np.log(self.amounts), values)(np.log(amounts))
            return found

        seeds = line(np.stack([point.seeds for point in self.points]))
        means = np.array([[point.value] for point in self.points])
        changes = line(means + np.stack([point.changes for point in self.points])) - line(means)
        count = min(point.units for point in self.points)
        degrees = min(point.degrees for point in self.points)
        return [
            Estimate(own, change, count, degrees)
            for own, change in zip(seeds, changes, strict=True)
        ]

    def falling(self) -> Curve:
        """The curve that stays at its lowest point where it rises."""
        lowest = np.minimum.accumulate([point.value for point in self.points])
        points = [next(point for point in self.points if point.value == value) for value in lowest]
        return Curve(self.amounts, points)

    def fine(self) -> tuple[Floats, list[Estimate]]:
        """Amounts on a fine grid, and the interpolated estimate at each."""
        if len(self.amounts) == 1:
            return self.amounts, list(self.points)
        places = np.log(self.amounts)
        grid = np.unique(np.concatenate((np.linspace(places[0], places[-1], _GRID), places)))
        return np.exp(grid), self._between(np.exp(grid))


@dataclass(frozen=True)
class Share:
    """A share; `bound` is `above` or `below` if it is only known to be above or below the value."""

    value: float
    bound: str = ""

    def __str__(self) -> str:
        return f"{self.bound} {self.value:.0%}".lstrip()


@dataclass(frozen=True)
class Saving:
    """The share of its data that an arm saves: 1 - its amount / what the baseline needs.

    Where the baseline never reaches the arm's bits per byte, or had passed them at its first point,
    the share is only known to be above, or below, a bound. `low` and `high` are its 95% interval;
    `needed` is what the baseline needs, None if the share is a bound.
    """

    share: Share
    low: Share
    high: Share
    needed: float | None

    def __str__(self) -> str:
        if self.low == self.high == self.share:
            return f"{self.share}"
        return f"{self.share} ({self.low} to {self.high})"


def saving(baseline: Curve, amount: float, arm: Estimate) -> Saving:
    """How much less an arm needs than the baseline for the same bits per byte.

    The interval is the amounts at which the baseline does not differ from the arm at the level of
    5% (as Fieller's interval of a ratio): so it is wide, or has no end, where the curve is flat.

    Args:
        amount: What the arm has used; `arm` is its bits per byte after that.
    """
    amounts, points = baseline.falling().fine()
    effects = [arm - point for point in points]
    values = np.array([effect.value for effect in effects])
    halves = np.array([half_width(effect.sources, ALPHA) for effect in effects])
    first, last = float(amounts[0]), float(amounts[-1])

    def share(needs: float) -> Share:
        bound = "above" if needs > last else "below" if needs < first else ""
        return Share(1 - amount / min(max(needs, first), last), bound)

    needed = _crossing(amounts, values)
    low, high = _crossing(amounts, values + halves), _crossing(amounts, values - halves)
    is_inside = bool(first <= needed <= last)
    return Saving(share(needed), share(low), share(high), needed if is_inside else None)


def _crossing(amounts: Floats, rising: Floats) -> float:
    """The first amount at which values are no longer below 0; inf if there is none.

    0 if the first is above 0 already: then nothing is known before it.
    """
    if rising[0] > 0:
        return 0.0
    reached = np.flatnonzero(rising >= 0)
    if not len(reached):
        return math.inf
    cell = int(reached[0])
    if rising[cell] == 0 or cell == 0:
        return float(amounts[cell])
    before, after = rising[cell - 1], rising[cell]
    part = before / (before - after)
    step = np.log(amounts[cell] / amounts[cell - 1])
    return float(np.exp(np.log(amounts[cell - 1]) + part * step))


def common(digests: Sequence[np.ndarray]) -> list[NDArray[np.int64]]:
    """Indices of the documents that all measurements have, in one order."""
    shared = digests[0]
    for own in digests[1:]:
        if not np.array_equal(own, shared):
            shared = np.intersect1d(shared, own)
    places = []
    for own in digests:
        order = np.argsort(own)
        places.append(order[np.searchsorted(own, shared, sorter=order)])
    return places


_COUNTS = {TEXT: "targets", TOKENS: "tokens", FLOPS: "flops"}


class Measured:
    """The measurements of all arms, over the same documents and seeds.

    Args:
        found: The measurement of each run; every arm has all seeds.

    Attributes:
        digests, lengths, sites: Of each document, as in `Measurement`.
        bytes: Bytes that are scored.
        cluster: `document` or `host`: the units of the error over documents.
    """

    def __init__(self, study: StudyConfig, found: dict[tuple[str, int], Measurement]) -> None:
        self.seeds = sorted({seed for _, seed in found})
        self.arms = [arm for arm in study.arms if (arm, self.seeds[0]) in found]
        self.cluster = study.cluster
        self._edges = np.array(study.measure.position_edges)
        places = common([run.digests for run in found.values()])
        aligned = map(Measurement.of_documents, found.values(), places)
        self._found = dict(zip(found, aligned, strict=True))
        first = self.first(self.arms[0])
        self.digests, self.lengths, self.sites = first.digests, first.lengths, first.sites
        self.bytes = int(first.sizes.sum())
        self._clusters = clusters_of_hosts(self.sites.tolist())

    def clustered_by(self, cluster: str) -> Measured:
        """The same measurements with other units of the error over documents."""
        other = copy(self)
        other.cluster = cluster
        return other

    @property
    def hosts(self) -> int:
        """Number of hosts that are known."""
        return len(set(self.sites.tolist()) - {""})

    @property
    def documents_without_host(self) -> int:
        """Number of documents whose host is not known."""
        return int((self.sites == "").sum())

    def count(self, bins: np.ndarray | slice, documents: np.ndarray) -> int:
        """Number of these documents that have bytes in these bins."""
        sizes = self.first(self.arms[0]).sizes[documents][:, bins].sum(axis=1)
        return int((sizes > 0).sum())

    def run(self, arm: str, seed: int) -> Measurement:
        """The measurement of a run."""
        return self._found[arm, seed]

    def first(self, arm: str) -> Measurement:
        """The measurement of the arm's run with the first seed."""
        return self._found[arm, self.seeds[0]]

    def modes(self, arm: str) -> tuple[str, ...]:
        """Ways in which an arm is used: without metadata, and with it if it has any."""
        return (WITHOUT, WITH) if len(self.first(arm).shown) else (WITHOUT,)

    def having(self, arm: str, metadata: str) -> np.ndarray:
        """Documents that have these types, or all documents: bool [documents]."""
        if metadata in (WITHOUT, WITH):
            return np.ones(len(self.digests), bool)
        has: np.ndarray = ~np.isnan(self.first(arm).types[metadata]).any(axis=1)
        return has

    def part(self, part: Sequence[int]) -> np.ndarray:
        """The bins of bytes from the first number up to the second: bool [bins]."""
        low = part[0] if part else 0
        high = part[1] if len(part) > 1 else math.inf
        inside: np.ndarray = (self._edges >= low) & (self._edges < high)
        return inside

    def point(self, arm: str, share: float) -> int:
        """The checkpoint after a share of the arm's run."""
        steps = self.first(arm).steps
        return int(np.abs(steps - max(round(share * int(steps[-1])), 1)).argmin())

    def estimate(
        self, arm: str, metadata: str, point: int = -1, *,
        bins: np.ndarray | slice = slice(None), documents: np.ndarray | slice = slice(None),
    ) -> Estimate:  # fmt: skip
        """Bits per byte of a checkpoint.

        Args:
            metadata: `without`, `with`, or types that the arm has been measured with.
            bins: Only these bins of positions.
            documents: Only these documents.
        """
        runs = [self._found[arm, seed] for seed in self.seeds]
        if metadata in (WITHOUT, WITH):
            name = "without" if metadata == WITHOUT else "shown"
            cells = [getattr(run, name)[point] for run in runs]
        else:
            cells = [run.types[metadata] for run in runs]
        return self._estimate_of(arm, cells, bins, documents)

    def estimate_average(self, arm: str, bins: np.ndarray | slice = slice(None)) -> Estimate:
        """Bits per byte without metadata of the mean of an arm's last checkpoints.

        Args:
            bins: Only these bins of positions.
        """
        cells = [self._found[arm, seed].averaged[0] for seed in self.seeds]
        return self._estimate_of(arm, cells, bins, slice(None))

    def _estimate_of(
        self,
        arm: str,
        cells: Sequence[np.ndarray],
        bins: np.ndarray | slice,
        documents: np.ndarray | slice,
    ) -> Estimate:
        """Bits per byte from the nats of each seed: float64 [documents, bins]."""
        scored = self.first(arm).sizes
        sizes = np.zeros(len(self.digests))
        sizes[documents] = scored[documents][:, bins].sum(axis=1)
        nats = np.stack([cell[:, bins].sum(axis=1) for cell in cells])
        if self.cluster == DOCUMENT:
            return bits_per_byte(nats, sizes)
        return ratio_over_clusters(nats / math.log(2), sizes, self._clusters)

    def curves(
        self, arm: str, metadata: str, *,
        bins: np.ndarray | slice = slice(None), documents: np.ndarray | slice = slice(None),
    ) -> dict[str, Curve]:  # fmt: skip
        """By axis: bits per byte over what the arm had been trained on."""
        points = [
            self.estimate(arm, metadata, point, bins=bins, documents=documents)
            for point in range(len(self.first(arm).steps))
        ]
        return {axis: Curve(amounts, points) for axis, amounts in self.amounts(arm).items()}

    def amounts(self, arm: str) -> dict[str, np.ndarray]:
        """By axis: what was used up to each checkpoint (geometric mean over seeds)."""
        runs = [self._found[arm, seed] for seed in self.seeds]
        return {
            axis: np.exp(np.mean([np.log(getattr(run, name)) for run in runs], axis=0))
            for axis, name in _COUNTS.items()
        }
