"""Scores from confusion matrices, and intervals over units: literal values, and scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from bsmeta.tasks.classification.results import linear, majority
from bsmeta.tasks.classification.scoring import compare, confusion, scores

# 4 texts of label 0 (3 right), 3 of label 1 (2 right), 1 of label 2 (predicted as 0).
TRUTH = np.array([0, 0, 0, 0, 1, 1, 1, 2])
GUESS = np.array([0, 0, 0, 1, 1, 1, 0, 0])


def test_the_confusion_matrix_has_true_labels_in_rows() -> None:
    assert confusion(TRUTH, GUESS, 3).tolist() == [[3, 1, 0], [1, 2, 0], [1, 0, 0]]


def test_scores_of_a_small_example() -> None:
    found = scores(confusion(TRUTH, GUESS, 3))
    assert float(found["accuracy"]) == 5 / 8
    assert float(found["balanced_accuracy"]) == pytest.approx((3 / 4 + 2 / 3 + 0) / 3)
    assert float(found["macro_f1"]) == pytest.approx((6 / 9 + 4 / 6 + 0) / 3)
    # right x texts - sum of row x column sums = 5 x 8 - (4 x 5 + 3 x 3 + 1 x 0) = 11
    expected = 11 / np.sqrt((64 - 25 - 9 - 0) * (64 - 16 - 9 - 1))
    assert float(found["mcc"]) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth, guess = draw.integers(0, 4, 30), draw.integers(0, 4, 30)
    truth[truth == 3] = 0  # a label that is predicted and never true
    found = {name: float(value) for name, value in scores(confusion(truth, guess, 6)).items()}
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(truth, guess))
    assert found["macro_f1"] == pytest.approx(
        metrics.f1_score(truth, guess, average="macro", zero_division=0.0)
    )
    assert found["mcc"] == pytest.approx(metrics.matthews_corrcoef(truth, guess))
    recalls = metrics.recall_score(truth, guess, labels=[0, 1, 2], average="macro")
    assert found["balanced_accuracy"] == pytest.approx(recalls)


def test_a_single_label_has_no_correlation() -> None:
    found = scores(confusion(np.zeros(3, int), np.zeros(3, int), 2))
    assert [float(value) for value in found.values()] == [1.0, 1.0, 1.0, 0.0]


def test_groups_are_resampled_as_a_whole_and_differences_are_paired() -> None:
    truth = np.array([0, 1] * 20)
    right, wrong = truth, np.where(np.arange(40) < 20, truth, 1 - truth)
    groups = np.repeat(["a", "b"], 20)  # one group right, the other one wrong
    model, other = compare(
        truth, {"model": right, "other": wrong}, groups, 2, resamples=500, seed=1
    )
    assert model.differences == {}
    assert (model.intervals["accuracy"].low, model.intervals["accuracy"].high) == (1.0, 1.0)
    assert other.values["accuracy"] == 0.5
    # Two groups: a resample has the first twice, both, or the second twice.
    assert (other.intervals["accuracy"].low, other.intervals["accuracy"].high) == (0.0, 1.0)
    difference, interval = other.differences["accuracy"]
    assert (difference, interval.low, interval.high) == (-0.5, -1.0, 0.0)


def test_baselines() -> None:
    assert majority(np.array([1, 1, 0, 2]), 3).tolist() == [1, 1, 1]
    texts = ["cut the taxes", "lower taxes now", "raise the wages", "fair wages for all"]
    labels = np.array([0, 0, 1, 1])
    assert linear(texts, labels, ["taxes", "wages"], balanced=False).tolist() == [0, 1]
    assert linear(["!", "?"], np.array([1, 1]), ["a"], balanced=True).tolist() == [1]
    assert linear(["!", "?"], np.array([0, 1]), ["a"], balanced=True).tolist() == [0]
