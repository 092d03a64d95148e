"""Metrics of an evaluation, from the sums of its documents."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom, t

from bsmeta.tasks.causal_lm.evaluation.arms import Arm, Comparison
from bsmeta.tasks.causal_lm.evaluation.results import (
    ComparisonSums,
    compute_paired_metrics,
    compute_sign_test,
    make_rows,
)
from tests.tasks.causal_lm.evaluation.helpers import LN2, make_metrics, make_sums

HOSTS = 12
EVALUATIONS = 300


def test_metrics_are_weighted_by_bytes() -> None:
    sums = np.array(
        [
            [10.0, 2.0, 20 * LN2, 10 * LN2, 2.0],  # 2 bits a byte, then 1
            [30.0, 8.0, 30 * LN2, 30 * LN2, 8.0],  # 1 bit a byte, both times
            [0.0, 0.0, 0.0, 0.0, 0.0],  # nothing to compare
        ]
    )
    metrics, nothing = compute_paired_metrics(np.stack([sums, 0 * sums]), resamples=100, seed=1)
    assert nothing is None
    assert metrics is not None
    assert metrics.documents == 2
    assert metrics.bytes == 40
    assert metrics.tokens == 10
    assert metrics.bits_per_byte_without == pytest.approx(50 / 40)
    assert metrics.bits_per_byte_with == pytest.approx(40 / 40)
    assert metrics.difference == pytest.approx(-10 / 40)
    assert metrics.mean_document_difference == pytest.approx(-0.5)
    assert metrics.perplexity_without == pytest.approx(2 ** (50 / 10))
    assert metrics.perplexity_with == pytest.approx(2 ** (40 / 10))
    assert (metrics.documents_better, metrics.documents_worse) == (1, 0)


def test_the_sign_test_is_exact_and_binomial() -> None:
    assert compute_sign_test(0, 0) == 1.0
    assert compute_sign_test(5, 5) == 1.0
    assert compute_sign_test(10, 0) == pytest.approx(2 / 2**10)
    assert compute_sign_test(1, 7) == pytest.approx(2 * (1 + 8) / 2**8)
    assert compute_sign_test(0, 40_000) == 0.0


def test_a_single_document_has_no_interval() -> None:
    sums = np.array([[[10.0, 2.0, 20 * LN2, 10 * LN2, 2.0]]])
    (metrics,) = compute_paired_metrics(sums, resamples=100, seed=1, family=[0])
    assert metrics is not None
    assert metrics.difference == pytest.approx(-1.0)
    assert metrics.relative == pytest.approx(-0.5)
    assert (metrics.difference_low, metrics.difference_high) == (None, None)
    assert (metrics.simultaneous_low, metrics.simultaneous_high) == (None, None)
    assert (metrics.mean_document_difference_low, metrics.sign_test_p_holm) == (None, 1.0)


def test_only_the_family_of_comparisons_is_corrected() -> None:
    generator = np.random.default_rng(1)
    sums = np.ones((3, 50, 5))
    sums[:, :, 3] += generator.normal(size=(3, 50))
    first, second, outside = compute_paired_metrics(sums, resamples=500, seed=0, family=[0, 1])
    assert first is not None
    assert second is not None
    assert outside is not None
    bits = (sums[0, :, 3] - 1) / LN2
    # two at 97.5% each, 49 degrees: 2.3124 standard errors
    half = first.simultaneous_high - first.difference
    assert half == pytest.approx(2.3124 * bits.std() / math.sqrt(50), rel=0.1)
    for comparison in (first, second):
        assert comparison.simultaneous_low < comparison.difference_low < comparison.difference_high
        assert comparison.simultaneous_high > comparison.difference_high
    assert outside.simultaneous_low is None
    assert outside.sign_test_p_holm is None


def test_the_interval_over_hosts_follows_student() -> None:
    of_hosts = np.array([-0.3, -0.1, -0.2, 0.0])
    metrics = make_metrics(np.repeat(of_hosts, 5), [name for name in "abcd" for _ in range(5)])
    half = t.ppf(0.975, 3) * of_hosts.std(ddof=1) / 2
    assert (metrics.documents, metrics.hosts) == (20, 4)
    assert metrics.difference == pytest.approx(-0.15)
    assert metrics.difference_low == pytest.approx(-0.15 - half)
    assert metrics.difference_high == pytest.approx(-0.15 + half)
    assert metrics.mean_document_difference_high == pytest.approx(-0.15 + half)
    assert metrics.simultaneous_high == pytest.approx(-0.15 + half)  # a family of one
    assert (metrics.documents_better, metrics.documents_worse) == (15, 0)
    assert metrics.sign_test_p == pytest.approx(0.25)  # three hosts of three, one without change


def test_a_single_host_has_no_interval() -> None:
    metrics = make_metrics(np.array([-0.1, -0.2]), ["a.org", "a.org"])
    assert (metrics.hosts, metrics.difference_low, metrics.simultaneous_low) == (1, None, None)
    assert metrics.mean_document_difference_high is None


def test_an_effect_that_varies_by_host_gives_no_false_finding() -> None:
    """Metadata changes hosts by 0.03 and documents by 0.05 (deviations), by 0 on average."""
    generator = np.random.default_rng(0)
    hosts = [f"{number % HOSTS}.org" for number in range(240)]
    outside = {"documents": 0, "hosts": 0}
    for _ in range(EVALUATIONS):
        changes = np.tile(generator.normal(0, 0.03, HOSTS), 20) + generator.normal(0, 0.05, 240)
        (by_document,) = compute_paired_metrics(make_sums(changes)[None], resamples=200, seed=0)
        assert by_document is not None
        for name, metrics in (("documents", by_document), ("hosts", make_metrics(changes, hosts))):
            assert metrics.difference_low is not None
            assert metrics.difference_high is not None
            outside[name] += metrics.difference_low > 0 or metrics.difference_high < 0
    assert outside["documents"] > 0.2 * EVALUATIONS
    assert outside["hosts"] <= binom.ppf(0.9995, EVALUATIONS, 0.05)


def test_documents_without_a_comparable_byte_are_not_compared() -> None:
    values = np.zeros((4, 2, 1, 5))
    values[0] = [10.0, 5.0, 10 * LN2, 5 * LN2, 5.0]  # the other three are too short to score
    everywhere = np.ones(4, bool)
    comparison = Comparison("all", "all", Arm(()), Arm(("url",)))
    make_metrics = partial(compute_paired_metrics, resamples=10, seed=0)
    sums = {"all": ComparisonSums(values, everywhere, everywhere)}
    (row,) = make_rows([comparison], sums, np.array([10, 1, 1, 1]), [0], make_metrics)
    assert row.metrics is not None
    assert (row.prefixes_cut, row.metrics.documents) == (1, 1)
