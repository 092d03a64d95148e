"""Measures whether predicted probabilities agree with the shares of right predictions.

For texts with one label, the probability of the predicted label is compared with whether it is
right. If a text may have several labels, the probability of each pair of a text and a label is
compared with whether the text has the label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bsmeta.report.inference import Estimate, compute_central_interval, draw_resamples


@dataclass(frozen=True)
class Bin:
    """Predictions with similar probabilities."""

    low: float  # lowest probability
    high: float  # highest probability
    count: int
    mean_probability: float
    share_right: Estimate


@dataclass(frozen=True)
class Calibration:
    """The calibration of a run, with 95% bootstrap intervals."""

    bins: list[Bin]  # without empty bins, the lowest probability first
    overconfidence: Estimate  # mean probability minus share of right predictions
    expected_error: Estimate
    """Expected calibration error: mean distance of mean probability and share of right predictions
    in a bin, weighted by the predictions in the bin (Guo et al. 2017, arXiv 1706.04599)."""


def measure_calibration(
    probabilities: np.ndarray,
    is_right: np.ndarray,
    unit_numbers: np.ndarray,
    *,
    bin_count: int,
    resamples: int,
    seed: int,
) -> Calibration:
    """Measures the calibration of predictions.

    Args:
        probabilities: float64 [texts, n], of n predictions for each text.
        is_right: bool [texts, n].
        unit_numbers: int [texts], index of the resampled unit of each text, without gaps.
        bin_count: Number of equally wide bins.
    """
    bins = np.minimum((probabilities * bin_count).astype(np.int64), bin_count - 1)
    counts = _sum_cells(np.ones(bins.shape), bins, unit_numbers, bin_count)
    probability_sums = _sum_cells(probabilities, bins, unit_numbers, bin_count)
    right_sums = _sum_cells(is_right.astype(np.float64), bins, unit_numbers, bin_count)

    share_draws: list[np.ndarray] = []
    error_draws: list[np.ndarray] = []
    excess_draws: list[np.ndarray] = []
    for times in draw_resamples(len(counts), resamples=resamples, seed=seed):
        weights = times.astype(np.float64)
        drawn_counts = weights @ counts
        drawn_right = weights @ right_sums
        excess = weights @ probability_sums - drawn_right
        undefined = np.full_like(drawn_right, np.nan)
        share_draws.append(
            np.divide(drawn_right, drawn_counts, out=undefined, where=drawn_counts > 0)
        )
        error_draws.append(np.abs(excess).sum(1) / drawn_counts.sum(1))
        excess_draws.append(excess.sum(1) / drawn_counts.sum(1))

    total_counts = counts.sum(0)
    total_excess = (probability_sums - right_sums).sum(0)
    return Calibration(
        bins=_make_bins(
            total_counts,
            probability_sums.sum(0),
            right_sums.sum(0),
            np.concatenate(share_draws),
        ),
        overconfidence=Estimate(
            float(total_excess.sum() / total_counts.sum()),
            compute_central_interval(np.concatenate(excess_draws)),
        ),
        expected_error=Estimate(
            float(np.abs(total_excess).sum() / total_counts.sum()),
            compute_central_interval(np.concatenate(error_draws)),
        ),
    )


def _make_bins(
    counts: np.ndarray, probability_sums: np.ndarray, right_sums: np.ndarray, shares: np.ndarray
) -> list[Bin]:
    """Makes the bins that have predictions.

    Args:
        counts: float64 [bins], number of predictions.
        probability_sums: float64 [bins], sums of the probabilities.
        right_sums: float64 [bins], numbers of right predictions.
        shares: float64 [resamples, bins], shares of right predictions.
    """
    filled_bins: list[Bin] = []
    for number in np.flatnonzero(counts).tolist():
        count = counts[number]
        share = float(right_sums[number] / count)
        filled_bins.append(
            Bin(
                low=number / len(counts),
                high=(number + 1) / len(counts),
                count=int(count),
                mean_probability=float(probability_sums[number] / count),
                share_right=Estimate(share, compute_central_interval(shares[:, number])),
            )
        )
    return filled_bins


def _sum_cells(
    values: np.ndarray, bins: np.ndarray, unit_numbers: np.ndarray, bin_count: int
) -> np.ndarray:
    """Sums the values of each unit in each bin, float64 [units, bins]."""
    unit_count = int(unit_numbers.max()) + 1
    cells = unit_numbers[:, None] * bin_count + bins
    sums = np.bincount(cells.ravel(), values.ravel(), unit_count * bin_count)
    return sums.reshape(unit_count, bin_count)
