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
    """Returns nats of documents at `bits` per byte, plus deviations of seeds and documents."""
    deviations = generator.normal(0, seeds, (SEEDS, 1)) + generator.normal(
        0, 0.01, (SEEDS, DOCUMENTS)
    )
    return (bits + documents + deviations) * SIZES * math.log(2)


def test_bits_per_byte_are_a_mean_over_seeds_of_a_ratio_over_documents() -> None:
    sizes = np.array([100.0, 300.0, 0.0])
    bits = np.array([[200.0, 300.0, 7.0], [100.0, 700.0, 7.0]])
    estimate = estimate_bits_per_byte(bits * math.log(2), sizes)
    assert estimate.seeds == pytest.approx([500 / 400, 800 / 400])
    assert estimate.value == pytest.approx(1.625)
    assert estimate.units == 2
    # without the first document 500 / 300 bits, without the second 150 / 100
    assert estimate.changes == pytest.approx([500 / 300 - 1.625, 1.5 - 1.625, 0.0])
    assert estimate.low < 1.25 < 2.0 < estimate.high  # the t interval of two seeds is wide


def test_the_error_over_documents_equals_that_of_a_mean() -> None:
    generator = np.random.default_rng(0)
    values = np.tile(generator.normal(2, 0.5, 60), (4, 1))
    estimate = estimate_ratio(values, np.ones(60))
    assert estimate.document_error == pytest.approx(values[0].std(ddof=1) / math.sqrt(60))
    assert estimate.deviation == 0


def test_a_single_seed_gives_no_error_over_seeds() -> None:
    values = np.random.default_rng(0).normal(2, 0.2, (1, 50))
    estimate = estimate_ratio(values, np.ones(50))
    error = values.std(ddof=1) / math.sqrt(50)
    assert estimate.high - estimate.low == pytest.approx(2 * 2.0096 * error, rel=1e-4)
    assert estimate.p_value == 1.0
    assert math.isnan(estimate.deviation)


def test_the_interval_over_seeds_follows_student() -> None:
    seeds = np.array([1.9, 2.0, 2.4])  # all documents are alike: only the seeds differ
    estimate = estimate_ratio(np.tile(seeds[:, None], (1, 5)), np.ones(5))
    half = 4.3027 * seeds.std(ddof=1) / math.sqrt(3)
    assert estimate.value == pytest.approx(2.1)
    assert (estimate.low, estimate.high) == pytest.approx((2.1 - half, 2.1 + half), abs=1e-4)
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


def test_excluded_documents_change_nothing() -> None:
    values = np.random.default_rng(2).normal(2, 0.2, (3, 30))
    weights = np.where(np.arange(30) < 20, 1.0, 0.0)
    deviations, part = estimate_ratio(values, weights), estimate_ratio(values[:, :20], np.ones(20))
    assert (deviations.low, deviations.high) == pytest.approx((part.low, part.high))
    assert deviations.units == 20
    nothing = estimate_ratio(values, np.zeros(30))
    assert nothing.units == 0
    assert math.isnan(nothing.value)
    assert estimate_ratio(values, np.eye(30)[0]).high == math.inf  # one document has no error


@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_the_interval_of_a_known_effect_has_its_nominal_coverage(shift: float) -> None:
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
    """Returns curves of seeds; each seed's deviation is the same at all points and arms."""
    seeds = generator.normal(0, 0.005, (SEEDS, 1))
    return [(point + documents + seeds) * SIZES * math.log(2) for point in bits]


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0])
def test_the_saving_of_a_shifted_power_law_has_its_closed_form(factor: float) -> None:
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
        estimate = estimate_saving(Curve(AMOUNTS, points), end, reached)
        assert estimate.needed is not None
        # half a percent for the interpolation between points that are a factor of two apart
        covered += estimate.low.value - 0.005 <= 1 - 1 / factor <= estimate.high.value + 0.005
        assert estimate.share.value == pytest.approx(1 - 1 / factor, abs=0.2)
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


def test_the_interval_of_a_saving_covers_points_that_do_not_differ() -> None:
    # 0.5 bits for a factor of two; the arm is 2.1 ± 0.2: 1.9 is beyond the end, 2.3 at 105,560
    baseline = Curve(AMOUNTS, exact([4.0, 3.5, 3.0, 2.5, 2.0]))
    spread = 0.2 / 4.302653 * math.sqrt(3)
    near = Estimate(2.1 + spread * np.array([-1.0, 0.0, 1.0]), np.zeros(9), 9, 8)
    assert near.high == pytest.approx(2.3, abs=1e-6)
    estimate = estimate_saving(baseline, 8e4, near)
    assert estimate.low.value == pytest.approx(1 - 8e4 / (8e4 * 2**0.4), abs=1e-3)
    assert estimate.share.value == pytest.approx(1 - 8e4 / (8e4 * 2**0.8), abs=1e-3)
    assert str(estimate) == "43% (24% to above 50%)"


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


def test_seeds_and_documents_are_interpolated_alike_between_points() -> None:
    """For a line through two points, the error in the middle equals that of the mean of both."""
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
def test_a_curve_that_is_flat_at_its_end_is_not_extrapolated() -> None:
    baseline = Curve(AMOUNTS, exact([4.0, 3.0, 2.0, 2.0 - 1e-9, 2.0 - 2e-9]))
    estimate = estimate_saving(baseline, 1e4, exact([0.5])[0])
    assert (estimate.needed, str(estimate)) == (None, "above 94%")


def test_documents_are_matched_by_their_text() -> None:
    digests = [np.array(numbers, np.uint64) for numbers in ([5, 3, 9], [9, 5, 7], [3, 5, 9, 1])]
    places = find_common_documents(digests)
    matched = [numbers[place].tolist() for numbers, place in zip(digests, places, strict=True)]
    assert matched == [[5, 9]] * 3
    assert find_common_documents(digests[:1])[0].tolist() == [0, 1, 2]
