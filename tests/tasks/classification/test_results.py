"""Scores of predicted labels, and intervals over units: literal values, and scikit-learn's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics

from bsmeta.report.inference import draw_resamples
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import Scored
from bsmeta.tasks.classification.results import Confusion, compare_systems, compute_scores
from tests.tasks.classification.helpers import CHUNKS, LOGITS

# 4 texts of label 0 (3 right), 3 of label 1 (2 right), 1 of label 2 (predicted as 0).
TRUTH = np.array([0, 0, 0, 0, 1, 1, 1, 2])

GUESS = np.array([0, 0, 0, 1, 1, 1, 0, 0])


def test_the_loss_is_the_weighted_mean_of_the_smoothed_cross_entropies() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]]))
    labels = np.array([0, 2])
    plain = [-math.log(0.7), -math.log(0.25)]
    even = [-math.log(0.7 * 0.2 * 0.1) / 3, -math.log(0.25 * 0.5 * 0.25) / 3]
    smoothed = [0.9 * one + 0.1 * other for one, other in zip(plain, even, strict=True)]
    chunks = [Chunk([], label, row, 0, "") for row, label in enumerate(labels.tolist())]
    scored = Scored.of(chunks, logits, 0.1)
    assert scored.chunk_losses.tolist() == pytest.approx(smoothed)
    expected = (smoothed[0] + 3 * smoothed[1]) / 4
    assert compute_scores(scored, [1.0, 1.0, 3.0])["loss"] == pytest.approx(expected)


def test_the_confusion_matrix_has_true_labels_in_rows() -> None:
    found = Confusion.of(TRUTH, GUESS, 3)
    cells = np.stack([found.true, found.predicted, found.counts], 1)
    assert cells.tolist() == [[0, 0, 3], [0, 1, 1], [1, 0, 1], [1, 1, 2], [2, 0, 1]]
    assert found.matrix([0, 1, 2])[:3, :3].tolist() == [[3, 1, 0], [1, 2, 0], [1, 0, 0]]
    # Of label 1 and all others together:
    assert found.matrix([1]).tolist() == [[2, 1], [1, 4]]


def test_scores_of_each_label() -> None:
    found = {
        name: values.tolist() for name, values in Confusion.of(TRUTH, GUESS, 3).by_label().items()
    }
    assert found == {
        "precision": [3 / 5, 2 / 3, 0.0],
        "recall": [3 / 4, 2 / 3, 0.0],
        "f1": [6 / 9, 4 / 6, 0.0],
        "texts": [4.0, 3.0, 1.0],
    }


def test_scores_of_a_small_example() -> None:
    found = Confusion.of(TRUTH, GUESS, 3).scores()
    assert found["accuracy"] == 5 / 8
    assert found["balanced_accuracy"] == pytest.approx((3 / 4 + 2 / 3 + 0) / 3)
    assert found["macro_f1"] == pytest.approx((6 / 9 + 4 / 6 + 0) / 3)
    # right x texts - sum of row x column sums = 5 x 8 - (4 x 5 + 3 x 3 + 1 x 0) = 11
    expected = 11 / np.sqrt((64 - 25 - 9 - 0) * (64 - 16 - 9 - 1))
    assert found["mcc"] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth, guess = draw.integers(0, 4, 30), draw.integers(0, 4, 30)
    truth[truth == 3] = 0  # a label that is predicted and never true
    found = Confusion.of(truth, guess, 6).scores()
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(truth, guess))
    assert found["macro_f1"] == pytest.approx(
        metrics.f1_score(truth, guess, average="macro", zero_division=0.0)
    )
    assert found["mcc"] == pytest.approx(metrics.matthews_corrcoef(truth, guess))
    recalls = metrics.recall_score(truth, guess, labels=[0, 1, 2], average="macro")
    assert found["balanced_accuracy"] == pytest.approx(recalls)


def test_a_single_label_has_no_correlation() -> None:
    found = Confusion.of(np.zeros(3, int), np.zeros(3, int), 2).scores()
    assert [*found.values()] == [1.0, 1.0, 1.0, 0.0]


def test_groups_are_resampled_as_a_whole_and_differences_are_paired() -> None:
    truth = np.array([0, 1] * 20)
    right, wrong = truth, np.where(np.arange(40) < 20, truth, 1 - truth)
    groups = np.repeat(["a", "b"], 20)  # one group right, the other one wrong
    model, other = compare_systems(
        truth, {"model": right, "other": wrong}, groups, 2, resamples=500, seed=1
    )
    assert model.differences == {}
    assert (model.scores["accuracy"].low, model.scores["accuracy"].high) == (1.0, 1.0)
    assert other.scores["accuracy"].value == 0.5
    # Two groups: a resample has the first twice, both, or the second twice.
    assert (other.scores["accuracy"].low, other.scores["accuracy"].high) == (0.0, 1.0)
    difference = other.differences["accuracy"]
    interval = difference.interval
    assert (difference.value, interval.low, interval.high) == (-0.5, -1.0, 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_intervals_are_those_of_scores_of_drawn_texts(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth, guess = draw.integers(0, 5, 40) * 2000, draw.integers(0, 5, 40) * 2000
    (found,) = compare_systems(
        truth, {"model": guess}, np.arange(40), 10_000, resamples=50, seed=seed
    )
    times = np.concatenate([*draw_resamples(40, resamples=50, seed=seed)])
    drawn = [np.repeat(np.arange(40), row) for row in times]
    expected = {
        "macro_f1": [metrics.f1_score(truth[n], guess[n], average="macro") for n in drawn],
        "mcc": [metrics.matthews_corrcoef(truth[n], guess[n]) for n in drawn],
    }
    for name, values in expected.items():
        score = found.scores[name]
        assert [score.low, score.high] == pytest.approx(np.percentile(values, [2.5, 97.5]))


def test_scores_of_texts_and_of_chunks() -> None:
    found = compute_scores(Scored.of(CHUNKS, LOGITS), [1.0, 1.0, 1.0])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["chunk_accuracy"] == 2 / 4
    assert found["loss"] == pytest.approx(-np.log([0.8, 0.25, 0.8, 0.3]).mean())
