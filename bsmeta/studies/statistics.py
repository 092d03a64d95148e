"""Bits per byte over seeds and documents: resamples, effects, and the data that an arm saves.

All numbers of a study come from one set of resamples, so that differences are paired by seed and by
document:

- Documents are drawn with replacement (`bsmeta.evaluation.statistics.resampled`).
- Seeds are few, and drawing from three of them would cover far too little. Instead each resample
  moves the mean over the S seeds by their deviations from it, times normal weights (a wild
  bootstrap; Mammen 1993), divided by the root of chi²/(S - 1): over normal deviations this gives
  the t interval with S - 1 degrees of freedom.

The simultaneous intervals hold for all claims at once: their half-widths are those of the single
intervals times one factor, the 95th percentile of the largest deviation over all claims (max-T;
Romano and Wolf 2005).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from bsmeta.evaluation.statistics import resampled

Floats = NDArray[np.float64]

NEAR = 0.02
"""Share of its tokens by which a curve may be exceeded and still counts as its end (padding)."""

_GRID = 512


@dataclass(frozen=True)
class Estimate:
    """A number and its resamples.

    Attributes:
        value: The estimate.
        draws: float64 [resamples].
    """

    value: float
    draws: Floats

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.value - other.value, self.draws - other.draws)

    @property
    def low(self) -> float:
        """Lower end of the 95% interval."""
        return float(np.nanpercentile(self.draws, 2.5))

    @property
    def high(self) -> float:
        """Upper end of the 95% interval."""
        return float(np.nanpercentile(self.draws, 97.5))


class Resampler:
    """Estimates of bits per byte that share their resamples.

    Args:
        resamples: Number of resamples.
        seed: Seed of the resamples.
    """

    def __init__(self, resamples: int, seed: int) -> None:
        self._resamples = resamples
        self._seed = seed

    def bits_per_byte(self, nats: Floats, sizes: Floats) -> list[Estimate]:
        """Means over seeds of the bits per byte over documents.

        Args:
            nats: float64 [cells, seeds, documents]; the seeds are the same in all cells.
            sizes: float64 [cells, documents], bytes; 0 if a document is not in a cell.
        """
        cells, seeds, documents = nats.shape
        weights = np.broadcast_to(sizes[:, None], nats.shape).reshape(-1, documents)
        bits = np.where(weights > 0, nats.reshape(-1, documents), 0.0) / math.log(2)
        values = (bits.sum(1) / weights.sum(1)).reshape(cells, seeds).mean(1)
        drawn = resampled(bits, weights, resamples=self._resamples, seed=self._seed)
        drawn = drawn.reshape(self._resamples, cells, seeds)
        means = drawn.mean(2)
        draws = means + np.einsum("rcs,rs->rc", drawn - means[:, :, None], self._pushes(seeds))
        return [Estimate(float(v), draws[:, i]) for i, v in enumerate(values)]

    def _pushes(self, seeds: int) -> Floats:
        """The weight of each seed's deviation in each resample: float64 [resamples, seeds]."""
        if seeds == 1:
            return np.zeros((self._resamples, 1))
        generator = np.random.default_rng([self._seed, seeds])
        normal = generator.standard_normal((self._resamples, seeds))
        scale = generator.chisquare(seeds - 1, (self._resamples, 1)) / (seeds - 1)
        pushes: Floats = normal / np.sqrt(scale * seeds * (seeds - 1))
        return pushes


def simultaneous(estimates: Sequence[Estimate]) -> list[tuple[float, float]]:
    """Intervals that hold for all estimates at once, at 95%."""
    if not estimates:
        return []
    values = np.array([one.value for one in estimates])
    draws = np.stack([one.draws for one in estimates], axis=1)
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    halves = (high - low) / 2  # the deviations have no variance with three seeds or fewer
    scaled = np.abs(draws - values) / np.where(halves > 0, halves, np.inf)
    factor = max(float(np.percentile(scaled.max(axis=1), 95)), 1.0)
    return [
        (float(v - factor * h), float(v + factor * h)) for v, h in zip(values, halves, strict=True)
    ]


@dataclass(frozen=True)
class Curve:
    """Bits per byte at rising numbers of tokens (or FLOPs).

    Attributes:
        amounts: float64 [points], rising.
        points: The estimate at each.
    """

    amounts: Floats
    points: Sequence[Estimate]

    def at(self, amount: float) -> Estimate | None:
        """The bits per byte at an amount, interpolated on its logarithm; None outside the curve."""
        amounts = self.amounts
        if not amounts[0] <= amount <= amounts[-1] * (1 + NEAR):
            return None
        amount = min(amount, float(amounts[-1]))
        if len(amounts) == 1:
            return self.points[0]
        value = PchipInterpolator(np.log(amounts), [one.value for one in self.points])
        draws = PchipInterpolator(np.log(amounts), np.stack([one.draws for one in self.points]))
        return Estimate(float(value(np.log(amount))), draws(np.log(amount)))


@dataclass(frozen=True)
class Share:
    """A share, or a bound of it.

    Attributes:
        value: The share.
        bound: `above` or `below` if the share is only known to be above or below the value.
    """

    value: float
    bound: str = ""

    def __str__(self) -> str:
        return f"{self.bound} {self.value:.0%}".lstrip()


@dataclass(frozen=True)
class Saving:
    """The share of its data that an arm saves: 1 - its amount / what the baseline needs.

    Where the baseline never reaches the arm's bits per byte, or had passed them at its first point,
    the share is only known to be above, or below, a bound.

    Attributes:
        share: The share.
        low, high: Its 95% interval.
        needed: What the baseline needs; None if the share is a bound.
    """

    share: Share
    low: Share
    high: Share
    needed: float | None

    def __str__(self) -> str:
        if self.low == self.high == self.share:
            return f"{self.share}"
        return f"{self.share} [{self.low} to {self.high}]"


def saving(baseline: Curve, amount: float, arm: Estimate) -> Saving:
    """How much less an arm needs than the baseline for the same bits per byte.

    Args:
        baseline: The baseline.
        amount: What the arm has used.
        arm: Its bits per byte after that.
    """
    values = np.array([[one.value] for one in baseline.points])
    needed = needed_amounts(baseline.amounts, values, np.array([arm.value]))[0]
    draws = needed_amounts(
        baseline.amounts, np.stack([one.draws for one in baseline.points]), arm.draws
    )
    first, last = float(baseline.amounts[0]), float(baseline.amounts[-1])
    low, high = np.percentile(draws, [2.5, 97.5], method="inverted_cdf")

    def share(needs: float) -> Share:
        bound = "above" if needs > last else "below" if needs < first else ""
        return Share(1 - amount / min(max(needs, first), last), bound)

    is_inside = bool(first <= needed <= last)
    return Saving(share(needed), share(low), share(high), float(needed) if is_inside else None)


def needed_amounts(amounts: Floats, bits: Floats, targets: Floats) -> Floats:
    """The first amount at which each falling curve reaches its target.

    The curve between the points is monotone (PCHIP on the logarithm of the amount), and where the
    points rise it stays at the lowest value so far.

    Args:
        amounts: float64 [points], rising.
        bits: float64 [points, curves].
        targets: float64 [curves].

    Returns:
        float64 [curves]: inf where a curve never gets so low, 0 where it begins lower.
    """
    falling = np.minimum.accumulate(bits, axis=0)
    places = np.log(amounts)
    if len(amounts) == 1:
        return np.where(falling[0] > targets, np.inf, 0.0)
    grid = np.unique(np.concatenate((np.linspace(places[0], places[-1], _GRID), places)))
    fine = PchipInterpolator(places, falling)(grid)
    above = (fine > targets).sum(axis=0)  # grid points before the target is reached
    cell = np.clip(above, 1, len(grid) - 1)
    curve = np.arange(bits.shape[1])
    before, after = fine[cell - 1, curve], fine[cell, curve]
    part = np.divide(
        before - targets, before - after, out=np.zeros_like(targets), where=before > after
    )
    part = np.clip(part, 0, 1)  # beyond the curve nothing is extrapolated
    found = np.exp(grid[cell - 1] + part * (grid[cell] - grid[cell - 1]))
    found = np.where(above == len(grid), np.inf, found)
    needed: Floats = np.where((above == 0) & (targets > fine[0]), 0.0, found)
    return needed


def common(digests: Sequence[np.ndarray]) -> list[NDArray[np.int64]]:
    """Indices of the documents that all measurements have, in one order."""
    shared = digests[0]
    for one in digests[1:]:
        shared = np.intersect1d(shared, one)
    places: list[Mapping[int, int]] = [
        {int(digest): place for place, digest in enumerate(one)} for one in digests
    ]
    return [np.array([place[int(digest)] for digest in shared], np.int64) for place in places]
