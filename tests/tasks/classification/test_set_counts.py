"""Scores of texts with several labels: literal values, and scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics

from bsmeta.report.inference import draw_resamples
from bsmeta.tasks.classification.results import compare_systems, compute_text_scores
from bsmeta.tasks.classification.set_counts import SetCounts

# Five texts with the labels a, b, c; the last has none, and is predicted to have none.
TRUTH = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]], bool)
GUESS = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]], bool)

SETS = st.tuples(st.integers(1, 8), st.integers(1, 5)).flatmap(
    lambda shape: st.tuples(arrays(bool, shape), arrays(bool, shape))
)


def test_scores_of_a_small_example() -> None:
    assert compute_text_scores(TRUTH, GUESS, 3) == pytest.approx(
        {
            "subset_accuracy": 2 / 5,
            # Right: a and c of the first text, b of the second. True: 4. Predicted: 5.
            "micro_f1": 2 * 3 / (4 + 5),
            "macro_f1": (2 / 4 + 1 + 2 / 3) / 3,
            "sample_f1": (1 + 2 / 3 + 0 + 0 + 1) / 5,
            "micro_precision": 3 / 5,
            "micro_recall": 3 / 4,
            "macro_precision": (1 / 2 + 1 + 1 / 2) / 3,
            "macro_recall": (1 / 2 + 1 + 1) / 3,
            "sample_precision": (1 + 1 / 2 + 0 + 0 + 1) / 5,
            "sample_recall": (1 + 1 + 0 + 0 + 1) / 5,
        }
    )


def test_scores_of_each_label() -> None:
    by_label = {
        name: values.tolist() for name, values in SetCounts.of(TRUTH, GUESS).by_label().items()
    }
    assert by_label == {
        "precision": [1 / 2, 1.0, 1 / 2],
        "recall": [1 / 2, 1.0, 1.0],
        "f1": [1 / 2, 1.0, 2 / 3],
        "texts": [2.0, 1.0, 1.0],
    }


@pytest.mark.long
@given(SETS)
def test_scores_are_those_of_scikit_learn(sets: tuple[np.ndarray, np.ndarray]) -> None:
    truth, guess = sets
    scores = compute_text_scores(truth, guess, truth.shape[1])
    assert scores["subset_accuracy"] == pytest.approx(metrics.accuracy_score(truth, guess))

    # Macro scores are over the labels that a text has or is predicted to have.
    used_labels = np.flatnonzero((truth | guess).any(0))
    both_empty = float((~truth.any(1) & ~guess.any(1)).mean())
    for name, function in (
        ("precision", metrics.precision_score),
        ("recall", metrics.recall_score),
        ("f1", metrics.f1_score),
    ):
        micro = function(truth.ravel(), guess.ravel(), zero_division=0.0)
        assert scores[f"micro_{name}"] == pytest.approx(micro)
        macro = [function(truth[:, n], guess[:, n], zero_division=0.0) for n in used_labels]
        assert scores[f"macro_{name}"] == pytest.approx(np.mean(macro) if macro else 0.0)
        if truth.shape[1] == 1:
            continue  # for scikit-learn, one column is not a table of several labels

        micro = function(truth, guess, average="micro", zero_division=0.0)
        assert scores[f"micro_{name}"] == pytest.approx(micro)
        sample = function(truth, guess, average="samples", zero_division=0.0)
        assert scores[f"sample_{name}"] == pytest.approx(sample + both_empty)
        if len(used_labels) == truth.shape[1]:
            macro = function(truth, guess, average="macro", zero_division=0.0)
            assert scores[f"macro_{name}"] == pytest.approx(macro)
    if truth.shape[1] > 1:
        sample_f1 = metrics.f1_score(truth, guess, average="samples", zero_division=1.0)
        assert scores["sample_f1"] == pytest.approx(sample_f1)


@pytest.mark.parametrize("seed", range(2))
def test_intervals_are_those_of_scores_of_drawn_units(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth = draw.random((40, 6)) < 0.3
    guess = truth ^ (draw.random((40, 6)) < 0.2)
    units = np.repeat(np.arange(10), 4)
    (system,) = compare_systems(truth, {"model": guess}, units, 6, resamples=50, seed=seed)

    times = np.concatenate([*draw_resamples(10, resamples=50, seed=seed)])
    drawn = [np.repeat(np.arange(40), row[units]) for row in times]
    expected = {
        "micro_f1": [metrics.f1_score(truth[n], guess[n], average="micro") for n in drawn],
        "sample_f1": [
            metrics.f1_score(truth[n], guess[n], average="samples", zero_division=1.0)
            for n in drawn
        ],
        "subset_accuracy": [metrics.accuracy_score(truth[n], guess[n]) for n in drawn],
    }
    for name, values in expected.items():
        score = system.scores[name]
        assert [score.low, score.high] == pytest.approx(np.percentile(values, [2.5, 97.5]))


def test_differences_are_paired() -> None:
    truth = np.tile(np.array([[1, 0], [0, 1]], bool), (20, 1))
    worse = truth.copy()
    worse[:20] = ~truth[:20]
    units = np.repeat(["a", "b"], 20)
    model, other = compare_systems(
        truth, {"model": truth, "other": worse}, units, 2, resamples=500, seed=1
    )
    assert model.differences == {}
    difference = other.differences["micro_f1"]
    # A resample has the first unit twice, both, or the second twice.
    assert (difference.value, difference.low, difference.high) == (-0.5, -1.0, 0.0)
