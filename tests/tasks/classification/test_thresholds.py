"""Thresholds of labels have the best F1, and scores of a fold do not see its own thresholds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from bsmeta.tasks.classification.thresholds import (
    apply_thresholds,
    choose_thresholds,
    find_best_threshold,
    predict_across_folds,
)

PAIRS = st.lists(st.tuples(st.sampled_from([n / 10 for n in range(11)]), st.booleans()), min_size=1)


def test_a_threshold_lies_between_the_probabilities_that_it_separates() -> None:
    probabilities = np.array([0.9, 0.3, 0.7, 0.1])
    truth = np.array([True, True, True, False])
    assert find_best_threshold(probabilities, truth) == pytest.approx(0.2)
    # Two of three right of three predicted, or both of the first two of three: the F1 is 4/5.
    truth = np.array([True, False, True, False])
    assert find_best_threshold(probabilities, truth) == pytest.approx(0.5)


def test_of_equally_good_thresholds_the_one_nearest_to_a_half_is_chosen() -> None:
    # Predicting the first alone is right for 1 of 2, with F1 2/3; so is predicting all four.
    probabilities = np.array([0.8, 0.6, 0.4, 0.2])
    truth = np.array([True, False, False, True])
    assert find_best_threshold(probabilities, truth) == pytest.approx(0.7)


@pytest.mark.long
@given(PAIRS.filter(lambda pairs: any(is_true for _, is_true in pairs)))
def test_no_other_threshold_has_a_better_f1(pairs: list[tuple[float, bool]]) -> None:
    probabilities = np.array([probability for probability, _ in pairs])
    truth = np.array([is_true for _, is_true in pairs])
    best = f1_score(truth, probabilities >= find_best_threshold(probabilities, truth))
    for threshold in np.arange(0, 1.05, 0.05):
        other = f1_score(truth, probabilities >= threshold, zero_division=0.0)
        assert best >= other - 1e-12


def test_labels_with_few_texts_share_a_threshold() -> None:
    truth = np.zeros((20, 3), bool)
    truth[:8, 0] = True  # a label with enough texts
    truth[0, 1] = True
    probabilities = np.full((20, 3), 0.1)
    probabilities[:8, 0] = 0.3
    probabilities[0, 1] = 0.8
    probabilities[1, 2] = 0.9  # a label that no text has
    thresholds = choose_thresholds(probabilities, truth)
    assert thresholds.tolist() == pytest.approx([0.2, 0.2, 0.2])
    probabilities[8:, 0] = 0.25
    thresholds = choose_thresholds(probabilities, truth)
    assert thresholds.tolist() == pytest.approx([0.275, 0.275, 0.275])
    probabilities[:, 1] = 0.5
    first, second, third = choose_thresholds(probabilities, truth).tolist()
    assert first == pytest.approx(0.275)  # its own, whatever other labels have
    assert second == third


def test_without_labels_the_thresholds_are_a_half() -> None:
    assert choose_thresholds(np.full((4, 2), 0.9), np.zeros((4, 2), bool)).tolist() == [0.5, 0.5]
    assert choose_thresholds(np.zeros((0, 2)), np.zeros((0, 2), bool)).tolist() == [0.5, 0.5]


def test_a_fold_is_predicted_with_the_thresholds_of_the_others() -> None:
    """The probabilities are noise, to which thresholds on the same texts fit themselves."""
    draw = np.random.default_rng(1)
    probabilities = draw.random((60, 40))
    truth = draw.random((60, 40)) < 0.15
    units = np.arange(60)
    across = predict_across_folds(probabilities, truth, units)
    fitted = apply_thresholds(probabilities, choose_thresholds(probabilities, truth))

    def score(predicted: np.ndarray) -> float:
        return float(f1_score(truth, predicted, average="macro", zero_division=0.0))

    assert score(fitted) > score(across) + 0.03
    # Truth of a fold has no effect on its own predictions.
    changed = truth.copy()
    changed[units % 5 == 2] ^= True
    again = predict_across_folds(probabilities, changed, units)
    assert (again[units % 5 == 2] == across[units % 5 == 2]).all()
    assert (again != across).any()


def test_no_fold_divides_a_unit() -> None:
    """All texts are one unit: there are no others to choose thresholds on."""
    probabilities = np.array([[0.9], [0.4], [0.3], [0.2], [0.35], [0.45]])
    truth = np.ones((6, 1), bool)
    predicted = predict_across_folds(probabilities, truth, np.array(["a"] * 6))
    assert predicted[:, 0].tolist() == [True, False, False, False, False, False]
