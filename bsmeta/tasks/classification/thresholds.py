"""Decision thresholds for the labels of texts that may have several labels.

A label is predicted if its probability is at least its threshold, which is the one with the highest
F1 of the label on the validation split. For labels with few validation texts, such a threshold
would overfit, so they share one with the highest F1 over all pairs of a validation text and a label
(the fallback of Yang 2001, SCutFBR).

Validation scores with thresholds chosen on the same texts would be too high, so
`predict_across_folds` predicts each fold of the split with the thresholds of the other folds.
"""

from __future__ import annotations

import numpy as np

DEFAULT_THRESHOLD = 0.5
"""The threshold of every label if there is no validation split."""

MIN_TEXTS_PER_LABEL = 5
"""Minimum number of validation texts with a label for a threshold of its own."""

FOLD_COUNT = 5
"""Number of folds of `predict_across_folds`."""


def choose_thresholds(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Chooses the threshold of each label, float64 [labels].

    Args:
        probabilities: float [texts, labels].
        truth: bool [texts, labels], whether a text has a label.

    Returns:
        `DEFAULT_THRESHOLD` for each label if no text has a label.
    """
    thresholds = np.full(truth.shape[1], DEFAULT_THRESHOLD)
    if not truth.any():
        return thresholds

    counts = truth.sum(0)
    if (counts < MIN_TEXTS_PER_LABEL).any():
        thresholds[:] = find_best_threshold(probabilities.ravel(), truth.ravel())
    for label in np.flatnonzero(counts >= MIN_TEXTS_PER_LABEL).tolist():
        thresholds[label] = find_best_threshold(probabilities[:, label], truth[:, label])
    return thresholds


def find_best_threshold(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """Finds the threshold with the highest F1; on a tie, the one nearest to `DEFAULT_THRESHOLD`.

    Thresholds are midpoints between consecutive probabilities, so that rounding errors do not
    change a prediction.

    Args:
        probabilities: float [pairs].
        truth: bool [pairs], at least one of them true.
    """
    order = np.argsort(-probabilities, kind="stable")
    descending = probabilities[order].astype(np.float64)
    right = np.cumsum(truth[order])

    # Thresholds are only possible after the last of equal probabilities.
    ends = np.flatnonzero(np.append(descending[1:] < descending[:-1], True))
    f1 = 2 * right[ends] / (ends + 1 + right[-1])  # `ends + 1` pairs are predicted

    next_lower = np.append(descending[1:], 0.0)[ends]
    thresholds = (descending[ends] + next_lower) / 2
    best = np.lexsort((np.abs(thresholds - DEFAULT_THRESHOLD), -f1))[0]
    return float(thresholds[best])


def apply_thresholds(probabilities: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Predicts the labels whose probability is at least their threshold, bool [texts, labels]."""
    predicted: np.ndarray = probabilities >= thresholds
    return predicted


def predict_across_folds(
    probabilities: np.ndarray, truth: np.ndarray, units: np.ndarray
) -> np.ndarray:
    """Predicts the labels of each fold with the thresholds chosen on the other folds.

    Args:
        probabilities: float [texts, labels].
        truth: bool [texts, labels].
        units: [texts], the unit of each text; texts of a unit are in the same fold.

    Returns:
        bool [texts, labels].
    """
    _, unit_numbers = np.unique(units, return_inverse=True)
    folds = unit_numbers % FOLD_COUNT

    predicted = np.zeros(truth.shape, bool)
    for fold in np.unique(folds).tolist():
        inside = folds == fold
        thresholds = choose_thresholds(probabilities[~inside], truth[~inside])
        predicted[inside] = apply_thresholds(probabilities[inside], thresholds)
    return predicted
