"""Counts of true and predicted labels of texts that may have several, to compute scores from.

`Confusion` in `results` is the counterpart for texts with one label each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from bsmeta.tasks.classification.metrics import LabelTotals, SampleTotals, divide


@dataclass(frozen=True)
class SetCounts:
    """The counts of each label, and the sums of sample scores over the texts."""

    label_totals: LabelTotals  # float64 [labels] each
    samples: SampleTotals  # float64 scalars

    @classmethod
    def of(cls, truth: np.ndarray, predicted: np.ndarray) -> SetCounts:
        """Counts true and predicted labels, bool [texts, labels] both."""
        totals = LabelTotals(
            true=truth.sum(0, dtype=np.float64),
            predicted=predicted.sum(0, dtype=np.float64),
            right=(truth & predicted).sum(0, dtype=np.float64),
        )
        by_text = compute_samples(truth, predicted)
        return cls(totals, SampleTotals(*(column.sum() for column in by_text)))

    @property
    def texts(self) -> int:
        """The number of texts."""
        return int(self.samples.texts)

    def totals(self) -> LabelTotals:
        """Returns the counts of each label, float64 [labels] each."""
        return self.label_totals

    def by_label(self) -> dict[str, np.ndarray]:
        """Computes precision, recall, F1 and number of texts by label, float64 [labels] each."""
        return compute_label_scores(self.label_totals)


def compute_label_scores(totals: LabelTotals) -> dict[str, np.ndarray]:
    """Computes precision, recall, F1 and number of texts by label, float64 [labels] each."""
    return {
        "precision": divide(totals.right, totals.predicted),
        "recall": divide(totals.right, totals.true),
        "f1": divide(2 * totals.right, totals.true + totals.predicted),
        "texts": totals.true,
    }


def compute_samples(truth: np.ndarray, predicted: np.ndarray) -> SampleTotals:
    """Computes the sample scores of each text, float64 [texts] each; see `metrics`.

    Args:
        truth: bool [texts, labels], the true labels.
        predicted: bool [texts, labels].
    """
    true_counts = truth.sum(1, dtype=np.float64)
    predicted_counts = predicted.sum(1, dtype=np.float64)
    right_counts = (truth & predicted).sum(1, dtype=np.float64)

    has_nothing = (true_counts == 0) & (predicted_counts == 0)
    return SampleTotals(
        texts=np.ones(len(truth)),
        exact=(truth == predicted).all(1).astype(np.float64),
        precision=divide(right_counts, predicted_counts) + has_nothing,
        recall=divide(right_counts, true_counts) + has_nothing,
        f1=divide(2 * right_counts, true_counts + predicted_counts) + has_nothing,
    )


@dataclass(frozen=True)
class UnitCounts:
    """The counts of each resampled unit; the counts of a resample are weighted sums of them."""

    true: csr_array  # float64 [units, labels]
    predicted: csr_array
    right: csr_array
    samples: np.ndarray  # float64 [units, fields of SampleTotals]

    @classmethod
    def of(cls, truth: np.ndarray, predicted: np.ndarray, unit_numbers: np.ndarray) -> UnitCounts:
        """Sums the counts of the texts of each unit.

        Args:
            truth: bool [texts, labels], the true labels.
            predicted: bool [texts, labels].
            unit_numbers: int [texts], index of the unit of each text, without gaps.
        """
        texts = np.arange(len(truth))
        shape = (int(unit_numbers.max()) + 1, len(truth))
        members = csr_array((np.ones(len(truth)), (unit_numbers, texts)), shape)
        by_text = np.stack(compute_samples(truth, predicted), 1)
        return cls(
            true=members @ csr_array(truth.astype(np.float64)),
            predicted=members @ csr_array(predicted.astype(np.float64)),
            right=members @ csr_array((truth & predicted).astype(np.float64)),
            samples=members @ by_text,
        )

    def resample(self, times: np.ndarray) -> tuple[LabelTotals, SampleTotals]:
        """Computes the counts of resamples.

        Args:
            times: int [resamples, units], number of times that each unit was drawn.

        Returns:
            Totals of float64 [resamples, labels]; sums of float64 [resamples].
        """
        totals = LabelTotals(
            true=times @ self.true, predicted=times @ self.predicted, right=times @ self.right
        )
        return totals, SampleTotals(*(times @ self.samples).T)
