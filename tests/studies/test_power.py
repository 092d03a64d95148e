"""The power to decide a claim, and the seeds that a power needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.stats import nct, t

from bsmeta.studies.config import ClaimConfig
from bsmeta.studies.power import compute_power, count_needed_seeds, predict_power


def test_the_power_follows_the_noncentral_t_distribution() -> None:
    for seeds, count in ((3, 1), (5, 6), (12, 14)):
        critical = t.ppf(1 - 0.025 / count, seeds - 1)
        expected = nct.sf(critical, seeds - 1, 0.02 / 0.015 * seeds**0.5)
        assert compute_power(0.02, 0.015, 0.0, seeds, count) == pytest.approx(expected, abs=1e-3)
    assert compute_power(0.02, 0.015, 0.01, 12, 4) < compute_power(0.02, 0.015, 0.0, 12, 4)
    assert compute_power(0.02, 0.015, 0.0, 1, 4) == 0.0


def test_the_needed_number_of_seeds_is_the_smallest_with_the_power() -> None:
    needed = count_needed_seeds(0.01, 0.01, 0.001, 4)
    assert needed is not None
    assert (
        compute_power(0.01, 0.01, 0.001, needed, 4)
        >= 0.8
        > compute_power(0.01, 0.01, 0.001, needed - 1, 4)
    )
    assert count_needed_seeds(0.001, 1.0, 0.0, 4) is None
    planned = ClaimConfig(arm="url", pilot_deviation=0.1, smallest_difference=0.1)
    assert predict_power(planned, 12, 4) == pytest.approx(compute_power(0.1, 0.1, 0.0, 12, 4))
    assert predict_power(replace(planned, pilot_deviation=None), 12, 4) is None
