"""What a classifier must beat: the most frequent label, and a linear SVM on TF-IDF features.

The linear model has fixed settings (words and pairs of words, sublinear term frequency, C = 1, as
in Wang and Manning 2012); it sees the whole text and takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAJORITY = "most frequent label"
LINEAR = "TF-IDF + linear SVM"


def majority(labels: np.ndarray, count: int) -> np.ndarray:
    """The most frequent of the training labels (on a tie the first), for `count` texts."""
    return np.full(count, np.bincount(labels).argmax())


def linear(
    texts: Sequence[str], labels: np.ndarray, others: Sequence[str], *, balanced: bool
) -> np.ndarray:
    """The labels that a linear model, trained on some texts, predicts for others.

    Args:
        texts: The training texts.
        labels: int [texts].
        others: The texts to label.
        balanced: Whether labels count the inverse of their frequency in training.
    """
    # Imported here because scikit-learn takes seconds, and only rank 0 needs it.
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.svm import LinearSVC

    if len(np.unique(labels)) < 2:
        return majority(labels, len(others))
    features = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b")
    try:
        known = features.fit_transform(texts)
    except ValueError:  # no text has a word
        return majority(labels, len(others))
    model = LinearSVC(C=1.0, class_weight="balanced" if balanced else None, random_state=0)
    model.fit(known, labels)
    return np.asarray(model.predict(features.transform(others)))
