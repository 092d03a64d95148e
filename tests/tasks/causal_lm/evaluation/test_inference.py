"""Intervals, p-values and corrections that evaluations and studies share."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bsmeta.report.inference import (
    Source,
    half_width,
    holm,
    p_value,
    simultaneous_half_widths,
)


def test_one_source_gives_students_interval_and_p_value() -> None:
    # tables of Student's t: 2 degrees 4.3027, 11 degrees 2.2010, and 9.9248 at 1%
    assert half_width([Source(4.0, 2)]) == pytest.approx(2 * 4.3027, abs=1e-4)
    assert half_width([Source(1.0, 11)]) == pytest.approx(2.2010, abs=1e-4)
    assert half_width([Source(1.0, 2)], 0.01) == pytest.approx(9.9248, abs=1e-4)
    assert p_value(-4.3027, [Source(1.0, 2)]) == pytest.approx(0.05, abs=1e-5)
    assert p_value(9.9248, [Source(1.0, 2)]) == pytest.approx(0.01, abs=1e-5)


def test_two_sources_give_an_interval_whose_level_is_the_p_value() -> None:
    sources = [Source(1.0, 2), Source(0.5, 300)]
    expected = math.sqrt(4.3027**2 + 0.5 * 1.9679**2)
    assert half_width(sources) == pytest.approx(expected, abs=1e-3)
    assert p_value(half_width(sources), sources) == pytest.approx(0.05, rel=1e-6)
    assert p_value(half_width(sources, 1e-6), sources) == pytest.approx(1e-6, rel=1e-6)
    assert p_value(1e-12, sources) == pytest.approx(1.0)
    assert p_value(1e60, sources) < 1e-50
    # a source that does not vary adds nothing
    assert half_width([Source(1.0, 2), Source(0.0, 9)]) == half_width([Source(1.0, 2)])


def test_nothing_is_concluded_from_one_unit() -> None:
    assert half_width([Source(1.0, 0)]) == math.inf
    assert p_value(100.0, [Source(1.0, 0), Source(1.0, 50)]) == 1.0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_interval_of_two_sources_covers_as_often_as_it_promises(share: float) -> None:
    """Few seeds, many documents; also far in the tail, where approximate degrees do not hold."""
    generator = np.random.default_rng(3)
    count, degrees = 40_000, (2, 99)
    variances = (share, 1 - share)
    drawn = [
        variance * generator.chisquare(own, count) / own
        for variance, own in zip(variances, degrees, strict=True)
    ]
    error = generator.standard_normal(count)
    for alpha in (0.05, 0.004):
        squares = [
            half_width([Source(1.0, own)], alpha) ** 2 * variance
            for own, variance in zip(degrees, drawn, strict=True)
        ]
        missed = int((error**2 > sum(squares)).sum())
        # not more than a binomial count exceeds once in 10,000 times
        assert missed <= alpha * count + 3.8 * math.sqrt(alpha * count)


def test_holm_is_the_step_down_procedure() -> None:
    # 0.01 * 4, 0.02 * 3, 0.03 * 2 (not below the one before), 0.6 * 1
    assert holm([0.03, 0.6, 0.01, 0.02]) == pytest.approx([0.06, 0.6, 0.04, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_intervals_of_a_family_are_those_of_bonferroni() -> None:
    # ten at 99.5% each: 2.8070 standard errors, with many degrees of freedom
    members = [[Source(float(scale) ** 2, 10**9)] for scale in range(1, 11)]
    halves = simultaneous_half_widths(members)
    assert halves == pytest.approx([2.8070 * scale for scale in range(1, 11)], abs=1e-3)
    assert simultaneous_half_widths(members[:1]) == pytest.approx([1.9600], abs=1e-4)
    # of a family of ten of which one has been measured
    assert simultaneous_half_widths(members[:1], 10) == pytest.approx([2.8070], abs=1e-4)
    assert simultaneous_half_widths([]) == []
