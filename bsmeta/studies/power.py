"""The power to decide a claim, and the number of seeds for a given power."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from bsmeta.report.inference import ALPHA
from bsmeta.studies.config import ClaimConfig

POWER = 0.8
"""The power for which numbers of seeds, or differences, are derived."""

_NODES = 1000  # quantiles of the variance over seeds in the numerical integration
_MAX_SEEDS = 1000


def predict_power(claim: ClaimConfig, seeds: int, count: int) -> float | None:
    """Returns the probability that a claim is supported at the smallest difference of interest.

    It holds for the first step of Holm's procedure: where other claims hold as well, the power is
    larger. None if `pilot_deviation` is not set.
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
    """Returns the probability that a difference is detected, as one of `count` claims.

    As in the test of `bsmeta.report.inference`, the distribution of the variance over seeds is
    integrated numerically (without errors over documents, the result is the noncentral t).

    Args:
        difference: The true difference, in absolute value.
        deviation: Standard deviation of the difference over seeds.
        document_error: Standard error of the difference over documents.
    """
    if seeds < 2:
        return 0.0

    # The estimated variance over seeds at evenly spaced probabilities.
    variance = deviation**2 / seeds
    probabilities = (np.arange(_NODES) + 0.5) / _NODES
    estimated = variance * chdtri(seeds - 1, probabilities) / (seeds - 1)

    tail = ALPHA / count / 2
    half_widths = np.sqrt(
        stdtrit(seeds - 1, tail) ** 2 * estimated + ndtri(tail) ** 2 * document_error**2
    )
    error = math.sqrt(variance + document_error**2)
    return float(ndtr((difference - half_widths) / error).mean())


def count_needed_seeds(
    difference: float, deviation: float, document_error: float, count: int
) -> int | None:
    """Returns the seeds that detect a difference with a power of 80%; None if 1,000 are too few."""

    def is_enough(seeds: int) -> bool:
        return compute_power(difference, deviation, document_error, seeds, count) >= POWER

    numbers = range(2, _MAX_SEEDS + 1)
    index = bisect_left(numbers, True, key=is_enough)
    return numbers[index] if index < len(numbers) else None
