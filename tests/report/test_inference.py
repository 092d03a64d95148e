"""Errors over units of equal and unequal size, and over clusters of documents."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.report.inference import (
    Source,
    cluster_degrees,
    clusters_of_hosts,
    few_clusters,
    half_width,
    jackknife_variance,
    leave_one_out,
    sum_by_cluster,
)

UNITS = st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 100)), min_size=2, max_size=12)


@given(UNITS)
def test_each_change_is_what_the_ratio_without_the_unit_differs_by(
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
    assert jackknife_variance(changes, 4) == pytest.approx(values.var(ddof=1) / 4)
    assert jackknife_variance(np.zeros(3), 0) == 0.0


def test_the_documents_of_a_host_are_summed() -> None:
    clusters = clusters_of_hosts(["b.org", "a.org", "b.org", "", ""])
    assert clusters[0] == clusters[2]
    assert len(set(clusters.tolist())) == 4  # two hosts, and two documents whose host is unknown
    sums = sum_by_cluster(np.array([[1.0, 2.0, 4.0, 8.0, 16.0]]), clusters)
    assert sorted(sums[0].tolist()) == [2.0, 5.0, 8.0, 16.0]
    assert sum_by_cluster(np.zeros((2, 0)), np.zeros(0, np.int64)).shape == (2, 0)


def test_degrees_are_those_of_clusters_of_equal_size() -> None:
    assert cluster_degrees(np.array([5.0, 5.0, 5.0, 5.0, 0.0])) == 3.0
    # (6 + 3 + 3)² / (36 + 9 + 9)
    assert cluster_degrees(np.array([6.0, 3.0, 3.0])) == pytest.approx(144 / 54 - 1)
    assert cluster_degrees(np.array([1000.0, 1.0])) == 1.0
    assert cluster_degrees(np.array([7.0, 0.0])) == 0.0
    assert half_width([Source(1.0, 0.0)]) == math.inf


@pytest.mark.parametrize("fall", [0.0, 1.0, 1.5])
@pytest.mark.parametrize("hosts", [3, 12, 50])
def test_an_interval_over_hosts_excludes_the_true_value_in_five_percent(
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
        variance = jackknife_variance(leave_one_out(values, weights), np.count_nonzero(weights))
        half = half_width([Source(variance, cluster_degrees(weights))])
        excluded += abs(values.sum() / weights.sum()) > half
    assert excluded / 1500 < 0.068  # 3.2 standard errors above 5%


def test_few_hosts_are_said() -> None:
    assert few_clusters(10, "hosts") == []
    assert few_clusters(5, "hosts") == [
        "5 hosts are few: intervals over them are wide (expected: at least 10 hosts)."
    ]
