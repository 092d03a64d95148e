"""Intervals, p-values and corrections, for evaluations and studies alike; the bootstrap.

A difference can vary for several independent reasons: other seeds would have given other models,
other held-out documents another mean. Each source of error contributes a variance, estimated with
some degrees of freedom. The interval

    difference ± sqrt(t1² V1 + t2² V2 + …),

where t is Student's quantile for the degrees of freedom of its source, covers the true difference
at least as often as its level promises (Banerjee 1960): given independent normal errors, coverage
is P(Z² ≤ Σ share_i t_i² chi²_i / df_i), and the distribution function of Z² is concave, so that
this is at least Σ share_i P(Z² ≤ t_i² chi²_i / df_i) = the level. With one source it is Student's
interval. The p-value is the smallest level of significance at which the interval excludes 0.

Among several differences, some exclude 0 by chance. "All at once" has one meaning here: p-values
are corrected by Holm's (1979) procedure, which decides, and intervals by Bonferroni's, which Holm's
procedure refines. Neither assumes anything about the correlations of the differences; estimating
them from a few seeds would give intervals that are far too narrow.
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
"""Level of significance; intervals are at 1 - ALPHA."""

_LOG_P_RANGE = (-200.0, -1e-12)
FEW_UNITS = 20
"""Resampled units below which reports call their intervals rough."""
FEW_CLUSTERS = 10
"""Clusters below which reports say that their intervals are wide."""
DRAWS_AT_ONCE = 1 << 21
"""Number of document indices that are drawn at one time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of a 95% interval."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside."""
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
    """What a cell shows with both ends: an interval, or an estimate, which also has a `value`."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def value_of(cell: Any) -> float:
    """The number of a cell, without its interval; NaN for text and for None."""
    number = getattr(cell, "value", cell)
    return float(number) if isinstance(number, int | float) else math.nan


@dataclass(frozen=True, slots=True)
class Source:
    """A source of error of an estimate.

    Attributes:
        variance: The variance that it contributes to the estimate.
        degrees: Degrees of freedom of that variance: the units it was estimated from, minus one
            (`cluster_degrees` for units of unequal size). With none, nothing is known about it.
    """

    variance: float
    degrees: float


def half_width(sources: Sequence[Source], alpha: float = ALPHA) -> float:
    """Half-width of the interval at the level 1 - alpha; infinite if a source has no degrees."""
    if any(source.degrees < 1 for source in sources):
        return math.inf
    return math.sqrt(
        sum(stdtrit(source.degrees, 1 - alpha / 2) ** 2 * source.variance for source in sources)
    )


def p_value(difference: float, sources: Sequence[Source]) -> float:
    """Two-sided p-value of the hypothesis that the true difference is 0."""
    if difference == 0 or any(source.degrees < 1 for source in sources):
        return 1.0
    varying = [source for source in sources if source.variance > 0]
    if not varying:
        return 0.0
    if len(varying) == 1:
        t = abs(difference) / math.sqrt(varying[0].variance)
        return float(2 * stdtr(varying[0].degrees, -t))

    def excess(log_p: float) -> float:
        # the quantile of the tail itself: 1 - p / 2 would be rounded to 1
        tail = math.exp(log_p) / 2
        squares = (stdtrit(source.degrees, tail) ** 2 * source.variance for source in varying)
        return math.log(sum(squares)) - 2 * math.log(abs(difference))

    if excess(_LOG_P_RANGE[0]) < 0:
        return math.exp(_LOG_P_RANGE[0])
    if excess(_LOG_P_RANGE[1]) > 0:
        return 1.0
    return math.exp(brentq(excess, *_LOG_P_RANGE))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected by Holm's step-down procedure."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    steps = np.minimum(np.maximum.accumulate(np.asarray(p_values)[order] * factors), 1.0)
    corrected = np.empty(len(p_values))
    corrected[order] = steps
    return [float(p_value) for p_value in corrected]


def leave_one_out(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Changes of sum(values) / sum(weights) when each unit is left out.

    Args:
        values: float64 [units].
        weights: float64 [units], 0 if a unit does not take part.

    Returns:
        float64 [units]; 0 for a unit that does not take part, or is the only one that does.
    """
    total = weights.sum()
    rest = total - weights
    counts = (weights > 0) & (rest > 0)
    ratios = np.divide(values.sum() - values, rest, out=np.zeros(len(values)), where=counts)
    return np.where(counts, ratios - values.sum() / (total or 1.0), 0.0)


def jackknife_variance(changes: np.ndarray, units: int) -> float:
    """Variance of an estimate over its units (Efron and Tibshirani 1993, chapter 11).

    Units that are alike within groups, such as the documents of a host, are not independent: the
    groups are then the units (`sum_by_cluster`).

    Args:
        changes: The changes that `leave_one_out` returns.
        units: Number of units that take part.
    """
    return (units - 1) / max(units, 1) * float(np.square(changes).sum())


def cluster_degrees(weights: np.ndarray) -> float:
    """Degrees of freedom of a variance over clusters of unequal size; 0 for a single cluster.

    Kish's (1965) effective number of clusters minus one, which is their number minus one if all
    have the same weight. Where a few clusters hold most of the weight, the variance follows from
    these few: with the number of clusters minus one, up to 12% of the 95% intervals of 50
    hosts whose sizes fall as 1 / rank^1.5 exclude the true value.

    Args:
        weights: float64 [clusters], 0 if a cluster does not take part.
    """
    if np.count_nonzero(weights) < 2:
        return 0.0
    effective = float(weights.sum()) ** 2 / float(np.square(weights).sum())
    return max(effective - 1, 1.0)


def sum_by_cluster(values: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Sums of the documents of each cluster.

    Args:
        values: float64 [..., documents].
        clusters: int64 [documents], the number of each document's cluster, from 0.

    Returns:
        float64 [..., clusters].
    """
    sums = np.zeros((*values.shape[:-1], int(clusters.max(initial=-1)) + 1))
    np.add.at(np.moveaxis(sums, -1, 0), clusters, np.moveaxis(values, -1, 0))
    return sums


def clusters_of_hosts(hosts: Sequence[str]) -> np.ndarray:
    """The cluster of each document, int64 [documents]: its host, or itself if that is unknown ("").

    The documents of a host share their layout, their subject and what a prefix reveals about them,
    so what metadata changes is alike for them.
    """
    names = [host or f"/{number}" for number, host in enumerate(hosts)]  # a host has no slash
    _, clusters = np.unique(names, return_inverse=True)
    return np.asarray(clusters, np.int64)


def few_clusters(count: int, units: str) -> list[str]:
    """A sentence for a report whose intervals are over few clusters; [] for enough."""
    if count >= FEW_CLUSTERS:
        return []
    return [
        f"{count:,} {units} are few: intervals over them are wide (expected: at least "
        f"{FEW_CLUSTERS} {units})."
    ]


def simultaneous_half_widths(
    members: Sequence[Sequence[Source]], count: int | None = None
) -> list[float]:
    """Half-widths of intervals that hold for all members of a family at once (Bonferroni).

    Args:
        members: The sources of error of each difference.
        count: Size of the family, if it has members beside these; None: these are all.
    """
    share = ALPHA / max(len(members) if count is None else count, 1)
    return [half_width(sources, share) for sources in members]


def bootstrap(
    values: np.ndarray, weights: np.ndarray, *, resamples: int, seed: int
) -> list[Interval]:
    """95% bootstrap interval of sum(values) / sum(weights) for each comparison.

    The arguments are those of `resampled`; an interval is zero if no document takes part.
    """
    ratios = resampled(values, weights, resamples=resamples, seed=seed)
    return [central(column) for column in ratios.T]


def resampled(values: np.ndarray, weights: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
    """sum(values) / sum(weights) of each resample of the documents.

    Args:
        values: float64 [comparisons, documents].
        weights: float64 [comparisons, documents], 0 if a document does not take part.
        resamples: Resamples, each of n draws with replacement from the n documents.

    Returns:
        float64 [resamples, comparisons]; NaN if no document of a comparison was drawn.
    """
    ratios = []
    for times in draws(values.shape[1], resamples=resamples, seed=seed):
        top, bottom = times @ values.T, times @ weights.T
        ratios.append(np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0))
    return np.concatenate(ratios)


def draws(count: int, *, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields how often each of `count` units is in each resample, int64 [some resamples, count]."""
    generator = np.random.default_rng(seed)
    at_once = max(DRAWS_AT_ONCE // max(count, 1), 1)
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        drawn = generator.integers(0, count, size=(rows, count))
        drawn += np.arange(rows)[:, None] * count
        yield np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)


def central(values: np.ndarray) -> Interval:
    """The central 95% interval of the values that are not NaN; zeros if there are none."""
    values = values[~np.isnan(values)]
    low, high = np.percentile(values, [2.5, 97.5]) if len(values) else (0.0, 0.0)
    return Interval(float(low), float(high))


def rough_intervals(count: int, units: str) -> list[str]:
    """A sentence for a report whose intervals are over few resampled units; [] for enough."""
    if count >= FEW_UNITS:
        return []
    return [
        f"{count:,} {units} are few to resample: 95% intervals over them are rough, and usually "
        "too narrow."
    ]
