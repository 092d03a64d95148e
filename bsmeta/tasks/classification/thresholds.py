"""Thresholds of the labels of texts that may have several: chosen on the validation split.

A text is predicted to have a label if the probability of the label reaches the label's threshold.
The threshold of a label is the one with the highest F1 on the validation texts. A label with few
validation texts would fit a threshold to their noise, so such labels share one, with the highest F1
over all pairs of a validation text and a label (the fallback of Yang 2001, SCutFBR).

The scores of a validation split with thresholds that were chosen on the same texts would be too
high. `predict_across_folds` therefore predicts each fold of the split with the thresholds of the
others.
"""

from __future__ import annotations

import numpy as np

HALF = 0.5
"""The threshold of every label without a validation split."""

MIN_TEXTS_PER_LABEL = 5
"""Validation texts from which a label has a threshold of its own."""

FOLDS = 5


def choose_thresholds(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Chooses the threshold of each label, float64 [labels].

    Args:
        probabilities: float [texts, labels].
        truth: bool [texts, labels], whether a text has a label.

    Returns:
        `HALF` for each label if no text has a label.
    """
    thresholds = np.full(truth.shape[1], HALF)
    if not truth.any():
        return thresholds

    counts = truth.sum(0)
    if (counts < MIN_TEXTS_PER_LABEL).any():
        thresholds[:] = find_best_threshold(probabilities.ravel(), truth.ravel())
    for label in np.flatnonzero(counts >= MIN_TEXTS_PER_LABEL).tolist():
        thresholds[label] = find_best_threshold(probabilities[:, label], truth[:, label])
    return thresholds


def find_best_threshold(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """Finds the threshold with the highest F1; on a tie, the one nearest to `HALF`.

    It lies halfway between two probabilities, so rounding errors do not change a prediction.

    Args:
        probabilities: float [pairs].
        truth: bool [pairs], at least one of them true.
    """
    order = np.argsort(-probabilities, kind="stable")
    descending = probabilities[order].astype(np.float64)
    right = np.cumsum(truth[order])

    # Equal probabilities are on the same side of any threshold.
    ends = np.flatnonzero(np.append(descending[1:] < descending[:-1], True))
    f1 = 2 * right[ends] / (ends + 1 + right[-1])

    next_lower = np.append(descending[1:], 0.0)[ends]
    thresholds = (descending[ends] + next_lower) / 2
    best = np.lexsort((np.abs(thresholds - HALF), -f1))[0]
    return float(thresholds[best])


def apply_thresholds(probabilities: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Predicts labels: whether a probability reaches the threshold, bool [texts, labels]."""
    reached: np.ndarray = probabilities >= thresholds
    return reached


def predict_across_folds(
    probabilities: np.ndarray, truth: np.ndarray, units: np.ndarray
) -> np.ndarray:
    """Predicts the labels of each fold with the thresholds chosen on the other folds.

    Args:
        probabilities: float [texts, labels].
        truth: bool [texts, labels].
        units: [texts], the unit of each text, which no fold divides.

    Returns:
        bool [texts, labels].
    """
    _, unit_numbers = np.unique(units, return_inverse=True)
    folds = unit_numbers % FOLDS

    predicted = np.zeros(truth.shape, bool)
    for fold in np.unique(folds).tolist():
        inside = folds == fold
        thresholds = choose_thresholds(probabilities[~inside], truth[~inside])
        predicted[inside] = apply_thresholds(probabilities[inside], thresholds)
    return predicted
