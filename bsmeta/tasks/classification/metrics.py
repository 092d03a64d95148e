"""The metrics of classification: of texts, from the counts of each label, and of chunks.

The metrics of texts are vectorized over the leading dimensions, which hold bootstrap resamples.

If a text may have several labels, `micro` metrics count all pairs of a text and a label together,
`macro` metrics are means over the labels, and `sample` metrics means over the texts. 0/0 is 0,
except in the sample metrics of a text without labels, for which none are predicted: they are 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bsmeta.config.metric_table import MetricDefinition, MetricTable, select_report_rows


class LabelTotals(NamedTuple):
    """Numbers of texts by label, float64 [..., labels] each."""

    true: np.ndarray  # texts with the label
    predicted: np.ndarray  # texts for which the label is predicted
    right: np.ndarray  # texts with the label for which it is predicted


class ChunkResults(NamedTuple):
    """The loss and the correctness of each chunk, [chunks] each."""

    losses: np.ndarray  # float
    weights: np.ndarray  # float, weight of the chunk in the loss
    is_right: np.ndarray | None = None  # bool; None: chunks with several labels


class SampleTotals(NamedTuple):
    """Sums over texts that may have several labels, float64 [...] each."""

    texts: np.ndarray  # number of texts
    exact: np.ndarray  # texts whose set of labels is predicted exactly
    precision: np.ndarray  # sum of the precision of each text
    recall: np.ndarray
    f1: np.ndarray


class Classified(NamedTuple):
    """The measurements from which metrics are computed."""

    totals: LabelTotals
    chunks: ChunkResults | None = None  # None: of resamples, and of systems without chunks
    samples: SampleTotals | None = None  # None: each text has one label


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divides elementwise; the quotient is 0 where the denominator is not positive."""
    zeros = np.zeros(np.broadcast_shapes(np.shape(numerator), np.shape(denominator)))
    return np.divide(numerator, denominator, out=zeros, where=np.asarray(denominator) > 0)


def compute_accuracy(classified: Classified) -> np.ndarray:
    """Computes the share of texts whose label is predicted, float64 [...]."""
    totals = classified.totals
    return divide(totals.right.sum(-1), totals.true.sum(-1))


def compute_balanced_accuracy(classified: Classified) -> np.ndarray:
    """Computes the mean recall of the labels that occur, float64 [...]."""
    true, _, right = classified.totals
    return divide(divide(right, true).sum(-1), (true > 0).sum(-1))


def compute_macro_f1(classified: Classified) -> np.ndarray:
    """Computes the mean F1 of the labels with a text or a prediction, float64 [...]."""
    true, predicted, right = classified.totals
    f1 = divide(2 * right, true + predicted)
    return divide(f1.sum(-1), (true + predicted > 0).sum(-1))


def compute_mcc(classified: Classified) -> np.ndarray:
    """Computes the multiclass MCC (Gorodkin 2004), float64 [...]; 0 where it is undefined."""
    true, predicted, right = classified.totals
    total = true.sum(-1)
    covariance = right.sum(-1) * total - (true * predicted).sum(-1)
    variances = (total**2 - (true**2).sum(-1)) * (total**2 - (predicted**2).sum(-1))
    return divide(covariance, np.sqrt(np.maximum(variances, 0.0)))


def compute_loss(classified: Classified) -> float | None:
    """Computes the weighted mean loss of the chunks."""
    chunks = classified.chunks
    if chunks is None:
        return None
    return float((chunks.losses * chunks.weights).sum() / chunks.weights.sum())


def compute_chunk_accuracy(classified: Classified) -> float | None:
    """Computes the share of chunks whose label is predicted; None for several labels."""
    chunks = classified.chunks
    return None if chunks is None or chunks.is_right is None else float(np.mean(chunks.is_right))


def compute_subset_accuracy(classified: Classified) -> np.ndarray:
    """Computes the share of texts whose set of labels is predicted exactly, float64 [...]."""
    samples = _require_samples(classified)
    return divide(samples.exact, samples.texts)


def compute_micro_precision(classified: Classified) -> np.ndarray:
    """Computes the share of predicted labels that are right, float64 [...]."""
    totals = classified.totals
    return divide(totals.right.sum(-1), totals.predicted.sum(-1))


def compute_micro_recall(classified: Classified) -> np.ndarray:
    """Computes the share of true labels that are predicted, float64 [...]."""
    totals = classified.totals
    return divide(totals.right.sum(-1), totals.true.sum(-1))


def compute_micro_f1(classified: Classified) -> np.ndarray:
    """Computes the F1 over all pairs of a text and a label, float64 [...]."""
    true, predicted, right = classified.totals
    return divide(2 * right.sum(-1), true.sum(-1) + predicted.sum(-1))


def compute_macro_precision(classified: Classified) -> np.ndarray:
    """Computes the mean precision of the labels with a text or a prediction, float64 [...]."""
    true, predicted, right = classified.totals
    return divide(divide(right, predicted).sum(-1), (true + predicted > 0).sum(-1))


def compute_macro_recall(classified: Classified) -> np.ndarray:
    """Computes the mean recall of the labels with a text or a prediction, float64 [...]."""
    true, predicted, right = classified.totals
    return divide(divide(right, true).sum(-1), (true + predicted > 0).sum(-1))


def compute_sample_precision(classified: Classified) -> np.ndarray:
    """Computes the mean precision of the texts, float64 [...]."""
    samples = _require_samples(classified)
    return divide(samples.precision, samples.texts)


def compute_sample_recall(classified: Classified) -> np.ndarray:
    """Computes the mean recall of the texts, float64 [...]."""
    samples = _require_samples(classified)
    return divide(samples.recall, samples.texts)


def compute_sample_f1(classified: Classified) -> np.ndarray:
    """Computes the mean F1 of the texts, float64 [...]."""
    samples = _require_samples(classified)
    return divide(samples.f1, samples.texts)


def _require_samples(classified: Classified) -> SampleTotals:
    """Returns the per-text sums, which exist only for multi-label results."""
    assert classified.samples is not None, "a metric of several labels, of texts with one label"
    return classified.samples


_LOSS = MetricDefinition[Classified](
    label="loss",
    better="min",
    format="{:.4f}".format,
    compute=compute_loss,
    in_report=False,
)
_MACRO_F1 = MetricDefinition[Classified](label="macro F1", better="max", compute=compute_macro_f1)

ONE_LABEL: MetricTable[Classified] = {
    "loss": _LOSS,
    "accuracy": MetricDefinition[Classified](
        label="accuracy", better="max", compute=compute_accuracy
    ),
    "balanced_accuracy": MetricDefinition[Classified](
        label="balanced accuracy", better="max", compute=compute_balanced_accuracy
    ),
    "macro_f1": _MACRO_F1,
    "mcc": MetricDefinition[Classified](label="MCC", better="max", compute=compute_mcc),
    "chunk_accuracy": MetricDefinition[Classified](
        label="chunk accuracy", better="max", compute=compute_chunk_accuracy, in_report=False
    ),
}
"""The metrics of texts with one label each."""

SEVERAL_LABELS: MetricTable[Classified] = {
    "loss": _LOSS,
    "subset_accuracy": MetricDefinition[Classified](
        label="subset accuracy", better="max", compute=compute_subset_accuracy
    ),
    "micro_f1": MetricDefinition[Classified](
        label="micro F1", better="max", compute=compute_micro_f1
    ),
    "macro_f1": _MACRO_F1,
    "sample_f1": MetricDefinition[Classified](
        label="sample F1", better="max", compute=compute_sample_f1
    ),
    "micro_precision": MetricDefinition[Classified](
        label="micro precision", better="max", compute=compute_micro_precision
    ),
    "micro_recall": MetricDefinition[Classified](
        label="micro recall", better="max", compute=compute_micro_recall
    ),
    "macro_precision": MetricDefinition[Classified](
        label="macro precision", better="max", compute=compute_macro_precision
    ),
    "macro_recall": MetricDefinition[Classified](
        label="macro recall", better="max", compute=compute_macro_recall
    ),
    "sample_precision": MetricDefinition[Classified](
        label="sample precision", better="max", compute=compute_sample_precision
    ),
    "sample_recall": MetricDefinition[Classified](
        label="sample recall", better="max", compute=compute_sample_recall
    ),
}
"""The metrics of texts that may have several labels."""

METRICS = {**ONE_LABEL, **SEVERAL_LABELS}
"""The metrics by name; scikit-learn defines the metrics of texts in the same way."""


def choose_metrics(*, has_several: bool) -> MetricTable[Classified]:
    """Returns the metrics for texts with one label each, or with several."""
    return SEVERAL_LABELS if has_several else ONE_LABEL


def choose_scores(*, has_several: bool) -> MetricTable[Classified]:
    """Returns the metrics of texts, by which reports compare systems, with intervals."""
    return select_report_rows(choose_metrics(has_several=has_several))


SCORES = choose_scores(has_several=False)
"""The scores of texts with one label each."""
