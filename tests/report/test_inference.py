"""Errors over units of equal and unequal size, and over clusters of documents."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.report.inference import (
    ErrorSource,
    Interval,
    assign_host_clusters,
    compute_bootstrap_intervals,
    compute_cluster_degrees,
    compute_half_width,
    compute_jackknife_variance,
    compute_p_value,
    compute_simultaneous_half_widths,
    correct_p_values,
    leave_one_out,
    sum_by_cluster,
    warn_of_few_clusters,
)

UNITS = st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 100)), min_size=2, max_size=12)


@given(UNITS)
def test_each_jackknife_change_is_the_effect_of_leaving_out_a_unit(
    units: list[tuple[float, int]],
) -> None:
    values = np.array([value if weight else 0.0 for value, weight in units])
    weights = np.array([float(weight) for _, weight in units])
    changes = leave_one_out(values, weights)
    for number in range(len(units)):
        others = np.arange(len(units)) != number
        if weights[number] and weights[others].any():
            ratio = values[others].sum() / weights[others].sum()
            expected = ratio - values.sum() / weights.sum()
        else:
            expected = 0.0
        assert changes[number] == pytest.approx(expected, abs=1e-9)


def test_the_jackknife_of_a_mean_is_the_variance_of_the_mean() -> None:
    values = np.array([1.0, 2.0, 4.0, 9.0])
    changes = leave_one_out(values, np.ones(4))
    assert compute_jackknife_variance(changes, 4) == pytest.approx(values.var(ddof=1) / 4)
    assert compute_jackknife_variance(np.zeros(3), 0) == 0.0


def test_the_documents_of_a_host_are_summed() -> None:
    clusters = assign_host_clusters(["b.org", "a.org", "b.org", "", ""])
    assert clusters[0] == clusters[2]
    assert len(set(clusters.tolist())) == 4  # two hosts, and two documents whose host is unknown
    sums = sum_by_cluster(np.array([[1.0, 2.0, 4.0, 8.0, 16.0]]), clusters)
    assert sorted(sums[0].tolist()) == [2.0, 5.0, 8.0, 16.0]
    assert sum_by_cluster(np.zeros((2, 0)), np.zeros(0, np.int64)).shape == (2, 0)


def test_the_degrees_of_freedom_depend_on_the_sizes_of_clusters() -> None:
    assert compute_cluster_degrees(np.array([5.0, 5.0, 5.0, 5.0, 0.0])) == 3.0
    # (6 + 3 + 3)² / (36 + 9 + 9)
    assert compute_cluster_degrees(np.array([6.0, 3.0, 3.0])) == pytest.approx(144 / 54 - 1)
    assert compute_cluster_degrees(np.array([1000.0, 1.0])) == 1.0
    assert compute_cluster_degrees(np.array([7.0, 0.0])) == 0.0
    assert compute_half_width([ErrorSource(1.0, 0.0)]) == math.inf


@pytest.mark.parametrize("fall", [0.0, 1.0, 1.5])
@pytest.mark.parametrize("hosts", [3, 12, 50])
def test_an_interval_over_hosts_excludes_the_true_value_at_its_level(
    hosts: int, fall: float
) -> None:
    """Sizes of hosts fall as 1 / rank^fall; 400 documents, 1,500 times."""
    generator = np.random.default_rng(hosts)
    shares = 1 / np.arange(1, hosts + 1) ** fall
    excluded = 0
    for _ in range(1500):
        clusters = generator.choice(hosts, 400, p=shares / shares.sum())
        sizes = generator.lognormal(6, 1, 400)
        bits = generator.normal(0, 0.04, hosts)[clusters] + generator.normal(0, 0.07, 400)
        values, weights = sum_by_cluster(np.stack([bits * sizes, sizes]), clusters)
        variance = compute_jackknife_variance(
            leave_one_out(values, weights), np.count_nonzero(weights)
        )
        half = compute_half_width([ErrorSource(variance, compute_cluster_degrees(weights))])
        excluded += abs(values.sum() / weights.sum()) > half
    assert excluded / 1500 < 0.068  # 3.2 standard errors above 5%


def test_a_small_number_of_hosts_is_noted() -> None:
    assert warn_of_few_clusters(10, "hosts") == []
    assert warn_of_few_clusters(5, "hosts") == [
        "5 hosts are few: intervals over them are wide (expected: at least 10 hosts)."
    ]


def test_bootstrap_is_reproducible_and_covers_the_mean() -> None:
    generator = np.random.default_rng(0)
    bits = generator.normal(-3.0, 4.0, size=400)
    sizes = np.full(400, 2.0)
    (ratio,) = compute_bootstrap_intervals(bits[None], sizes[None], resamples=10_000, seed=7)
    assert compute_bootstrap_intervals(bits[None], sizes[None], resamples=10_000, seed=7) == [ratio]
    # of a mean: the normal interval, mean ± 1.96 standard errors
    center, error = bits.mean() / 2, bits.std() / 2 / math.sqrt(400)
    assert ratio.low == pytest.approx(center - 1.96 * error, abs=0.2 * error)
    assert ratio.high == pytest.approx(center + 1.96 * error, abs=0.2 * error)


def test_bootstrap_resamples_whole_documents() -> None:
    # two documents: both the first, one of each, both the second (1/4, 1/2, 1/4)
    (ratio,) = compute_bootstrap_intervals(
        np.array([[0.0, 6.0]]), np.array([[1.0, 2.0]]), resamples=400, seed=0
    )
    assert (ratio.low, ratio.high) == (0.0, 3.0)


def test_excluded_documents_do_not_affect_the_others() -> None:
    values, weights = np.array([[1.0, 0.0, 0.0, 0.0]]), np.array([[2.0, 0.0, 0.0, 0.0]])
    assert compute_bootstrap_intervals(values, weights, resamples=50, seed=0) == [
        Interval(0.5, 0.5)
    ]
    assert compute_bootstrap_intervals(values * 0, weights * 0, resamples=50, seed=0) == [
        Interval(0.0, 0.0)
    ]


def test_bootstrap_draws_in_parts_for_many_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    values, weights = np.arange(50.0)[None], np.arange(1.0, 51.0)[None]
    whole = compute_bootstrap_intervals(values, weights, resamples=64, seed=3)
    monkeypatch.setattr("bsmeta.report.inference.DRAWS_AT_ONCE", 50 * 10)
    assert compute_bootstrap_intervals(values, weights, resamples=64, seed=3) == whole


def test_one_source_gives_the_interval_and_p_value_of_student() -> None:
    # tables of Student's t: 2 degrees 4.3027, 11 degrees 2.2010, and 9.9248 at 1%
    assert compute_half_width([ErrorSource(4.0, 2)]) == pytest.approx(2 * 4.3027, abs=1e-4)
    assert compute_half_width([ErrorSource(1.0, 11)]) == pytest.approx(2.2010, abs=1e-4)
    assert compute_half_width([ErrorSource(1.0, 2)], 0.01) == pytest.approx(9.9248, abs=1e-4)
    assert compute_p_value(-4.3027, [ErrorSource(1.0, 2)]) == pytest.approx(0.05, abs=1e-5)
    assert compute_p_value(9.9248, [ErrorSource(1.0, 2)]) == pytest.approx(0.01, abs=1e-5)


def test_two_sources_give_an_interval_whose_level_is_the_p_value() -> None:
    sources = [ErrorSource(1.0, 2), ErrorSource(0.5, 300)]
    expected = math.sqrt(4.3027**2 + 0.5 * 1.9679**2)
    assert compute_half_width(sources) == pytest.approx(expected, abs=1e-3)
    assert compute_p_value(compute_half_width(sources), sources) == pytest.approx(0.05, rel=1e-6)
    assert compute_p_value(compute_half_width(sources, 1e-6), sources) == pytest.approx(
        1e-6, rel=1e-6
    )
    assert compute_p_value(1e-12, sources) == pytest.approx(1.0)
    assert compute_p_value(1e60, sources) < 1e-50
    # a source that does not vary adds nothing
    assert compute_half_width([ErrorSource(1.0, 2), ErrorSource(0.0, 9)]) == compute_half_width(
        [ErrorSource(1.0, 2)]
    )


def test_a_single_unit_has_no_interval() -> None:
    assert compute_half_width([ErrorSource(1.0, 0)]) == math.inf
    assert compute_p_value(100.0, [ErrorSource(1.0, 0), ErrorSource(1.0, 50)]) == 1.0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_interval_of_two_sources_has_its_nominal_coverage(share: float) -> None:
    """Few seeds, many documents; also far in the tail, where approximate degrees fail."""
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
            compute_half_width([ErrorSource(1.0, own)], alpha) ** 2 * variance
            for own, variance in zip(degrees, drawn, strict=True)
        ]
        missed = int((error**2 > sum(squares)).sum())
        # not more than a binomial count exceeds once in 10,000 times
        assert missed <= alpha * count + 3.8 * math.sqrt(alpha * count)


def test_holm_is_the_step_down_procedure() -> None:
    # 0.01 * 4, 0.02 * 3, 0.03 * 2 (not below the one before), 0.6 * 1
    assert correct_p_values([0.03, 0.6, 0.01, 0.02]) == pytest.approx([0.06, 0.6, 0.04, 0.06])
    assert correct_p_values([0.5, 0.9]) == [1.0, 1.0]
    assert correct_p_values([]) == []


def test_intervals_of_a_family_follow_bonferroni() -> None:
    # ten at 99.5% each: 2.8070 standard errors, with many degrees of freedom
    members = [[ErrorSource(float(scale) ** 2, 10**9)] for scale in range(1, 11)]
    halves = compute_simultaneous_half_widths(members)
    assert halves == pytest.approx([2.8070 * scale for scale in range(1, 11)], abs=1e-3)
    assert compute_simultaneous_half_widths(members[:1]) == pytest.approx([1.9600], abs=1e-4)
    # of a family of ten of which one has been measured
    assert compute_simultaneous_half_widths(members[:1], 10) == pytest.approx([2.8070], abs=1e-4)
    assert compute_simultaneous_half_widths([]) == []
