"""A quick run of experiments/benchmarks/false_verdicts.py: rates of simulated studies."""

from __future__ import annotations

import runpy

import pytest
from scipy.stats import binom

from tests.conftest import REPOSITORY

SCRIPT = runpy.run_path(str(REPOSITORY / "experiments/benchmarks/false_verdicts.py"))
STUDIES = 300
RARE = 0.0005
"""Probability of a count outside the accepted ones, if the rates are what they should be."""


@pytest.mark.parametrize("noise", SCRIPT["NOISES"], ids=lambda noise: noise.name)
@pytest.mark.parametrize(("seeds", "claims"), [(3, 14), pytest.param(8, 6, marks=pytest.mark.slow)])
def test_at_most_five_percent_of_studies_give_a_false_verdict(
    seeds: int, claims: int, noise: object
) -> None:
    found = SCRIPT["false_verdicts"](seeds, claims, noise, STUDIES, 1)
    assert found.studies == STUDIES
    assert found.count <= binom.ppf(1 - RARE, STUDIES, 0.05)


@pytest.mark.parametrize("noise", SCRIPT["NOISES"][:2], ids=lambda noise: noise.name)
@pytest.mark.parametrize("seeds", [3, 8])
def test_an_effect_is_found_as_often_as_predicted(seeds: int, noise: object) -> None:
    found, predicted, _ = SCRIPT["power_found"](seeds, 6, noise, STUDIES, 1)
    assert predicted == pytest.approx(0.8, abs=0.03)
    # the prediction is to be within three points of the power
    low, high = (
        binom.ppf(RARE, STUDIES, predicted - 0.03),
        binom.ppf(1 - RARE, STUDIES, predicted + 0.03),
    )
    assert low <= found.count <= high


def test_a_rate_has_the_interval_of_clopper_and_pearson() -> None:
    rate = SCRIPT["Rate"](5, 100)
    assert rate.interval == pytest.approx((0.0164, 0.1128), abs=1e-4)
    assert str(rate) == "5.0% [1.6% to 11.3%]"
