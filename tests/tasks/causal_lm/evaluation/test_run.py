"""The run of an evaluation: what it refuses, and how it compares models with each other."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.evaluation.arms import Arm, Comparison
from bsmeta.tasks.causal_lm.evaluation.evaluate import compare_models, evaluate
from bsmeta.tasks.causal_lm.evaluation.results import (
    ComparisonSums,
    ModelReport,
    compute_paired_metrics,
    make_rows,
)
from bsmeta.training.processes import ALONE

LN2 = math.log(2)


def model(name: str, bits: list[float], digests: list[int]) -> ModelReport:
    """A model that needs so many bits a byte for documents of ten bytes (0: not scored)."""
    sums = [[10.0 * (b > 0), 5.0, 10 * b * LN2, 10 * b * LN2, 5.0] for b in bits]
    names = [str(digest) for digest in digests]
    return ModelReport(name, name, {}, [], names, digests, {"text": np.array(sums)})


def test_models_are_paired_by_the_texts_that_both_scored() -> None:
    first = model("a", [2.0, 3.0, 4.0, 9.0], [11, 22, 33, 44])
    second = model("b", [4.0, 2.5, 0.0, 1.0], [33, 22, 44, 55])  # another order, other documents
    (row,) = compare_models([first, second], resamples=500, seed=0)
    assert (row.first, row.second, row.shown, row.documents) == ("a", "b", "text alone", 2)
    assert row.bits_per_byte_first == pytest.approx(3.5)
    assert row.bits_per_byte_second == pytest.approx(3.25)
    assert row.difference == pytest.approx(-0.25)
    assert row.difference_low == pytest.approx(-0.5)
    assert row.difference_high == pytest.approx(0.0)
    assert (row.documents_better, row.documents_worse) == (1, 0)
    assert row.sign_test_p_holm == 1.0


def test_what_varies_between_documents_alike_for_both_is_no_doubt() -> None:
    generator = np.random.default_rng(0)
    easy_or_hard = generator.uniform(1, 5, size=100)
    bits = [easy_or_hard, easy_or_hard - 0.01, easy_or_hard + 0.02]
    models = [model(str(n), one.tolist(), list(range(100))) for n, one in enumerate(bits)]
    rows = compare_models(models, resamples=500, seed=0)
    assert [(row.first, row.second) for row in rows] == [("0", "1"), ("0", "2"), ("1", "2")]
    assert [row.difference for row in rows] == pytest.approx([-0.01, 0.02, 0.03])
    assert rows[0].difference_low == pytest.approx(-0.01)
    assert rows[0].difference_high == pytest.approx(-0.01)
    assert (rows[0].documents_better, rows[1].documents_worse) == (100, 100)
    assert rows[0].sign_test_p_holm == pytest.approx(3 * 2 / 2**100)


def test_models_without_a_common_document_or_with_one() -> None:
    first = model("a", [2.0], [1])
    assert compare_models([first, model("b", [2.0], [2])], resamples=10, seed=0) == []
    (row,) = compare_models([first, model("b", [1.0], [1])], resamples=10, seed=0)
    assert (row.difference, row.difference_low) == (-1.0, None)


def test_documents_without_a_comparable_byte_are_no_share_of_those_compared() -> None:
    values = np.zeros((4, 2, 1, 5))
    values[0] = [10.0, 5.0, 10 * LN2, 5 * LN2, 5.0]  # the other three are too short to score
    everywhere = np.ones(4, bool)
    comparison = Comparison("all", "all", Arm(()), Arm(("url",)))
    metrics_of = partial(compute_paired_metrics, resamples=10, seed=0)
    sums = {"all": ComparisonSums(values, everywhere, everywhere)}
    (row,) = make_rows([comparison], sums, np.array([10, 1, 1, 1]), [0], metrics_of)
    assert row.metrics is not None
    assert (row.prefixes_cut, row.metrics.documents) == (1, 1)


@pytest.mark.parametrize("edges", [[10], [0, 5, 5], []])
def test_position_edges_must_rise_from_0(edges: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="expected rising bytes that begin with 0"):
        evaluate(EvaluateConfig(position_edges=edges), [], ALONE)
