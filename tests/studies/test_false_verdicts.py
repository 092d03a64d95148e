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
    verdict_rates = SCRIPT["false_verdicts"](seeds, claims, noise, STUDIES, 1)
    assert verdict_rates.studies == STUDIES
    assert verdict_rates.count <= binom.ppf(1 - RARE, STUDIES, 0.05)


@pytest.mark.long
@pytest.mark.parametrize("noise", SCRIPT["NOISES"][:2], ids=lambda noise: noise.name)
@pytest.mark.parametrize("seeds", [3, 8])
def test_an_effect_is_detected_at_the_predicted_rate(seeds: int, noise: object) -> None:
    verdict_rates, predicted, _ = SCRIPT["power_found"](seeds, 6, noise, STUDIES, 1)
    assert predicted == pytest.approx(0.8, abs=0.03)
    # the prediction is to be within three points of the power
    low, high = (
        binom.ppf(RARE, STUDIES, predicted - 0.03),
        binom.ppf(1 - RARE, STUDIES, predicted + 0.03),
    )
    assert low <= verdict_rates.count <= high


MOST_FALSE = binom.ppf(1 - RARE, 200, 0.05)


@pytest.mark.slow
def test_threats_give_false_verdicts_only_without_their_guards() -> None:
    rates = {
        (threat, guard): (rate, is_guarded)
        for threat, guard, rate, is_guarded in SCRIPT["guarded_rates"](200, 1)
    }
    assert {key for key, (_, is_guarded) in rates.items() if is_guarded} == {
        ("arm × host, 0.01", "cluster: host"),
        ("arm × host, 0.03", "cluster: host"),
        ("machine, 0.02", "a seed on one"),
        ("dropped seeds", "declared"),
        ("dropped seeds", "deleted"),
    }
    for rate, is_guarded in rates.values():
        assert not is_guarded or rate.count <= MOST_FALSE
    for threat, guard, least in (
        ("arm × host, 0.03", "cluster: document", 0.2),
        ("arm × machine, 0.02", "none", 0.3),
        ("machine, 0.02", "arms on different machines", 0.3),
        ("dropped seeds", "none", 0.1),
    ):
        assert rates[threat, guard][0].value > least
    assert rates["arm × machine, 0.02", "not named"][0].value < (
        rates["arm × machine, 0.02", "none"][0].value
    )


@pytest.mark.parametrize("guard", ["declared", "deleted"])
def test_dropping_seeds_of_a_declared_study_gives_no_verdict(guard: str) -> None:
    dropped = SCRIPT["verdicts_with_dropped_seeds"]
    assert dropped("none", 60, 1).value > 0.08
    assert dropped(guard, 60, 1).count <= binom.ppf(1 - RARE, 60, 0.05)


def test_machines_cause_no_false_verdicts_if_arms_of_a_seed_share_one() -> None:
    settings = (12, 2)
    divided = SCRIPT["false_verdicts"](*settings, SCRIPT["DIVIDED"], 100, 1)
    together = SCRIPT["false_verdicts"](*settings, SCRIPT["TOGETHER"], 100, 1)
    assert divided.value > 0.3
    assert together.count <= binom.ppf(1 - RARE, 100, 0.05)


def test_the_report_names_machines_that_change_arms_differently() -> None:
    noise = SCRIPT["OF_MACHINES"]
    every = SCRIPT["false_verdicts"](12, 2, noise, 60, 1)
    unnamed = SCRIPT["unnamed_verdicts"](noise, 60, 1)
    assert every.value > 0.3
    assert unnamed.count < every.count


def test_a_rate_has_the_interval_of_clopper_and_pearson() -> None:
    rate = SCRIPT["Rate"](5, 100)
    assert rate.interval == pytest.approx((0.0164, 0.1128), abs=1e-4)
    assert str(rate) == "5.0% [1.6% to 11.3%]"
