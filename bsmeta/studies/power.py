"""Computes the power to decide a claim, and the number of seeds needed for a given power."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from bsmeta.report.inference import ALPHA
from bsmeta.studies.config import ClaimConfig

POWER = 0.8
"""The power for which reports give the number of seeds, or the smallest difference."""

_NUM_QUANTILES = 1000  # of the variance over seeds, in the numerical integration
_MAX_SEEDS = 1000


def predict_power(claim: ClaimConfig, seeds: int, count: int) -> float | None:
    """Predicts the probability that a claim is supported at the smallest difference of interest.

    It is a lower bound, from the first step of Holm's procedure: the power is larger if other
    claims hold as well.

    Args:
        seeds: Number of seeds.
        count: Number of declared claims.

    Returns:
        The probability; None without a pilot or a smallest difference.
    """
    if claim.pilot_deviation is None or claim.smallest_difference is None:
        return None
    return compute_power(
        claim.smallest_difference, claim.pilot_deviation, claim.pilot_document_error, seeds, count
    )


@lru_cache(maxsize=1024)
def compute_power(
    difference: float, deviation: float, document_error: float, seeds: int, count: int
) -> float:
    """Computes the probability that the test of a claim detects a true difference.

    The estimated variance over seeds, which the interval of `bsmeta.report.inference` depends on,
    is integrated out numerically (without errors over documents, the result is the noncentral t).

    Args:
        difference: The true difference, in absolute value.
        deviation: Standard deviation of the difference over seeds.
        document_error: Standard error of the difference over documents.
        seeds: Number of seeds.
        count: Number of declared claims, for the correction.
    """
    if seeds < 2:
        return 0.0

    # The estimated variance over seeds at evenly spaced probabilities.
    variance = deviation**2 / seeds
    probabilities = (np.arange(_NUM_QUANTILES) + 0.5) / _NUM_QUANTILES
    estimated_variances = variance * chdtri(seeds - 1, probabilities) / (seeds - 1)

    tail = ALPHA / count / 2
    half_widths = np.sqrt(
        stdtrit(seeds - 1, tail) ** 2 * estimated_variances + ndtri(tail) ** 2 * document_error**2
    )
    error = math.sqrt(variance + document_error**2)
    return float(ndtr((difference - half_widths) / error).mean())


def count_needed_seeds(
    difference: float, deviation: float, document_error: float, count: int
) -> int | None:
    """Returns the number of seeds for a power of `POWER`; None if it exceeds 1,000.

    Takes the arguments of `compute_power`.
    """

    def is_enough(seeds: int) -> bool:
        return compute_power(difference, deviation, document_error, seeds, count) >= POWER

    seed_counts = range(2, _MAX_SEEDS + 1)
    index = bisect_left(seed_counts, True, key=is_enough)  # the power rises with the seeds
    return seed_counts[index] if index < len(seed_counts) else None
