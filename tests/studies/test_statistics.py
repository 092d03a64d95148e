"""The statistics of a study, where the answer is known: gains, savings, and nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bsmeta.studies.statistics import (
    Curve,
    Estimate,
    Resampler,
    needed_amounts,
    saving,
    simultaneous,
)

SEEDS, DOCUMENTS = 3, 120
AMOUNTS = np.array([1e4, 2e4, 4e4, 8e4, 16e4])
SIZES = np.full(DOCUMENTS, 500.0)


def nats(
    bits: float, generator: np.random.Generator, documents: np.ndarray, seeds: float = 0.01
) -> np.ndarray:
    """Nats of documents that need so many bits a byte, but for seeds and documents that differ."""
    own = generator.normal(0, seeds, (SEEDS, 1)) + generator.normal(0, 0.01, (SEEDS, DOCUMENTS))
    return (bits + documents + own) * SIZES * math.log(2)


def estimates(cells: list[np.ndarray], resamples: int = 2000) -> list[Estimate]:
    sizes = np.broadcast_to(SIZES, (len(cells), DOCUMENTS))
    return Resampler(resamples, 1).bits_per_byte(np.stack(cells), sizes)


def test_bits_per_byte_are_a_mean_over_seeds_of_a_ratio_over_documents() -> None:
    sizes = np.array([[100.0, 300.0, 0.0]])
    bits = np.array([[[200.0, 300.0, 7.0], [100.0, 700.0, 7.0]]])
    (found,) = Resampler(4000, 1).bits_per_byte(bits * math.log(2), sizes)
    assert found.value == pytest.approx((500 / 400 + 800 / 400) / 2)
    assert found.low < 1.25 < 2.0 < found.high  # the t interval of two seeds is wide


def test_one_seed_says_nothing_about_seeds() -> None:
    sizes = np.full((1, 50), 10.0)
    generator = np.random.default_rng(0)
    values = generator.normal(20, 2, (1, 1, 50)) * math.log(2)
    (found,) = Resampler(4000, 1).bits_per_byte(values, sizes)
    error = values.std() / math.log(2) / 10 / math.sqrt(50)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_the_interval_over_seeds_is_that_of_student() -> None:
    sizes = np.full((1, 5), 10.0)  # all documents are alike: only the seeds differ
    seeds = np.array([1.9, 2.0, 2.4])
    values = np.broadcast_to(seeds[:, None] * 10 * math.log(2), (1, 3, 5)).copy()
    (found,) = Resampler(100_000, 1).bits_per_byte(values, sizes)
    half = 4.3027 * seeds.std(ddof=1) / math.sqrt(3)
    assert found.value == pytest.approx(2.1)
    assert (found.low, found.high) == pytest.approx((2.1 - half, 2.1 + half), abs=0.02)


@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_an_effect_of_known_size_is_in_its_interval_as_often_as_it_should(shift: float) -> None:
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(20):
        documents = generator.normal(0, 0.2, DOCUMENTS)  # they differ much, but in both arms alike
        base, arm = estimates(
            [nats(2.5, generator, documents), nats(2.5 - shift, generator, documents)], 1000
        )
        effect = arm - base
        assert effect.high - effect.low < 0.2
        covered += effect.low <= -shift <= effect.high
    assert covered >= 17  # 19 are expected; 16 or fewer come once in 60


def test_intervals_for_all_claims_at_once_rarely_miss_one() -> None:
    generator = np.random.default_rng(6)
    missed = 0
    for _ in range(20):
        documents = generator.normal(0, 0.2, DOCUMENTS)
        base, *arms = estimates([nats(2.5, generator, documents) for _ in range(7)], 1000)
        effects = [arm - base for arm in arms]
        wide = simultaneous(effects)
        missed += any(not low <= 0 <= high for low, high in wide)
        for effect, (low, high) in zip(effects, wide, strict=True):
            assert high - low >= effect.high - effect.low
    assert missed <= 3


def curve(
    bits: np.ndarray, generator: np.random.Generator, documents: np.ndarray
) -> list[np.ndarray]:
    """Curves of seeds that differ, in every point alike, and so do the arms of one seed."""
    seeds = generator.normal(0, 0.005, (SEEDS, 1))
    return [(one + documents + seeds) * SIZES * math.log(2) for one in bits]


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0])
def test_the_saving_of_a_shifted_power_law_is_its_closed_form(factor: float) -> None:
    """An arm that learns like the baseline, from `factor` times fewer tokens."""
    generator = np.random.default_rng(7)

    def law(tokens: np.ndarray) -> np.ndarray:
        return 1.5 + 40 * tokens**-0.35

    covered = 0
    for _ in range(20):
        documents = generator.normal(0, 0.2, DOCUMENTS)
        end = AMOUNTS[-1] / 2.5
        cells = curve(law(AMOUNTS), generator, documents)
        arm = curve(law(np.array([end * factor])), generator, documents)[0]
        arm = arm + generator.normal(0, 0.002, (SEEDS, 1)) * SIZES * math.log(2)
        *points, reached = estimates([*cells, arm], 500)
        found = saving(Curve(AMOUNTS, points), end, reached)
        assert found.needed is not None
        covered += found.low.value - 0.005 <= 1 - 1 / factor <= found.high.value + 0.005
        assert found.share.value == pytest.approx(1 - 1 / factor, abs=0.2)
    assert covered >= 17


def exact(values: list[float]) -> list[Estimate]:
    return [Estimate(one, np.full(200, one)) for one in values]


def test_a_saving_outside_the_curve_is_a_bound() -> None:
    baseline = Curve(AMOUNTS, exact([4.0, 3.5, 3.0, 2.5, 2.0]))
    above = saving(baseline, 8e4, exact([1.9])[0])
    assert (str(above), above.needed) == ("above 50%", None)
    below = saving(baseline, 2e4, exact([4.5])[0])
    assert (str(below), below.needed) == ("below -100%", None)
    inside = saving(baseline, 4e4, exact([2.5])[0])
    assert inside.needed == pytest.approx(8e4)
    assert inside.share.value == pytest.approx(0.5)
    assert str(inside) == "50%"
    near = saving(baseline, 8e4, Estimate(2.1, np.linspace(1.9, 2.3, 200)))
    assert str(near) == "43% [25% to above 50%]"


def test_a_curve_that_rises_stays_at_its_lowest_value() -> None:
    bits = np.array([[4.0], [3.0], [3.2], [2.0], [2.1]])
    assert needed_amounts(AMOUNTS, bits, np.array([3.0]))[0] == pytest.approx(2e4)
    assert needed_amounts(AMOUNTS, bits, np.array([2.0]))[0] == pytest.approx(8e4)
    assert needed_amounts(AMOUNTS, bits, np.array([1.9]))[0] == math.inf
    assert needed_amounts(AMOUNTS, bits, np.array([4.1]))[0] == 0


def test_a_curve_is_read_between_its_points_and_not_beyond() -> None:
    baseline = Curve(AMOUNTS, exact([4.0, 3.5, 3.0, 2.5, 2.0]))  # straight on the logarithm
    between = baseline.at(math.sqrt(2) * 2e4)
    assert between is not None
    assert between.value == pytest.approx(3.25)
    end = baseline.at(16.2e4)
    assert end is not None
    assert end.value == 2.0
    assert baseline.at(17e4) is None
    assert baseline.at(9e3) is None


@pytest.mark.filterwarnings("error")
def test_nothing_is_extrapolated_from_a_curve_that_is_flat_at_its_end() -> None:
    bits = np.array([[4.0], [3.0], [2.0], [2.0 - 1e-9], [2.0 - 2e-9]])
    assert needed_amounts(AMOUNTS, bits, np.array([0.5]))[0] == math.inf
