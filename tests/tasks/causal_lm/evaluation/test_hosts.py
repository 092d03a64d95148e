"""Hosts as the units of the intervals of an evaluation."""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom, t

from bsmeta.report.inference import clusters_of_hosts
from bsmeta.tasks.causal_lm.evaluation.arms import Arm, Comparison
from bsmeta.tasks.causal_lm.evaluation.evaluate import compare_models
from bsmeta.tasks.causal_lm.evaluation.headline import make_headline
from bsmeta.tasks.causal_lm.evaluation.results import (
    ComparisonSums,
    ModelReport,
    PairedMetrics,
    compute_paired_metrics,
    make_rows,
)
from bsmeta.tasks.causal_lm.evaluation.tables import MAIN, make_comparison_table

LN2 = math.log(2)
ALL = Comparison("all", "all", Arm(), Arm(("url",)))
HOSTS = 12
EVALUATIONS = 300


def sums_of(differences: np.ndarray) -> np.ndarray:
    """Documents of 100 bytes that need 2 bits per byte, and that many more with metadata."""
    with_metadata = (2 + differences) * 100 * LN2
    count = len(differences)
    columns = [np.full(count, 100.0), np.full(count, 20.0), np.full(count, 200 * LN2)]
    return np.stack([*columns, with_metadata, np.full(count, 20.0)], axis=1)


def metrics_of(differences: np.ndarray, hosts: list[str]) -> PairedMetrics:
    (metrics,) = compute_paired_metrics(
        sums_of(differences)[None], resamples=10, seed=0, family=[0],
        clusters=clusters_of_hosts(hosts),
    )  # fmt: skip
    assert metrics is not None
    return metrics


def test_the_interval_is_students_over_the_hosts() -> None:
    of_hosts = np.array([-0.3, -0.1, -0.2, 0.0])
    metrics = metrics_of(np.repeat(of_hosts, 5), [name for name in "abcd" for _ in range(5)])
    half = t.ppf(0.975, 3) * of_hosts.std(ddof=1) / 2
    assert (metrics.documents, metrics.hosts) == (20, 4)
    assert metrics.difference == pytest.approx(-0.15)
    assert metrics.difference_low == pytest.approx(-0.15 - half)
    assert metrics.difference_high == pytest.approx(-0.15 + half)
    assert metrics.mean_document_difference_high == pytest.approx(-0.15 + half)
    assert metrics.simultaneous_high == pytest.approx(-0.15 + half)  # a family of one
    assert (metrics.documents_better, metrics.documents_worse) == (15, 0)
    assert metrics.sign_test_p == pytest.approx(0.25)  # three hosts of three, one without change


def test_one_host_has_no_interval() -> None:
    metrics = metrics_of(np.array([-0.1, -0.2]), ["a.org", "a.org"])
    assert (metrics.hosts, metrics.difference_low, metrics.simultaneous_low) == (1, None, None)
    assert metrics.mean_document_difference_high is None


def test_hosts_that_metadata_changes_differently_are_no_finding() -> None:
    """Metadata changes hosts by 0.03 and documents by 0.05 (deviations), by 0 on average."""
    generator = np.random.default_rng(0)
    hosts = [f"{number % HOSTS}.org" for number in range(240)]
    outside = {"documents": 0, "hosts": 0}
    for _ in range(EVALUATIONS):
        changes = np.tile(generator.normal(0, 0.03, HOSTS), 20) + generator.normal(0, 0.05, 240)
        (by_document,) = compute_paired_metrics(sums_of(changes)[None], resamples=200, seed=0)
        assert by_document is not None
        for name, metrics in (("documents", by_document), ("hosts", metrics_of(changes, hosts))):
            assert metrics.difference_low is not None
            assert metrics.difference_high is not None
            outside[name] += metrics.difference_low > 0 or metrics.difference_high < 0
    assert outside["documents"] > 0.2 * EVALUATIONS
    assert outside["hosts"] <= binom.ppf(0.9995, EVALUATIONS, 0.05)


def model(name: str, bits: np.ndarray, hosts: list[str]) -> ModelReport:
    sums = sums_of(bits - 2)
    sums[:, 2] = sums[:, 3]
    return ModelReport(name, name, {}, [], [], list(range(len(bits))), {"text": sums}, hosts=hosts)


def test_two_models_are_compared_over_hosts() -> None:
    hosts = [name for name in "abcd" for _ in range(5)]
    of_hosts = np.array([-0.3, -0.1, -0.2, -0.4])
    first = model("a", np.full(20, 2.0), hosts)
    second = model("b", 2 + np.repeat(of_hosts, 5), hosts)
    (row,) = compare_models([first, second], resamples=10, seed=0, by_host=True)
    half = t.ppf(0.975, 3) * of_hosts.std(ddof=1) / 2
    assert row.difference == pytest.approx(-0.25)
    assert row.difference_low == pytest.approx(-0.25 - half)
    assert row.difference_high == pytest.approx(-0.25 + half)
    assert row.sign_test_p == pytest.approx(2 / 2**4)
    assert (row.documents_better, row.documents_worse) == (20, 0)


def evaluated(by_host: bool) -> ModelReport:
    """Two hosts, of which metadata helps one."""
    hosts = ["a.org"] * 30 + ["b.org"] * 30
    differences = np.repeat([-0.4, 0.0], 30)
    sums = {"all": ComparisonSums(_by_bin(differences), np.ones(60, bool), np.zeros(60, bool))}
    clusters = clusters_of_hosts(hosts)
    metrics = partial(
        compute_paired_metrics, resamples=200, seed=0, clusters=clusters if by_host else None
    )
    rows = make_rows([ALL], sums, np.full(60, 100), [0], metrics)
    over_hosts = {} if by_host else {"all": metrics_of(differences, hosts)}
    data = {"documents": 60, "file": "held-out", "left_out": {}, "max_seq_len": 64}
    return ModelReport("a", "a", data, rows, [], [], {}, hosts=hosts, over_hosts=over_hosts)


def _by_bin(differences: np.ndarray) -> np.ndarray:
    return np.repeat(sums_of(differences)[:, None, None], 2, axis=1)


def test_the_interval_over_hosts_stands_beside_that_over_documents() -> None:
    report = evaluated(by_host=False)
    sentences = make_headline(report)
    assert "over 60 documents)" in sentences
    # the hosts differ by 0.4: an error of 0.2 with one degree of freedom, 12.706 of them
    assert (
        "Over the 2 hosts of these documents: -2.7412 to +2.3412, which includes no difference "
        "(cluster=host). 2 hosts are few: intervals over them are wide"
    ) in sentences
    assert json.loads(json.dumps(report.as_dict()))["over_hosts"]["all"]["hosts"] == 2
    assert "bootstraps over documents" in make_comparison_table(report, MAIN).note


def test_the_words_of_an_evaluation_over_hosts() -> None:
    report = evaluated(by_host=True)
    sentences = make_headline(report)
    assert "-2.7412 to +2.3412, over 60 documents of 2 hosts (jackknife)" in sentences
    assert "Over the 2 hosts" not in sentences
    assert "Student's, over hosts (jackknife)" in make_comparison_table(report, MAIN).note
