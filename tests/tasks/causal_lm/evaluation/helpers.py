"""Sums and reports of evaluations that are made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from bsmeta.report.inference import assign_host_clusters
from bsmeta.tasks.causal_lm.evaluation.arms import AGAINST_PREFIX, Arm, Comparison
from bsmeta.tasks.causal_lm.evaluation.results import (
    ComparisonSums,
    ModelReport,
    PairedMetrics,
    Row,
    compute_paired_metrics,
    make_rows,
)

LN2 = math.log(2)
ALL = Comparison("all", "all", Arm(), Arm(("url",)))

OWN = Arm(("url",))
BYTES = 100.0
"""Of each document."""

LOW, HIGH = [1.98, 1.99] * 20, [1.99, 2.0] * 20
"""Two models that save .015 and .005 bits per byte, with an interval of about .0015."""


def make_sums(differences: np.ndarray) -> np.ndarray:
    """Returns documents of 100 bytes at 2 bits per byte, plus `differences` with metadata."""
    with_metadata = (2 + differences) * 100 * LN2
    count = len(differences)
    columns = [np.full(count, 100.0), np.full(count, 20.0), np.full(count, 200 * LN2)]
    return np.stack([*columns, with_metadata, np.full(count, 20.0)], axis=1)


def make_metrics(differences: np.ndarray, hosts: list[str]) -> PairedMetrics:
    (metrics,) = compute_paired_metrics(
        make_sums(differences)[None], resamples=10, seed=0, family=[0],
        clusters=assign_host_clusters(hosts),
    )  # fmt: skip
    assert metrics is not None
    return metrics


def make_evaluated(by_host: bool) -> ModelReport:
    """Returns an evaluation of two hosts; metadata helps one of them."""
    hosts = ["a.org"] * 30 + ["b.org"] * 30
    differences = np.repeat([-0.4, 0.0], 30)
    sums = {"all": ComparisonSums(_by_bin(differences), np.ones(60, bool), np.zeros(60, bool))}
    clusters = assign_host_clusters(hosts)
    metrics = partial(
        compute_paired_metrics, resamples=200, seed=0, clusters=clusters if by_host else None
    )
    rows = make_rows([ALL], sums, np.full(60, 100), [0], metrics)
    over_hosts = {} if by_host else {"all": make_metrics(differences, hosts)}
    data = {"documents": 60, "file": "held-out", "left_out": {}, "max_seq_len": 64}
    return ModelReport("a", "a", data, rows, [], [], {}, hosts=hosts, over_hosts=over_hosts)


def _by_bin(differences: np.ndarray) -> np.ndarray:
    return np.repeat(make_sums(differences)[:, None, None], 2, axis=1)


def controlled_model(own: Sequence[float], controls: Mapping[str, Sequence[float]]) -> ModelReport:
    """Returns a model with 2.0 bits per byte without metadata, and the given bits with it."""
    text = [2.0] * len(own)
    pairs = {("all", "all"): (text, own)}
    for name, bits in controls.items():
        pairs[name, f"{name}/all"] = (text, bits)
        pairs[AGAINST_PREFIX + name, f"{AGAINST_PREFIX}{name}/all"] = (bits, own)

    sums = np.array(
        [
            [
                [BYTES, 20, BYTES * before * LN2, BYTES * after * LN2, 20]
                for before, after in zip(*pair, strict=True)
            ]
            for pair in pairs.values()
        ]
    )
    metrics = compute_paired_metrics(sums, resamples=1_000, seed=1)
    rows = [
        Row(
            Comparison(name, group, Arm(), OWN),
            row_metrics,
            text_bytes=int(BYTES) * len(own),
            positions={0: row_metrics},
            contexts={0: row_metrics},
        )
        for (group, name), row_metrics in zip(pairs, metrics, strict=True)
    ]
    data = {"documents": len(own), "file": "held-out", "left_out": {}, "max_seq_len": 64}
    return ModelReport("runs/a", "runs/a/model", data, rows, [], [], {})
