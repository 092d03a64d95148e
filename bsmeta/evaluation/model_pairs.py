"""Compares models with each other, paired by document, and tests the difference for significance.

Two models may have different tokenizers and windows, so the bits of each are summed over the bytes
that it scored, and the bits per byte are compared over the documents that both scored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bsmeta.evaluation.arms import TEXT
from bsmeta.evaluation.segments import BYTES, NATS_WITH, NATS_WITHOUT
from bsmeta.evaluation.statistics import central, holm, resampled, sign_test

ARMS = {"text alone": (TEXT, NATS_WITHOUT), "all metadata": ("all", NATS_WITH)}
"""The arms in which models are compared: for each, its comparison and its column of the sums."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two models over the documents that both scored; below 0, the second needs fewer bits.

    Attributes:
        first, second: The checkpoints.
        shown: The arm in which the documents were scored: a name in ARMS.
        documents: Documents that both scored, matched by their text.
        bits_per_byte_first, bits_per_byte_second: Each over the bytes that the model scored.
        difference: Bits per byte of the second minus those of the first.
        difference_low, difference_high: 95% bootstrap interval over documents; None if there is
            only one.
        documents_better, documents_worse: Documents for which the second needs fewer or more bits
            per byte.
        sign_test_p: p-value of the sign test on these two counts.
        sign_test_p_holm: The p-value after Holm's correction for the number of rows.
    """

    first: str
    second: str
    shown: str
    documents: int
    bits_per_byte_first: float
    bits_per_byte_second: float
    difference: float
    difference_low: float | None
    difference_high: float | None
    documents_better: int
    documents_worse: int
    sign_test_p: float
    sign_test_p_holm: float


@dataclass(frozen=True, slots=True)
class ModelSums:
    """One model: its name, the digest of each document's text, and its sums by comparison."""

    checkpoint: str
    digests: Sequence[int]
    totals: Mapping[str, np.ndarray]


def compare_models(models: Sequence[ModelSums], *, resamples: int, seed: int) -> list[PairRow]:
    """Compare every pair of models in each of the ARMS that both were scored in."""
    rows = [
        row
        for first, second in itertools.combinations(models, 2)
        for shown in ARMS
        if (row := _compare(first, second, shown, resamples, seed)) is not None
    ]
    corrected = holm([row.sign_test_p for row in rows])
    return [replace(row, sign_test_p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def _compare(
    first: ModelSums, second: ModelSums, shown: str, resamples: int, seed: int
) -> PairRow | None:
    """Compare two models in one arm; None if no document was scored by both in it."""
    comparison, column = ARMS[shown]
    if comparison not in first.totals or comparison not in second.totals:
        return None
    _, own, other = np.intersect1d(
        np.array(first.digests, np.uint64),
        np.array(second.digests, np.uint64),
        return_indices=True,
    )
    sums = np.stack([first.totals[comparison][own], second.totals[comparison][other]])
    sums = sums[:, (sums[:, :, BYTES] > 0).all(axis=0)]
    count = sums.shape[1]
    if not count:
        return None
    bits, sizes = sums[:, :, column] / math.log(2), sums[:, :, BYTES]
    totals = bits.sum(axis=1) / sizes.sum(axis=1)
    ratios = resampled(bits, sizes, resamples=resamples, seed=seed)
    interval = central(ratios[:, 1] - ratios[:, 0])
    each = bits[1] / sizes[1] - bits[0] / sizes[0]
    better, worse = int((each < 0).sum()), int((each > 0).sum())
    return PairRow(
        first=first.checkpoint,
        second=second.checkpoint,
        shown=shown,
        documents=count,
        bits_per_byte_first=float(totals[0]),
        bits_per_byte_second=float(totals[1]),
        difference=float(totals[1] - totals[0]),
        difference_low=interval.low if count > 1 else None,
        difference_high=interval.high if count > 1 else None,
        documents_better=better,
        documents_worse=worse,
        sign_test_p=sign_test(better, worse),
        sign_test_p_holm=1.0,
    )
