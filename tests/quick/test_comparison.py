"""Differences of readings whose bits are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import t as student

from bsmeta.quick.comparison import (
    Reading,
    collect_readings,
    compute_difference,
    count_needed_seeds_by_deviation,
    count_needed_units,
)
from tests.quick.reports import make_reports


def make_reading(bits: Sequence[float], sizes: Sequence[float]) -> Reading:
    return Reading("", "", np.array(bits, float), np.array(sizes, float))


def test_documents_of_equal_size_have_the_interval_of_student() -> None:
    differences = np.array([-0.3, -0.1, -0.2, 0.1])
    base = make_reading([100] * 4, [100] * 4)
    other = make_reading(100 * (1 + differences), [100] * 4)
    difference = compute_difference(other, base)
    half_width = student.ppf(0.975, 3) * differences.std(ddof=1) / 2
    assert difference.value == pytest.approx(-0.125)
    assert difference.interval is not None
    assert difference.interval.low == pytest.approx(-0.125 - half_width)
    assert difference.interval.high == pytest.approx(-0.125 + half_width)
    assert (difference.better, difference.worse, difference.units) == (3, 1, 4)
    assert difference.unit_variance == pytest.approx(differences.var(ddof=1))
    assert not difference.excludes_zero


def test_hosts_are_the_units_if_clusters_are_given() -> None:
    base = make_reading([100] * 6, [100] * 6)
    other = make_reading([90, 90, 90, 90, 110, 110], [100] * 6)
    difference = compute_difference(other, base, np.array([0, 0, 1, 1, 2, 2]))
    assert (difference.units, difference.better, difference.worse) == (3, 2, 1)
    assert difference.value == pytest.approx(-1 / 30)


def test_a_single_document_has_no_interval() -> None:
    difference = compute_difference(make_reading([90], [100]), make_reading([100], [100]))
    assert difference.interval is None
    assert difference.value == pytest.approx(-0.1)
    assert not difference.excludes_zero
    assert count_needed_units(difference) is None


def test_the_number_of_documents_needed_follows_from_the_variance() -> None:
    rng = np.random.default_rng(0)
    base = make_reading([100] * 50, [100] * 50)
    differences = rng.normal(-0.01, 0.05, 50)
    difference = compute_difference(make_reading(100 * (1 + differences), [100] * 50), base)
    # (1.95996 + 0.84162)² times the variance over the squared mean
    expected = 7.84888 * differences.var(ddof=1) / differences.mean() ** 2
    assert count_needed_units(difference) == math.ceil(expected)

    equal = compute_difference(base, base)
    assert count_needed_units(equal) is None
    assert count_needed_seeds_by_deviation(equal) == [None, None]


def test_the_number_of_seeds_needed_does_not_depend_on_the_difference() -> None:
    for bits in (90.0, 99.0):
        difference = compute_difference(
            make_reading([bits, bits], [100, 100]), make_reading([100, 100], [100, 100])
        )
        assert count_needed_seeds_by_deviation(difference) == [5, 10]


def test_readings_are_taken_from_both_models() -> None:
    reports = make_reports(
        {"base": 2.0, "text": 1.9, "own": 1.5, "matched": 1.8, "form": 2.1, "separator": 1.7},
        hosts=["a.org", "b.org"] * 6,
    )
    result = collect_readings(*reports)
    assert result is not None
    assert result.base.bits_per_byte == pytest.approx(2.0)
    assert result.without_metadata.bits_per_byte == pytest.approx(1.9)
    assert result.with_metadata.bits_per_byte == pytest.approx(1.5)
    assert {name: reading.bits_per_byte for name, reading in result.controls.items()} == (
        pytest.approx({"wrong, same length": 1.8, "junk words": 2.1, "separator alone": 1.7})
    )
    assert result.find_strongest_control() == "separator alone"
    assert (result.unit, result.hosts) == ("documents", 2)
    assert result.main_difference.value == pytest.approx(-0.5)


def test_intervals_are_over_hosts_if_there_are_ten() -> None:
    reports = make_reports({"base": 2.0}, hosts=[f"h{number % 10}" for number in range(30)])
    result = collect_readings(*reports)
    assert result is not None
    assert result.unit == "hosts"
    assert result.main_difference.units == 10


def test_pages_without_metadata_are_excluded() -> None:
    reports = make_reports({"own": 1.0}, hosts=["a"] * 4, without_metadata=[1, 2])
    result = collect_readings(*reports)
    assert result is not None
    assert len(result.base.bits) == 2
    none = make_reports({}, hosts=["a"] * 2, without_metadata=[0, 1])
    assert collect_readings(*none) is None


def test_an_impossible_control_is_left_out() -> None:
    without, with_metadata = make_reports({"own": 1.0}, hosts=["a"] * 4)
    with_metadata.totals["matched/all"][:] = 0
    result = collect_readings(without, with_metadata)
    assert result is not None
    assert list(result.controls) == ["junk words", "separator alone"]
    assert len(result.base.bits) == 4
