"""Computes intervals, p-values, corrections and the bootstrap, for evaluations and studies.

A difference varies for several independent reasons: other seeds would have given other models, and
other held-out documents another mean. Each source of error contributes a variance, estimated with
some degrees of freedom. The interval

    difference ± sqrt(t1² V1 + t2² V2 + …),

where t is Student's quantile for the degrees of freedom of its source, covers the true difference
at least as often as its level promises (Banerjee 1960): given independent normal errors, coverage
is P(Z² ≤ Σ share_i t_i² chi²_i / df_i), and the distribution function of Z² is concave, so that
this is at least Σ share_i P(Z² ≤ t_i² chi²_i / df_i) = the level. With one source it is Student's
interval. The p-value is the smallest level of significance at which the interval excludes 0.

Among several differences, some exclude 0 by chance. Results that hold "all at once" are corrected
for this: p-values, which decide, by Holm's (1979) procedure, and intervals by Bonferroni's, which
Holm's refines. Neither assumes anything about the correlations of the differences; estimating them
from a few seeds would give intervals that are far too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtr, stdtrit

ALPHA = 0.05
"""Level of significance; intervals have the confidence level 1 - ALPHA."""

FEW_UNITS = 20
"""Number of resampled units below which reports call their intervals rough."""

FEW_CLUSTERS = 10
"""Number of clusters below which reports warn that their intervals are wide."""

DRAWS_AT_ONCE = 1 << 21
"""Number of document indices drawn at a time, which limits memory."""

_SMALLEST_LOG_P = -200.0
_LARGEST_LOG_P = -1e-12


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of a 95% interval."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside the interval."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95% interval."""

    value: float
    interval: Interval

    @property
    def low(self) -> float:
        return self.interval.low

    @property
    def high(self) -> float:
        return self.interval.high


@runtime_checkable
class Bounded(Protocol):
    """An interval, or an estimate, which also has a `value`.

    Attributes:
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def read_value(cell: Any) -> float:
    """Returns the number of a cell without its interval; NaN for text and for None."""
    number = getattr(cell, "value", cell)
    return float(number) if isinstance(number, int | float) else math.nan


@dataclass(frozen=True, slots=True)
class ErrorSource:
    """A source of error of an estimate.

    Attributes:
        variance: Its contribution to the variance of the estimate.
        degrees: Degrees of freedom of the variance: the number of units it was estimated from,
            minus one (`compute_cluster_degrees` for units of unequal size). With 0 degrees, the
            variance is unknown.
    """

    variance: float
    degrees: float


def compute_half_width(sources: Sequence[ErrorSource], alpha: float = ALPHA) -> float:
    """Computes the half-width of the interval at the confidence level 1 - alpha.

    Returns:
        The half-width; infinity if a source has no degrees of freedom.
    """
    if any(source.degrees < 1 for source in sources):
        return math.inf

    squares = (stdtrit(source.degrees, 1 - alpha / 2) ** 2 * source.variance for source in sources)
    return math.sqrt(sum(squares))


def compute_p_value(difference: float, sources: Sequence[ErrorSource]) -> float:
    """Computes the two-sided p-value of the hypothesis that the true difference is 0.

    Returns:
        The p-value; 1 if a source has no degrees of freedom.
    """
    if difference == 0 or any(source.degrees < 1 for source in sources):
        return 1.0

    varying = [source for source in sources if source.variance > 0]
    if not varying:
        return 0.0
    if len(varying) == 1:
        t = abs(difference) / math.sqrt(varying[0].variance)
        return float(2 * stdtr(varying[0].degrees, -t))

    def compute_log_excess(log_p: float) -> float:
        """Log of the squared half-width at significance p, over the squared difference."""
        tail = math.exp(log_p) / 2  # the lower tail, because 1 - p / 2 would be rounded to 1
        squares = (stdtrit(source.degrees, tail) ** 2 * source.variance for source in varying)
        return math.log(sum(squares)) - 2 * math.log(abs(difference))

    # At the p-value, the interval just reaches 0: it is the root of `compute_log_excess`.
    if compute_log_excess(_SMALLEST_LOG_P) < 0:
        return math.exp(_SMALLEST_LOG_P)
    if compute_log_excess(_LARGEST_LOG_P) > 0:
        return 1.0
    return math.exp(brentq(compute_log_excess, _SMALLEST_LOG_P, _LARGEST_LOG_P))


def correct_p_values(p_values: Sequence[float]) -> list[float]:
    """Corrects p-values by Holm's step-down procedure; returns them in the same order."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    steps = np.asarray(p_values)[order] * factors

    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(p_value) for p_value in corrected]


def leave_one_out(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Computes how much sum(values) / sum(weights) changes when each unit is left out.

    Args:
        values: float64 [units].
        weights: float64 [units], 0 for units that are excluded.

    Returns:
        float64 [units]; 0 for units that are excluded, and for the only one that is not.
    """
    total_value = values.sum()
    total_weight = weights.sum()
    other_weight = total_weight - weights
    has_change = (weights > 0) & (other_weight > 0)

    ratios = np.divide(
        total_value - values, other_weight, out=np.zeros(len(values)), where=has_change
    )
    return np.where(has_change, ratios - total_value / (total_weight or 1.0), 0.0)


def compute_jackknife_variance(changes: np.ndarray, units: int) -> float:
    """Computes the jackknife variance of an estimate (Efron and Tibshirani 1993, chapter 11).

    The units must be independent. Documents of the same host are not; use hosts as units instead
    (`sum_by_cluster`).

    Args:
        changes: The result of `leave_one_out`.
        units: Number of units that are not excluded.
    """
    return (units - 1) / max(units, 1) * float(np.square(changes).sum())


def compute_cluster_degrees(weights: np.ndarray) -> float:
    """Computes the degrees of freedom of a variance over clusters of unequal size.

    They are Kish's (1965) effective number of clusters minus one, which equals the number of
    clusters minus one if all have the same weight. If a few clusters hold most of the weight, the
    variance depends on these few: with the plain number of clusters minus one, up to 12% of the 95%
    intervals of 50 hosts whose sizes fall as 1 / rank^1.5 exclude the true value.

    Args:
        weights: float64 [clusters], 0 for clusters that are excluded.

    Returns:
        At least 1; 0 for a single cluster.
    """
    if np.count_nonzero(weights) < 2:
        return 0.0

    effective_count = float(weights.sum()) ** 2 / float(np.square(weights).sum())
    return max(effective_count - 1, 1.0)


def sum_by_cluster(values: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Sums the values of the documents in each cluster.

    Args:
        values: float64 [..., documents].
        clusters: int64 [documents], the number of each document's cluster, from 0.

    Returns:
        float64 [..., clusters].
    """
    sums = np.zeros((*values.shape[:-1], int(clusters.max(initial=-1)) + 1))
    np.add.at(np.moveaxis(sums, -1, 0), clusters, np.moveaxis(values, -1, 0))
    return sums


def assign_host_clusters(hosts: Sequence[str]) -> np.ndarray:
    """Assigns each document to the cluster of its host.

    The documents of a host share their layout, their subject and the information of their prefix,
    so the effect of metadata is similar for them.

    Args:
        hosts: The host of each document; a document with an unknown host ("") is its own cluster.

    Returns:
        int64 [documents], the number of each document's cluster, from 0.
    """
    # A host has no slash, so the names of unknown hosts are unique.
    names = [host or f"/{number}" for number, host in enumerate(hosts)]
    _, clusters = np.unique(names, return_inverse=True)
    return np.asarray(clusters, np.int64)


def warn_of_few_clusters(count: int, units: str) -> list[str]:
    """Returns a warning for a report if its intervals are over too few clusters; [] otherwise.

    Args:
        count: Number of clusters.
        units: The plural noun for the clusters.
    """
    if count >= FEW_CLUSTERS:
        return []

    return [
        f"{count:,} {units} are few: intervals over them are wide (expected: at least "
        f"{FEW_CLUSTERS} {units})."
    ]


def compute_simultaneous_half_widths(
    differences: Sequence[Sequence[ErrorSource]], family_size: int | None = None
) -> list[float]:
    """Computes the half-widths of intervals that hold for a whole family at once (Bonferroni).

    Args:
        differences: The sources of error of each difference.
        family_size: Number of differences in the family; None: the number of `differences`.
    """
    if family_size is None:
        family_size = len(differences)
    alpha = ALPHA / max(family_size, 1)
    return [compute_half_width(sources, alpha) for sources in differences]


def compute_bootstrap_intervals(
    values: np.ndarray, weights: np.ndarray, *, resamples: int, seed: int
) -> list[Interval]:
    """Computes the 95% bootstrap interval of sum(values) / sum(weights) for each comparison.

    Takes the arguments of `resample_ratios`; an interval is (0, 0) if all documents are excluded.
    """
    ratios = resample_ratios(values, weights, resamples=resamples, seed=seed)
    return [compute_central_interval(column) for column in ratios.T]


def resample_ratios(
    values: np.ndarray, weights: np.ndarray, *, resamples: int, seed: int
) -> np.ndarray:
    """Computes sum(values) / sum(weights) of each resample of the documents.

    Args:
        values: float64 [comparisons, documents].
        weights: float64 [comparisons, documents], 0 for documents that are excluded.
        resamples: Number of resamples, each of n draws with replacement from the n documents.

    Returns:
        float64 [resamples, comparisons]; NaN if no document of a comparison was drawn.
    """
    ratios = []
    for counts in draw_resamples(values.shape[1], resamples=resamples, seed=seed):
        value_sums = counts @ values.T
        weight_sums = counts @ weights.T
        undefined = np.full_like(value_sums, np.nan)
        ratios.append(np.divide(value_sums, weight_sums, out=undefined, where=weight_sums > 0))
    return np.concatenate(ratios)


def draw_resamples(count: int, *, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Draws resamples of `count` units, in blocks of `DRAWS_AT_ONCE` draws.

    Yields:
        int64 [resamples of the block, count], the frequency of each unit in each resample.
    """
    generator = np.random.default_rng(seed)
    block_size = max(DRAWS_AT_ONCE // max(count, 1), 1)
    for start in range(0, resamples, block_size):
        rows = min(block_size, resamples - start)
        units = generator.integers(0, count, size=(rows, count))

        # Each row gets numbers of its own, so that one call counts the units of all rows.
        units += np.arange(rows)[:, None] * count
        yield np.bincount(units.ravel(), minlength=rows * count).reshape(rows, count)


def compute_central_interval(values: np.ndarray) -> Interval:
    """Computes the central 95% interval of the values, without NaN; (0, 0) if there are none."""
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return Interval(0.0, 0.0)

    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))


def warn_of_rough_intervals(count: int, units: str) -> list[str]:
    """Returns a warning for a report if its intervals resample too few units; [] otherwise.

    Args:
        count: Number of units.
        units: The plural noun for the units.
    """
    if count >= FEW_UNITS:
        return []

    return [
        f"{count:,} {units} are few to resample: 95% intervals over them are rough, and usually "
        "too narrow."
    ]
