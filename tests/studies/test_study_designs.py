"""Seeds by design, and the effective-data factor, on measurements whose answers are known."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bsmeta.studies.config import ArmConfig, MeasureConfig, StudyConfig
from bsmeta.studies.statistics import StudyMeasurements
from tests.conftest import REPOSITORY
from tests.studies.simulated import flat, measured, measurement

SEEDS = [*range(1, 9)]
TOKENS = {360: 1_000, 720: 2_000, 1440: 4_000}
FACTOR = 1.3


@pytest.fixture
def study_designs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "experiments"))
    import study_designs

    return study_designs


def compute_bits(tokens: float) -> float:
    return 1.5 + 3.0 * (tokens / 1000) ** -0.7


@pytest.fixture
def simulated(tmp_path: Path) -> StudyMeasurements:
    """Eight seeds; arms differ by a factor of their data, levels of seeds, and noise."""
    generator = np.random.default_rng(3)
    arms = [f"{arm}_{steps}" for arm in ("none", "url") for steps in TOKENS]
    arms += ["none", "url", "constant_1440", "shuffled_1440", "none_1440_40", "url_1440_40"]
    levels = generator.normal(0, 0.1, len(SEEDS))
    noise = generator.normal(0, 0.002, (len(arms), len(SEEDS)))
    runs = {}
    for number, arm in enumerate(arms):
        name, _, rest = arm.partition("_")
        steps = int(rest.partition("_")[0] or 1440)
        bits = compute_bits(TOKENS[steps] * (FACTOR if name == "url" else 1.0))
        runs[arm] = [
            measurement(
                flat(bits + level + error, bins=2),
                targets=[TOKENS[steps]],
                nats_averaged=flat(bits + level + error / 2, bins=2) * 100 * np.log(2),
                facts={"losses": [5.0, *[2.0 + 10 * error] * 12]},
            )
            for level, error in zip(levels, noise[number], strict=True)
        ]
    study = StudyConfig(
        title="a study", out_dir=str(tmp_path), config="demo", baseline="none_1440", seeds=SEEDS,
        arms={arm: ArmConfig() for arm in arms}, measure=MeasureConfig(position_edges=[0, 128]),
    )  # fmt: skip
    return measured(study, runs)


def test_the_factor_of_simulated_data_is_recovered(
    study_designs: ModuleType, simulated: StudyMeasurements
) -> None:
    tokens, bits = study_designs.estimate_bits_by_length(simulated, "url")
    (factor,) = study_designs.fit_effective_data_factors(tokens, bits)
    assert factor.low < FACTOR < factor.high
    assert factor.high - factor.low < 0.05

    factors = study_designs.fit_effective_data_factors(tokens, bits, by_length=True)
    assert [factor.low < FACTOR < factor.high for factor in factors] == [True] * 3
    assert factors[0].high - factors[0].low < 0.05
    ratio = study_designs.compare_factors(tokens, bits)
    assert ratio.low < 1 < ratio.high


def test_a_factor_by_length_is_recovered_without_noise(study_designs: ModuleType) -> None:
    tokens = np.array([*TOKENS.values()], np.float64)
    amounts_by_arm = [tokens, tokens * [1.5, 1.2, 0.9]]
    bits_by_arm = [[compute_bits(amount) for amount in amounts] for amounts in amounts_by_arm]
    bits = np.array([bits_by_arm, bits_by_arm]) + np.array([0.0, 0.2])[:, None, None]
    factors = study_designs.fit_effective_data_factors(tokens, bits, by_length=True)
    assert [factor.value for factor in factors] == pytest.approx([1.5, 1.2, 0.9], abs=1e-4)
    assert study_designs.compare_factors(tokens, bits).value == pytest.approx(1.5 / 0.9, abs=1e-4)


def test_without_an_effect_the_interval_contains_1(study_designs: ModuleType) -> None:
    generator = np.random.default_rng(5)
    tokens = np.array([*TOKENS.values()], np.float64)
    curve = np.array([compute_bits(amount) for amount in tokens])
    misses = 0
    for _ in range(20):
        levels = generator.normal(0, 0.1, (10, 1, 1))
        bits = curve + levels + generator.normal(0, 0.005, (10, 2, 3))
        (factor,) = study_designs.fit_effective_data_factors(tokens, bits)
        misses += not factor.low <= 1 <= factor.high
    assert misses <= 4  # of 20 intervals of 95%: more in 3 of 1,000 experiments


def test_each_design_has_the_expected_deviation(
    study_designs: ModuleType, simulated: StudyMeasurements
) -> None:
    designs = {
        design.name: design.difference for design in study_designs.compare_designs(simulated)
    }
    plain = designs["text alone as the baseline"]
    gain = compute_bits(TOKENS[1440] * FACTOR) - compute_bits(TOKENS[1440])
    assert plain.value == pytest.approx(gain, abs=0.003)
    average = designs["the mean of the last four checkpoints"]
    assert average.deviation == pytest.approx(plain.deviation / 2)

    table = study_designs.make_design_table([*study_designs.compare_designs(simulated)])
    assert [row[0] for row in table.rows] == [*designs]
    assert [row[1] for row in table.rows] == [len(SEEDS)] * len(designs)


def test_training_losses_proportional_to_the_difference_leave_no_deviation(
    study_designs: ModuleType, simulated: StudyMeasurements
) -> None:
    control = study_designs.regress_on_training_loss(simulated)
    assert control.correlation == pytest.approx(1)  # the losses are the noise, ten times
    assert control.deviation == pytest.approx(0, abs=1e-9)


def test_interval_of_a_correlation(study_designs: ModuleType) -> None:
    # atanh(0.5) = 0.5493, plus and minus 1.96 / sqrt(25), and back.
    interval = study_designs.estimate_correlation_interval(0.5, 28)
    assert (interval.low, interval.high) == pytest.approx((0.1560, 0.7358), abs=1e-4)


def test_interval_of_a_deviation(study_designs: ModuleType) -> None:
    # Quantiles of chi-squared with 5 degrees of freedom: 0.8312 and 12.8325.
    interval = study_designs.estimate_deviation_interval(1.0, 5)
    assert (interval.low, interval.high) == pytest.approx((0.6242, 2.4526), abs=1e-4)
