"""Bits per byte over seeds and documents: estimates, curves, and the data that an arm saves.

An estimate is a mean over seeds, and over held-out documents. Both are sources of error: other
seeds would have given other models, other documents another mean. The variance over seeds is the
variance of the seeds' values (Student's t with S - 1 degrees of freedom). The variance over
documents is the jackknife's (each document left out in turn; with `cluster: host`, each host with
all of its documents). `bsmeta.report.inference` combines them. Estimates of a study have the same
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
    ErrorSource,
    assign_host_clusters,
    compute_cluster_degrees,
    compute_half_width,
    compute_jackknife_variance,
    compute_p_value,
    leave_one_out,
    sum_by_cluster,
)
from bsmeta.studies.config import DOCUMENT, FLOPS, TEXT, TOKENS, WITH, WITHOUT, StudyConfig
from bsmeta.studies.runs import Measurement

Floats = NDArray[np.float64]

AMOUNT_TOLERANCE = 0.02
"""Share of its tokens by which an amount may lie outside a curve (because of padding)."""

_NUM_GRID_POINTS = 512


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and documents.

    Attributes:
        seeds: float64 [seeds], the value of each seed.
        changes: float64 [all units], the change of the mean over seeds if each document, or each
            host, is left out; 0 for a unit that does not take part.
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
        return math.sqrt(compute_jackknife_variance(self.changes, self.units))

    @property
    def sources(self) -> list[ErrorSource]:
        """The sources of error; with one seed, the documents alone."""
        documents = ErrorSource(self.document_error**2, self.degrees)
        count = len(self.seeds)
        if count == 1:
            return [documents]
        return [ErrorSource(self.deviation**2 / count, count - 1), documents]

    @property
    def low(self) -> float:
        """Lower end of the 95% interval."""
        return self.value - compute_half_width(self.sources)

    @property
    def high(self) -> float:
        """Upper end of the 95% interval."""
        return self.value + compute_half_width(self.sources)

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that the true value is 0; 1 for a single seed."""
        return 1.0 if len(self.seeds) == 1 else compute_p_value(self.value, self.sources)


def estimate_bits_per_byte(nats: Floats, sizes: Floats) -> Estimate:
    """Returns the mean over seeds of the bits per byte over documents, or hosts.

    Args:
        nats: float64 [seeds, documents].
        sizes: float64 [documents], bytes; 0 for a document that does not take part.
    """
    return estimate_ratio(nats / math.log(2), sizes)


def estimate_ratio(values: Floats, weights: Floats) -> Estimate:
    """Returns the mean over seeds of sum(values) / sum(weights), over documents (or questions).

    Args:
        values: float64 [seeds, documents].
        weights: float64 [documents]; 0 for a document that does not take part.

    Returns:
        The estimate; NaN, of no documents, if none takes part.
    """
    takes_part = weights > 0
    values = np.where(takes_part, values, 0.0)
    total_weight = float(weights.sum())
    if not total_weight:
        return Estimate(np.full(len(values), math.nan), np.zeros(len(weights)), 0, -1)

    changes = leave_one_out(values.mean(axis=0), weights)  # all seeds have the same weights
    units = int(takes_part.sum())
    return Estimate(values.sum(axis=1) / total_weight, changes, units, units - 1)


def estimate_ratio_over_clusters(values: Floats, weights: Floats, clusters: np.ndarray) -> Estimate:
    """Returns the same as `estimate_ratio`, with clusters of documents (or questions) as the units.

    Args:
        clusters: int64 [documents], the index of each document's cluster.
    """
    cluster_weights = sum_by_cluster(weights, clusters)
    cluster_values = sum_by_cluster(np.where(weights > 0, values, 0.0), clusters)
    estimate = estimate_ratio(cluster_values, cluster_weights)
    return replace(estimate, degrees=compute_cluster_degrees(cluster_weights))


@dataclass(frozen=True)
class Curve:
    """Bits per byte at rising numbers of tokens (or FLOPs), float64 [points]."""

    amounts: Floats
    points: Sequence[Estimate]

    def interpolate_at(self, amount: float) -> Estimate | None:
        """Returns the bits per byte at an amount, interpolated on its logarithm.

        None outside the curve.
        """
        amounts = self.amounts
        if (
            not amounts[0] * (1 - AMOUNT_TOLERANCE)
            <= amount
            <= amounts[-1] * (1 + AMOUNT_TOLERANCE)
        ):
            return None
        nearest = int(np.abs(amounts - amount).argmin())
        if math.isclose(amounts[nearest], amount, rel_tol=1e-9) or len(amounts) == 1:
            return self.points[nearest]
        return self._interpolate(np.array([np.clip(amount, amounts[0], amounts[-1])]))[0]

    def _interpolate(self, amounts: Floats) -> list[Estimate]:
        """Interpolates the estimates at amounts, for each seed and for each left-out document."""

        def interpolate(values: Floats) -> Floats:
            interpolator = PchipInterpolator(np.log(self.amounts), values)
            interpolated: Floats = interpolator(np.log(amounts))
            return interpolated

        seeds = interpolate(np.stack([point.seeds for point in self.points]))
        means = np.array([[point.value] for point in self.points])
        changes = np.stack([point.changes for point in self.points])
        changes = interpolate(means + changes) - interpolate(means)

        units = min(point.units for point in self.points)
        degrees = min(point.degrees for point in self.points)
        return [
            Estimate(values, change, units, degrees)
            for values, change in zip(seeds, changes, strict=True)
        ]

    def make_falling(self) -> Curve:
        """Returns the running minimum of the curve."""
        lowest = self.points[0]
        points = []
        for point in self.points:
            if point.value < lowest.value:
                lowest = point
            points.append(lowest)
        return Curve(self.amounts, points)

    def interpolate_finely(self) -> tuple[Floats, list[Estimate]]:
        """Returns amounts on a fine grid, and the interpolated estimate at each."""
        if len(self.amounts) == 1:
            return self.amounts, list(self.points)
        logarithms = np.log(self.amounts)
        even_grid = np.linspace(logarithms[0], logarithms[-1], _NUM_GRID_POINTS)
        grid = np.exp(np.unique(np.concatenate((even_grid, logarithms))))
        return grid, self._interpolate(grid)


@dataclass(frozen=True)
class Share:
    """A share; `bound` is `above` or `below` if it is only known to be above or below the value."""

    value: float
    bound: str = ""

    def __str__(self) -> str:
        return f"{self.bound} {self.value:.0%}".lstrip()


@dataclass(frozen=True)
class Saving:
    """The share of its data that an arm saves: 1 - its amount / the amount that the baseline needs.

    Where the baseline never reaches the arm's bits per byte, or had passed them at its first point,
    the share is only known to be above, or below, a bound. `low` and `high` are its 95% interval;
    `needed` is the amount that the baseline needs, None if the share is a bound.
    """

    share: Share
    low: Share
    high: Share
    needed: float | None

    def __str__(self) -> str:
        if self.low == self.high == self.share:
            return f"{self.share}"
        return f"{self.share} ({self.low} to {self.high})"


def estimate_saving(baseline: Curve, amount: float, arm: Estimate) -> Saving:
    """Estimates how much less an arm needs than the baseline for the same bits per byte.

    The interval is the amounts at which the baseline does not differ from the arm at the level of
    5% (like Fieller's interval of a ratio): so it is wide, or has no end, where the curve is flat.

    Args:
        amount: The amount that the arm has used.
        arm: Its bits per byte after this amount.
    """
    amounts, points = baseline.make_falling().interpolate_finely()
    effects = [arm - point for point in points]
    values = np.array([effect.value for effect in effects])
    half_widths = np.array([compute_half_width(effect.sources, ALPHA) for effect in effects])
    first = float(amounts[0])
    last = float(amounts[-1])

    def make_share(needed: float) -> Share:
        if needed > last:
            bound = "above"
        elif needed < first:
            bound = "below"
        else:
            bound = ""
        return Share(1 - amount / min(max(needed, first), last), bound)

    needed = _find_crossing(amounts, values)
    low = _find_crossing(amounts, values + half_widths)
    high = _find_crossing(amounts, values - half_widths)
    is_inside = bool(first <= needed <= last)
    return Saving(
        make_share(needed), make_share(low), make_share(high), needed if is_inside else None
    )


def _find_crossing(amounts: Floats, rising: Floats) -> float:
    """Finds the first amount at which values are no longer below 0; inf if there is none.

    0 if the first value is above 0 already: then nothing is known before it.
    """
    if rising[0] > 0:
        return 0.0
    reached = np.flatnonzero(rising >= 0)
    if not len(reached):
        return math.inf
    above = int(reached[0])
    if rising[above] == 0 or above == 0:
        return float(amounts[above])

    # Interpolated on the logarithm of the amount.
    below = above - 1
    fraction = rising[below] / (rising[below] - rising[above])
    step = np.log(amounts[above] / amounts[below])
    return float(np.exp(np.log(amounts[below]) + fraction * step))


def find_common_documents(digests: Sequence[np.ndarray]) -> list[NDArray[np.int64]]:
    """Returns the indices of the documents that all measurements have, in one order.

    Args:
        digests: For each measurement: uint64 [its documents].

    Returns:
        For each measurement: int64 [common documents].
    """
    shared = digests[0]
    for other in digests[1:]:
        if not np.array_equal(other, shared):
            shared = np.intersect1d(shared, other)

    indices = []
    for run_digests in digests:
        order = np.argsort(run_digests)
        indices.append(order[np.searchsorted(run_digests, shared, sorter=order)])
    return indices


_COUNT_NAMES = {TEXT: "targets", TOKENS: "tokens", FLOPS: "flops"}


class Measured:
    """The measurements of all arms, over the same documents and seeds.

    Args:
        measurements: The measurement of each run (arm, seed); every arm has all seeds.

    Attributes:
        digests, lengths, sites: Of each document, as in `Measurement`.
        bytes: Number of bytes that are scored.
        cluster: `document` or `host`: the units of the error over documents.
    """

    def __init__(
        self, study: StudyConfig, measurements: dict[tuple[str, int], Measurement]
    ) -> None:
        self.seeds = sorted({seed for _, seed in measurements})
        self.arms = [arm for arm in study.arms if (arm, self.seeds[0]) in measurements]
        self.cluster = study.cluster
        self._edges = np.array(study.measure.position_edges)

        indices = find_common_documents([run.digests for run in measurements.values()])
        aligned = map(Measurement.select_by_index, measurements.values(), indices)
        self._measurements = dict(zip(measurements, aligned, strict=True))

        first = self.find_first_run(self.arms[0])
        self.digests = first.digests
        self.lengths = first.lengths
        self.sites = first.sites
        self.bytes = int(first.sizes.sum())
        self._clusters = assign_host_clusters(self.sites.tolist())

    def cluster_by(self, cluster: str) -> Measured:
        """Returns the same measurements with other units of the error over documents."""
        other = copy(self)
        other.cluster = cluster
        return other

    @property
    def hosts(self) -> int:
        """Number of known hosts."""
        return len(set(self.sites.tolist()) - {""})

    @property
    def documents_without_host(self) -> int:
        """Number of documents whose host is not known."""
        return int((self.sites == "").sum())

    def count_documents(self, bins: np.ndarray | slice, documents: np.ndarray) -> int:
        """Counts the documents, among these, that have bytes in these bins."""
        sizes = self.find_first_run(self.arms[0]).sizes[documents][:, bins].sum(axis=1)
        return int((sizes > 0).sum())

    def find_run(self, arm: str, seed: int) -> Measurement:
        """Returns the measurement of a run."""
        return self._measurements[arm, seed]

    def find_first_run(self, arm: str) -> Measurement:
        """Returns the measurement of the arm's run with the first seed."""
        return self._measurements[arm, self.seeds[0]]

    def list_modes(self, arm: str) -> tuple[str, ...]:
        """Returns the ways to use an arm: without metadata, and with it if it has any."""
        return (WITHOUT, WITH) if len(self.find_first_run(arm).shown) else (WITHOUT,)

    def select_documents(self, arm: str, metadata: str) -> np.ndarray:
        """Returns which documents have these types: bool [documents].

        All have them if `metadata` is `without` or `with`.
        """
        if metadata in (WITHOUT, WITH):
            return np.ones(len(self.digests), bool)
        has_types: np.ndarray = ~np.isnan(self.find_first_run(arm).types[metadata]).any(axis=1)
        return has_types

    def select_bins(self, part: Sequence[int]) -> np.ndarray:
        """Returns the bins of bytes from the first number up to the second: bool [bins]."""
        low = part[0] if part else 0
        high = part[1] if len(part) > 1 else math.inf
        is_inside: np.ndarray = (self._edges >= low) & (self._edges < high)
        return is_inside

    def find_checkpoint(self, arm: str, share: float) -> int:
        """Returns the index of the checkpoint after a share of the arm's run."""
        steps = self.find_first_run(arm).steps
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
        """Estimates the bits per byte of a checkpoint.

        Args:
            metadata: `without`, `with`, or types that the arm has been measured with.
            point: Index of the checkpoint.
            bins: Only these bins of positions.
            documents: Only these documents.
        """
        runs = [self._measurements[arm, seed] for seed in self.seeds]
        if metadata in (WITHOUT, WITH):
            name = "without" if metadata == WITHOUT else "shown"
            nats = [getattr(run, name)[point] for run in runs]
        else:
            nats = [run.types[metadata] for run in runs]
        return self._estimate_from_nats(arm, nats, bins, documents)

    def estimate_averaged_checkpoint(
        self, arm: str, bins: np.ndarray | slice = slice(None)
    ) -> Estimate:
        """Estimates the bits per byte, without metadata, of the mean of an arm's last checkpoints.

        Args:
            bins: Only these bins of positions.
        """
        nats = [self._measurements[arm, seed].averaged[0] for seed in self.seeds]
        return self._estimate_from_nats(arm, nats, bins, slice(None))

    def _estimate_from_nats(
        self,
        arm: str,
        nats: Sequence[np.ndarray],
        bins: np.ndarray | slice,
        documents: np.ndarray | slice,
    ) -> Estimate:
        """Estimates bits per byte from the nats of each seed: float64 [documents, bins]."""
        scored = self.find_first_run(arm).sizes
        sizes = np.zeros(len(self.digests))
        sizes[documents] = scored[documents][:, bins].sum(axis=1)
        document_nats = np.stack([seed_nats[:, bins].sum(axis=1) for seed_nats in nats])
        if self.cluster == DOCUMENT:
            return estimate_bits_per_byte(document_nats, sizes)
        return estimate_ratio_over_clusters(document_nats / math.log(2), sizes, self._clusters)

    def estimate_curves(
        self,
        arm: str,
        metadata: str,
        *,
        bins: np.ndarray | slice = slice(None),
        documents: np.ndarray | slice = slice(None),
    ) -> dict[str, Curve]:
        """Returns, by axis, the bits per byte over the amount that the arm had been trained on."""
        points = [
            self.estimate(arm, metadata, point, bins=bins, documents=documents)
            for point in range(len(self.find_first_run(arm).steps))
        ]
        return {axis: Curve(amounts, points) for axis, amounts in self.compute_amounts(arm).items()}

    def compute_amounts(self, arm: str) -> dict[str, np.ndarray]:
        """Returns, by axis, the amount used up to each checkpoint (geometric mean over seeds)."""
        runs = [self._measurements[arm, seed] for seed in self.seeds]
        amounts = {}
        for axis, name in _COUNT_NAMES.items():
            logarithms = [np.log(getattr(run, name)) for run in runs]
            amounts[axis] = np.exp(np.mean(logarithms, axis=0))
        return amounts
