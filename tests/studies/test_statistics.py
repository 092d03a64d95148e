"""The statistics of a study, where the answer is known: gains, savings, and nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, ttest_1samp

from bsmeta.studies.statistics import (
    Curve,
    Estimate,
    estimate_bits_per_byte,
    estimate_ratio,
    estimate_saving,
    find_common_documents,
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


def test_bits_per_byte_are_a_mean_over_seeds_of_a_ratio_over_documents() -> None:
    sizes = np.array([100.0, 300.0, 0.0])
    bits = np.array([[200.0, 300.0, 7.0], [100.0, 700.0, 7.0]])
    found = estimate_bits_per_byte(bits * math.log(2), sizes)
    assert found.seeds == pytest.approx([500 / 400, 800 / 400])
    assert found.value == pytest.approx(1.625)
    assert found.units == 2
    # without the first document 500 / 300 bits, without the second 150 / 100
    assert found.changes == pytest.approx([500 / 300 - 1.625, 1.5 - 1.625, 0.0])
    assert found.low < 1.25 < 2.0 < found.high  # the t interval of two seeds is wide


def test_the_error_over_documents_is_that_of_a_mean() -> None:
    generator = np.random.default_rng(0)
    values = np.tile(generator.normal(2, 0.5, 60), (4, 1))
    found = estimate_ratio(values, np.ones(60))
    assert found.document_error == pytest.approx(values[0].std(ddof=1) / math.sqrt(60))
    assert found.deviation == 0


def test_one_seed_says_nothing_about_seeds() -> None:
    values = np.random.default_rng(0).normal(2, 0.2, (1, 50))
    found = estimate_ratio(values, np.ones(50))
    error = values.std(ddof=1) / math.sqrt(50)
    assert found.high - found.low == pytest.approx(2 * 2.0096 * error, rel=1e-4)
    assert found.p_value == 1.0
    assert math.isnan(found.deviation)


def test_the_interval_over_seeds_is_that_of_student() -> None:
    seeds = np.array([1.9, 2.0, 2.4])  # all documents are alike: only the seeds differ
    found = estimate_ratio(np.tile(seeds[:, None], (1, 5)), np.ones(5))
    half = 4.3027 * seeds.std(ddof=1) / math.sqrt(3)
    assert found.value == pytest.approx(2.1)
    assert (found.low, found.high) == pytest.approx((2.1 - half, 2.1 + half), abs=1e-4)
    shifted = estimate_ratio(np.tile(seeds[:, None] - 1.5, (1, 5)), np.ones(5))
    assert shifted.p_value == pytest.approx(ttest_1samp(seeds, 1.5).pvalue)


def test_differences_are_paired_by_seed_and_document() -> None:
    generator = np.random.default_rng(1)
    documents = generator.normal(0, 1, 40)
    seeds = generator.normal(0, 1, (5, 1))
    base = estimate_ratio(3 + documents + seeds, np.ones(40))
    arm = estimate_ratio(2.9 + documents + seeds, np.ones(40))
    effect = arm - base
    assert effect.value == pytest.approx(-0.1)
    assert effect.high - effect.low < 1e-9
    assert arm.high - arm.low > 0.5


def test_documents_that_take_no_part_change_nothing() -> None:
    values = np.random.default_rng(2).normal(2, 0.2, (3, 30))
    weights = np.where(np.arange(30) < 20, 1.0, 0.0)
    own, part = estimate_ratio(values, weights), estimate_ratio(values[:, :20], np.ones(20))
    assert (own.low, own.high) == pytest.approx((part.low, part.high))
    assert own.units == 20
    nothing = estimate_ratio(values, np.zeros(30))
    assert nothing.units == 0
    assert math.isnan(nothing.value)
    assert estimate_ratio(values, np.eye(30)[0]).high == math.inf  # one document has no error


@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_an_effect_of_known_size_is_in_its_interval_as_often_as_it_should(shift: float) -> None:
    generator = np.random.default_rng(5)
    studies, covered = 400, 0
    for _ in range(studies):
        documents = generator.normal(0, 0.2, DOCUMENTS)  # they differ much, but in both arms alike
        base = estimate_bits_per_byte(nats(2.5, generator, documents), SIZES)
        arm = estimate_bits_per_byte(nats(2.5 - shift, generator, documents), SIZES)
        covered += (arm - base).low <= -shift <= (arm - base).high
    # of 400 intervals at 95%; outside these counts once in 1,000 times
    assert binom.ppf(0.0005, studies, 0.95) <= covered <= binom.ppf(0.9995, studies, 0.95)


def curve(
    bits: np.ndarray, generator: np.random.Generator, documents: np.ndarray
) -> list[np.ndarray]:
    """Curves of seeds that differ, in every point alike, and so do the arms of one seed."""
    seeds = generator.normal(0, 0.005, (SEEDS, 1))
    return [(point + documents + seeds) * SIZES * math.log(2) for point in bits]


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0])
def test_the_saving_of_a_shifted_power_law_is_its_closed_form(factor: float) -> None:
    """An arm that learns like the baseline, from `factor` times fewer tokens."""
    generator = np.random.default_rng(7)

    def law(tokens: np.ndarray) -> np.ndarray:
        return 1.5 + 40 * tokens**-0.35

    studies, covered = 60, 0
    for _ in range(studies):
        documents = generator.normal(0, 0.2, DOCUMENTS)
        end = AMOUNTS[-1] / 2.5
        cells = curve(law(AMOUNTS), generator, documents)
        arm = curve(law(np.array([end * factor])), generator, documents)[0]
        arm = arm + generator.normal(0, 0.002, (SEEDS, 1)) * SIZES * math.log(2)
        *points, reached = (estimate_bits_per_byte(cell, SIZES) for cell in (*cells, arm))
        found = estimate_saving(Curve(AMOUNTS, points), end, reached)
        assert found.needed is not None
        # half a percent for the interpolation between points that are a factor of two apart
        covered += found.low.value - 0.005 <= 1 - 1 / factor <= found.high.value + 0.005
        assert found.share.value == pytest.approx(1 - 1 / factor, abs=0.2)
    assert covered >= binom.ppf(0.0005, studies, 0.95)


def exact(values: list[float]) -> list[Estimate]:
    return [Estimate(np.full(3, value), np.zeros(9), 9, 8) for value in values]


def test_a_saving_outside_the_curve_is_a_bound() -> None:
    baseline = Curve(AMOUNTS, exact([4.0, 3.5, 3.0, 2.5, 2.0]))
    above = estimate_saving(baseline, 8e4, exact([1.9])[0])
    assert (str(above), above.needed) == ("above 50%", None)
    below = estimate_saving(baseline, 2e4, exact([4.5])[0])
    assert (str(below), below.needed) == ("below -100%", None)
    inside = estimate_saving(baseline, 4e4, exact([2.5])[0])
    assert inside.needed == pytest.approx(8e4)
    assert inside.share.value == pytest.approx(0.5)
    assert str(inside) == "50%"


def test_the_interval_of_a_saving_is_where_the_curve_does_not_differ() -> None:
    # 0.5 bits for a factor of two; the arm is 2.1 ± 0.2: 1.9 is beyond the end, 2.3 at 105,560
    baseline = Curve(AMOUNTS, exact([4.0, 3.5, 3.0, 2.5, 2.0]))
    spread = 0.2 / 4.302653 * math.sqrt(3)
    near = Estimate(2.1 + spread * np.array([-1.0, 0.0, 1.0]), np.zeros(9), 9, 8)
    assert near.high == pytest.approx(2.3, abs=1e-6)
    found = estimate_saving(baseline, 8e4, near)
    assert found.low.value == pytest.approx(1 - 8e4 / (8e4 * 2**0.4), abs=1e-3)
    assert found.share.value == pytest.approx(1 - 8e4 / (8e4 * 2**0.8), abs=1e-3)
    assert str(found) == "43% (24% to above 50%)"


def test_a_curve_that_rises_stays_at_its_lowest_value() -> None:
    baseline = Curve(AMOUNTS, exact([4.0, 3.0, 3.2, 2.0, 2.1]))
    assert [point.value for point in baseline.compute_running_minimum().points] == [
        4.0,
        3.0,
        3.0,
        2.0,
        2.0,
    ]
    assert estimate_saving(baseline, 1e4, exact([3.0])[0]).needed == pytest.approx(2e4)
    assert estimate_saving(baseline, 1e4, exact([2.0])[0]).needed == pytest.approx(8e4)


def test_a_curve_is_read_between_its_points_and_not_beyond() -> None:
    baseline = Curve(AMOUNTS, exact([4.0, 3.5, 3.0, 2.5, 2.0]))  # straight on the logarithm
    between = baseline.interpolate_at(math.sqrt(2) * 2e4)
    assert between is not None
    assert between.value == pytest.approx(3.25)
    end = baseline.interpolate_at(16.2e4)
    assert end is not None
    assert end.value == 2.0
    assert baseline.interpolate_at(17e4) is None
    assert baseline.interpolate_at(9e3) is None


def test_between_points_seeds_and_documents_are_interpolated_alike() -> None:
    """A line through two points: the error in the middle is that of the mean of both."""
    generator = np.random.default_rng(8)
    first, second = (generator.normal(mean, 0.1, (4, 30)) for mean in (3.0, 2.0))
    line = Curve(
        np.array([1e4, 4e4]), [estimate_ratio(cell, np.ones(30)) for cell in (first, second)]
    )
    middle, mean = line.interpolate_at(2e4), estimate_ratio((first + second) / 2, np.ones(30))
    assert middle is not None
    assert middle.seeds == pytest.approx(mean.seeds)
    assert middle.document_error == pytest.approx(mean.document_error)


@pytest.mark.filterwarnings("error")
def test_nothing_is_extrapolated_from_a_curve_that_is_flat_at_its_end() -> None:
    baseline = Curve(AMOUNTS, exact([4.0, 3.0, 2.0, 2.0 - 1e-9, 2.0 - 2e-9]))
    found = estimate_saving(baseline, 1e4, exact([0.5])[0])
    assert (found.needed, str(found)) == (None, "above 94%")


def test_documents_are_matched_by_their_text() -> None:
    digests = [np.array(own, np.uint64) for own in ([5, 3, 9], [9, 5, 7], [3, 5, 9, 1])]
    places = find_common_documents(digests)
    matched = [own[place].tolist() for own, place in zip(digests, places, strict=True)]
    assert matched == [[5, 9]] * 3
    assert find_common_documents(digests[:1])[0].tolist() == [0, 1, 2]
