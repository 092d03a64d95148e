"""The metrics of classification: of texts, from the counts of each label, and of chunks.

The metrics of texts are also computed for many resamples at once, so they are array functions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bsmeta.config.metric_table import MetricDefinition, report_rows


class LabelTotals(NamedTuple):
    """Numbers of texts by label, float64 [..., labels] each."""

    true: np.ndarray  # texts that have the label
    predicted: np.ndarray  # texts that are predicted to have it
    right: np.ndarray  # both


class ChunkResults(NamedTuple):
    """The result on each chunk, [chunks] each."""

    losses: np.ndarray  # float
    weights: np.ndarray  # float, the weight of the chunk's label in the loss
    is_right: np.ndarray  # bool


class Classified(NamedTuple):
    """The measurements of an evaluation."""

    totals: LabelTotals
    chunks: ChunkResults | None = None  # None: of resampled texts, and of systems without chunks


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divides element by element; 0 where the denominator is not above 0."""
    zeros = np.zeros(np.broadcast_shapes(np.shape(numerator), np.shape(denominator)))
    return np.divide(numerator, denominator, out=zeros, where=np.asarray(denominator) > 0)


def compute_accuracy(classified: Classified) -> np.ndarray:
    """Computes the share of texts that are predicted right, float64 [...]."""
    totals = classified.totals
    return divide(totals.right.sum(-1), totals.true.sum(-1))


def compute_balanced_accuracy(classified: Classified) -> np.ndarray:
    """Computes the mean recall of the labels that a text has, float64 [...]."""
    true, _, right = classified.totals
    return divide(divide(right, true).sum(-1), (true > 0).sum(-1))


def compute_macro_f1(classified: Classified) -> np.ndarray:
    """Computes the mean F1 of the labels with a text or a prediction, float64 [...]."""
    true, predicted, right = classified.totals
    f1 = divide(2 * right, true + predicted)
    return divide(f1.sum(-1), (true + predicted > 0).sum(-1))


def compute_mcc(classified: Classified) -> np.ndarray:
    """Computes the MCC (Gorodkin 2004), float64 [...]; 0 where undefined: with one label only."""
    true, predicted, right = classified.totals
    total = true.sum(-1)
    covariance = right.sum(-1) * total - (true * predicted).sum(-1)
    variances = (total**2 - (true**2).sum(-1)) * (total**2 - (predicted**2).sum(-1))
    return divide(covariance, np.sqrt(np.maximum(variances, 0.0)))


def compute_loss(classified: Classified) -> float | None:
    """Computes the mean loss of the chunks, by the weights of their labels."""
    chunks = classified.chunks
    if chunks is None:
        return None
    return float((chunks.losses * chunks.weights).sum() / chunks.weights.sum())


def compute_chunk_accuracy(classified: Classified) -> float | None:
    """Computes the share of chunks that are predicted right."""
    return None if classified.chunks is None else float(np.mean(classified.chunks.is_right))


METRICS = {
    "loss": MetricDefinition[Classified](
        label="loss",
        better="min",
        format="{:.4f}".format,
        compute=compute_loss,
        in_report=False,
    ),
    "accuracy": MetricDefinition[Classified](
        label="accuracy", better="max", compute=compute_accuracy
    ),
    "balanced_accuracy": MetricDefinition[Classified](
        label="balanced accuracy", better="max", compute=compute_balanced_accuracy
    ),
    "macro_f1": MetricDefinition[Classified](
        label="macro F1", better="max", compute=compute_macro_f1
    ),
    "mcc": MetricDefinition[Classified](label="MCC", better="max", compute=compute_mcc),
    "chunk_accuracy": MetricDefinition[Classified](
        label="chunk accuracy", better="max", compute=compute_chunk_accuracy, in_report=False
    ),
}
"""The metrics by name; scikit-learn defines those of texts in the same way."""

SCORES = report_rows(METRICS)
"""The metrics of texts, which reports compare between systems, with intervals."""
