"""Estimates bits per byte over seeds and documents, curves of them, and the data that arms save.

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
            host, is left out; 0 for excluded units.
        units: Number of documents, or hosts, that are not excluded.
        degrees: Degrees of freedom of the variance over these units.
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
        """The mean over the seeds."""
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
    """Estimates the mean over seeds of the bits per byte over documents, or hosts.

    Args:
        nats: float64 [seeds, documents].
        sizes: float64 [documents], bytes; 0 for excluded documents.
    """
    return estimate_ratio(nats / math.log(2), sizes)


def estimate_ratio(values: Floats, weights: Floats) -> Estimate:
    """Estimates the mean over seeds of sum(values) / sum(weights), over documents (or questions).

    Args:
        values: float64 [seeds, documents].
        weights: float64 [documents]; 0 for excluded documents.

    Returns:
        The estimate; NaN if all documents are excluded.
    """
    is_included = weights > 0
    values = np.where(is_included, values, 0.0)
    total_weight = float(weights.sum())
    if not total_weight:
        return Estimate(np.full(len(values), math.nan), np.zeros(len(weights)), 0, -1)

    changes = leave_one_out(values.mean(axis=0), weights)  # all seeds have the same weights
    units = int(is_included.sum())
    return Estimate(values.sum(axis=1) / total_weight, changes, units, units - 1)


def estimate_ratio_over_clusters(values: Floats, weights: Floats, clusters: np.ndarray) -> Estimate:
    """Estimates the same ratio as `estimate_ratio`, with its error over clusters of documents.

    Args:
        clusters: int64 [documents], the index of each document's cluster.
    """
    cluster_weights = sum_by_cluster(weights, clusters)
    cluster_values = sum_by_cluster(np.where(weights > 0, values, 0.0), clusters)
    estimate = estimate_ratio(cluster_values, cluster_weights)
    return replace(estimate, degrees=compute_cluster_degrees(cluster_weights))


@dataclass(frozen=True)
class Curve:
    """Bits per byte over the amount of training.

    Attributes:
        amounts: float64 [points], tokens or FLOPs, ascending.
        points: The bits per byte at each amount.
    """

    amounts: Floats
    points: Sequence[Estimate]

    def interpolate_at(self, amount: float) -> Estimate | None:
        """Interpolates the bits per byte at an amount, on its logarithm; None outside the curve."""
        amounts = self.amounts
        low = amounts[0] * (1 - AMOUNT_TOLERANCE)
        high = amounts[-1] * (1 + AMOUNT_TOLERANCE)
        if not low <= amount <= high:
            return None

        nearest = int(np.abs(amounts - amount).argmin())
        if math.isclose(amounts[nearest], amount, rel_tol=1e-9) or len(amounts) == 1:
            return self.points[nearest]

        clipped = np.clip(amount, amounts[0], amounts[-1])
        return self._interpolate(np.array([clipped]))[0]

    def _interpolate(self, amounts: Floats) -> list[Estimate]:
        """Interpolates the values of the seeds and the jackknife changes at each amount."""

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

    def compute_running_minimum(self) -> Curve:
        """Returns the curve with each point replaced by the lowest point up to it."""
        lowest = self.points[0]
        points = []
        for point in self.points:
            if point.value < lowest.value:
                lowest = point
            points.append(lowest)
        return Curve(self.amounts, points)

    def interpolate_finely(self) -> tuple[Floats, list[Estimate]]:
        """Returns a fine grid of amounts, and the interpolated estimate at each of them."""
        if len(self.amounts) == 1:
            return self.amounts, list(self.points)

        logarithms = np.log(self.amounts)
        even_grid = np.linspace(logarithms[0], logarithms[-1], _NUM_GRID_POINTS)
        grid = np.exp(np.unique(np.concatenate((even_grid, logarithms))))
        return grid, self._interpolate(grid)


@dataclass(frozen=True)
class Share:
    """A share of data, or a bound on it.

    Attributes:
        bound: `above` or `below` if the share is only known to be above or below `value`.
    """

    value: float
    bound: str = ""

    def __str__(self) -> str:
        return f"{self.bound} {self.value:.0%}".lstrip()


@dataclass(frozen=True)
class Saving:
    """The share of data that an arm saves: 1 - its amount / the amount that the baseline needs.

    If the baseline never reaches the arm's bits per byte, or has already passed them at its first
    point, the share is only a bound.

    Attributes:
        low: Lower end of the 95% interval.
        high: Upper end of the 95% interval.
        needed: The amount that the baseline needs; None if the share is a bound.
    """

    share: Share
    low: Share
    high: Share
    needed: float | None

    def __str__(self) -> str:
        if self.low == self.high == self.share:
            return f"{self.share}"
        return f"{self.share} ({self.low} to {self.high})"


def estimate_saving(baseline: Curve, amount: float, bits: Estimate) -> Saving:
    """Estimates the share of data that an arm saves for the same bits per byte as the baseline.

    The interval contains the amounts at which the baseline does not differ from the arm at a
    significance level of 5% (like Fieller's interval of a ratio), so it is wide, or unbounded,
    where the curve is flat.

    Args:
        baseline: The curve of the baseline.
        amount: The amount of training of the arm.
        bits: The arm's bits per byte after this amount.
    """
    amounts, points = baseline.compute_running_minimum().interpolate_finely()
    effects = [bits - point for point in points]
    values = np.array([effect.value for effect in effects])
    half_widths = np.array([compute_half_width(effect.sources, ALPHA) for effect in effects])
    first_amount = float(amounts[0])
    last_amount = float(amounts[-1])

    def make_share(needed: float) -> Share:
        if needed > last_amount:
            bound = "above"
        elif needed < first_amount:
            bound = "below"
        else:
            bound = ""
        reached = min(max(needed, first_amount), last_amount)
        return Share(1 - amount / reached, bound)

    needed = _find_crossing(amounts, values)
    low = _find_crossing(amounts, values + half_widths)
    high = _find_crossing(amounts, values - half_widths)
    is_inside = bool(first_amount <= needed <= last_amount)
    return Saving(
        share=make_share(needed),
        low=make_share(low),
        high=make_share(high),
        needed=needed if is_inside else None,
    )


def _find_crossing(amounts: Floats, values: Floats) -> float:
    """Finds the amount at which values first reach 0; inf if they never do.

    Returns 0 if the first value is already above 0: the crossing is then before the first amount.
    """
    if values[0] > 0:
        return 0.0

    reached = np.flatnonzero(values >= 0)
    if not len(reached):
        return math.inf

    above = int(reached[0])
    if values[above] == 0:
        return float(amounts[above])

    # Interpolated on the logarithm of the amount.
    below = above - 1
    fraction = values[below] / (values[below] - values[above])
    step = np.log(amounts[above] / amounts[below])
    return float(np.exp(np.log(amounts[below]) + fraction * step))


def find_common_documents(digests: Sequence[np.ndarray]) -> list[NDArray[np.int64]]:
    """Returns the indices of the documents that all measurements have, in the same order.

    Args:
        digests: The hashes of each measurement's documents, uint64 [documents].

    Returns:
        The indices in each measurement, int64 [common documents].
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


class StudyMeasurements:
    """The measurements of all arms, over the same documents and seeds.

    Args:
        measurements: The measurement of each run (arm, seed); every arm has all seeds.

    Attributes:
        seeds: The seeds, ascending.
        arms: The measured arms, in the order of the study.
        digests, lengths, sites: As in `Measurement`.
        bytes: Number of scored bytes.
        cluster: `document` or `host`, the sampling unit of the documents.
    """

    def __init__(
        self, study: StudyConfig, measurements: dict[tuple[str, int], Measurement]
    ) -> None:
        self.seeds = sorted({seed for _, seed in measurements})
        self.arms = [arm for arm in study.arms if (arm, self.seeds[0]) in measurements]
        self.cluster = study.cluster
        self._edges = np.array(study.measure.position_edges)

        all_indices = find_common_documents([run.digests for run in measurements.values()])
        self._measurements = {
            key: measurement.select_by_index(indices)
            for (key, measurement), indices in zip(measurements.items(), all_indices, strict=True)
        }

        first = self.find_first_run(self.arms[0])
        self.digests = first.digests
        self.lengths = first.lengths
        self.sites = first.sites
        self.bytes = int(first.sizes.sum())
        self._clusters = assign_host_clusters(self.sites.tolist())

    def cluster_by(self, cluster: str) -> StudyMeasurements:
        """Returns the same measurements with another sampling unit, `document` or `host`."""
        clustered = copy(self)
        clustered.cluster = cluster
        return clustered

    @property
    def hosts(self) -> int:
        """Number of known hosts."""
        return len(set(self.sites.tolist()) - {""})

    @property
    def documents_without_host(self) -> int:
        """Number of documents whose host is unknown."""
        return int((self.sites == "").sum())

    def count_documents(self, bins: np.ndarray | slice, documents: np.ndarray) -> int:
        """Counts the selected documents that have bytes in the selected bins.

        Args:
            bins: bool [bins], or a slice.
            documents: bool [documents].
        """
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
        return (WITHOUT, WITH) if len(self.find_first_run(arm).nats_with) else (WITHOUT,)

    def select_documents(self, arm: str, metadata: str) -> np.ndarray:
        """Returns whether each document has the given types: bool [documents].

        Args:
            metadata: Types joined by +; `without` and `with` select all documents.
        """
        if metadata in (WITHOUT, WITH):
            return np.ones(len(self.digests), bool)

        nats = self.find_first_run(arm).nats_by_types[metadata]
        has_types: np.ndarray = ~np.isnan(nats).any(axis=1)
        return has_types

    def select_bins(self, byte_range: Sequence[int]) -> np.ndarray:
        """Returns whether each bin of positions is in a range of bytes: bool [bins].

        Args:
            byte_range: The range, as in `ClaimConfig.bytes`.
        """
        low = byte_range[0] if byte_range else 0
        high = byte_range[1] if len(byte_range) > 1 else math.inf
        is_inside: np.ndarray = (self._edges >= low) & (self._edges < high)
        return is_inside

    def find_checkpoint(self, arm: str, share: float) -> int:
        """Returns the index of the checkpoint closest to a share of the arm's run."""
        steps = self.find_first_run(arm).steps
        target_step = max(round(share * int(steps[-1])), 1)
        return int(np.abs(steps - target_step).argmin())

    def estimate(
        self,
        arm: str,
        metadata: str,
        checkpoint: int = -1,
        *,
        bins: np.ndarray | slice = slice(None),
        documents: np.ndarray | slice = slice(None),
    ) -> Estimate:
        """Estimates the bits per byte of a checkpoint.

        Args:
            metadata: `without`, `with`, or types that the arm has been measured with.
            checkpoint: Index of the checkpoint; types are measured only at the last one.
            bins: Only these bins of positions.
            documents: Only these documents.
        """
        runs = [self._measurements[arm, seed] for seed in self.seeds]
        if metadata == WITHOUT:
            nats = [run.nats_without[checkpoint] for run in runs]
        elif metadata == WITH:
            nats = [run.nats_with[checkpoint] for run in runs]
        else:
            nats = [run.nats_by_types[metadata] for run in runs]
        return self._estimate_from_nats(arm, nats, bins, documents)

    def estimate_averaged_checkpoint(
        self, arm: str, bins: np.ndarray | slice = slice(None)
    ) -> Estimate:
        """Estimates the bits per byte, without metadata, of the mean of an arm's last checkpoints.

        Args:
            bins: Only these bins of positions.
        """
        nats = [self._measurements[arm, seed].nats_averaged[0] for seed in self.seeds]
        return self._estimate_from_nats(arm, nats, bins, slice(None))

    def _estimate_from_nats(
        self,
        arm: str,
        nats: Sequence[np.ndarray],
        bins: np.ndarray | slice,
        documents: np.ndarray | slice,
    ) -> Estimate:
        """Estimates bits per byte.

        Args:
            nats: The nats of each seed, float64 [documents, bins].
            bins: Only these bins of positions.
            documents: Only these documents.
        """
        bin_sizes = self.find_first_run(arm).sizes
        sizes = np.zeros(len(self.digests))
        sizes[documents] = bin_sizes[documents][:, bins].sum(axis=1)
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
        """Estimates the curve of an arm's bits per byte over each axis.

        Takes the arguments of `estimate`.
        """
        points = [
            self.estimate(arm, metadata, checkpoint, bins=bins, documents=documents)
            for checkpoint in range(len(self.find_first_run(arm).steps))
        ]
        return {axis: Curve(amounts, points) for axis, amounts in self.compute_amounts(arm).items()}

    def compute_amounts(self, arm: str) -> dict[str, np.ndarray]:
        """Computes the amount of training up to each checkpoint, by axis: float64 [checkpoints].

        It is the geometric mean over seeds.
        """
        runs = [self._measurements[arm, seed] for seed in self.seeds]
        amounts = {}
        for axis, name in _COUNT_NAMES.items():
            logarithms = [np.log(getattr(run, name)) for run in runs]
            amounts[axis] = np.exp(np.mean(logarithms, axis=0))
        return amounts
