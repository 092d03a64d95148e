"""The power to decide a claim, and the seeds that a power needs."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from bsmeta.report.inference import ALPHA
from bsmeta.studies.config import ClaimConfig

POWER = 0.8
"""The power that is asked for where a number of seeds, or a difference, is derived from it."""

_NODES = 1000
_MOST_SEEDS = 1000


def predicted_power(claim: ClaimConfig, seeds: int, count: int) -> float | None:
    """Probability that a claim is supported if its difference is the smallest of interest.

    At the first step of Holm's procedure: where other claims hold as well, it is larger. None if
    `pilot_deviation` is not set.
    """
    if claim.pilot_deviation is None or claim.smallest_difference is None:
        return None
    return power(
        claim.smallest_difference, claim.pilot_deviation, claim.pilot_document_error, seeds, count
    )


@lru_cache(maxsize=1024)
def power(
    difference: float, deviation: float, document_error: float, seeds: int, count: int
) -> float:
    """Probability that a difference is found, as one of `count` claims.

    The test is that of `bsmeta.report.inference`: the distribution of the variance over seeds
    is integrated numerically (without errors over documents, the result is the noncentral t).

    Args:
        difference: The true difference, in absolute value.
        deviation: Standard deviation of the difference over seeds.
        document_error: Standard error of the difference over documents.
    """
    if seeds < 2:
        return 0.0
    tail = ALPHA / count / 2
    shares = (np.arange(_NODES) + 0.5) / _NODES
    variance = deviation**2 / seeds
    estimated = variance * chdtri(seeds - 1, shares) / (seeds - 1)
    halves = np.sqrt(
        stdtrit(seeds - 1, tail) ** 2 * estimated + ndtri(tail) ** 2 * document_error**2
    )
    error = math.sqrt(variance + document_error**2)
    return float(ndtr((difference - halves) / error).mean())


def seeds_needed(
    difference: float, deviation: float, document_error: float, count: int
) -> int | None:
    """Seeds with which a difference is found with a power of 80%; None if 1,000 are too few."""
    tried = range(2, _MOST_SEEDS + 1)
    place = bisect_left(
        tried,
        True,
        key=lambda seeds: power(difference, deviation, document_error, seeds, count) >= POWER,
    )
    return tried[place] if place < len(tried) else None
