"""Sums per document to figures: bits per byte, their difference, how sure it is.

The interval is the percentile bootstrap over documents (Efron and Tibshirani 1993, chapter 13):
documents are drawn with replacement, so that what varies is which pages were held out. All
comparisons use the same draws.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bsmeta.evaluation.segments import BYTES, NATS_WITH, NATS_WITHOUT, TOKENS

DRAWS_AT_ONCE = 1 << 21
"""Document indices that are drawn at one time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Two ends of a central 95% bootstrap interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One comparison. Differences are with minus without, in bits per byte: below 0, it helps.

    Attributes:
        documents: Documents with at least one byte that both readings score.
        bytes: Those bytes (UTF-8, of the original text).
        tokens: Their tokens in the reading without metadata.
        bits_per_byte_without, bits_per_byte_with: Over exactly those bytes.
        perplexity_without, perplexity_with: Per token of the reading without metadata (one count
            for both, so that they can be compared).
        difference: Bits per byte with, minus those without.
        difference_low, difference_high: 95% bootstrap interval over documents.
        mean_document_difference: The mean of the documents' own differences (each document
            weighs the same, whatever its length), with its interval.
        documents_better, documents_worse: Documents that metadata makes cheaper or dearer.
        sign_test_p: Two-sided probability of so uneven a split if either were equally likely.
    """

    documents: int
    bytes: int
    tokens: int
    bits_per_byte_without: float
    bits_per_byte_with: float
    perplexity_without: float
    perplexity_with: float
    difference: float
    difference_low: float
    difference_high: float
    mean_document_difference: float
    mean_document_difference_low: float
    mean_document_difference_high: float
    documents_better: int
    documents_worse: int
    sign_test_p: float

    def as_dict(self) -> dict[str, Any]:
        """A flat dict of plain numbers, for JSON and trackers."""
        return asdict(self)


def figures_of(sums: np.ndarray, *, resamples: int, seed: int) -> list[Figures | None]:
    """Figures of several comparisons over one set of documents.

    Args:
        sums: float64 [comparisons, documents, 4]: columns of `bsmeta.evaluation.segments`; a
            document without bytes does not take part in a comparison.
        resamples: How often the documents are drawn; the same draws serve all comparisons.
        seed: Same seed, same intervals.

    Returns:
        One for each comparison; None where no document has a byte to compare.
    """
    takes_part = sums[:, :, BYTES] > 0
    bits = (sums[:, :, NATS_WITH] - sums[:, :, NATS_WITHOUT]) / math.log(2)
    own = np.divide(bits, sums[:, :, BYTES], out=np.zeros_like(bits), where=takes_part)
    weighted = bootstrap(bits, sums[:, :, BYTES], resamples=resamples, seed=seed)
    plain = bootstrap(own, takes_part.astype(np.float64), resamples=resamples, seed=seed)
    return [
        _figures(sums[i][takes_part[i]], weighted[i], plain[i]) if takes_part[i].any() else None
        for i in range(len(sums))
    ]


def _figures(sums: np.ndarray, weighted: Interval, plain: Interval) -> Figures:
    """Figures of the documents that take part: sums [documents, 4]."""
    total = sums.sum(axis=0)
    bits = (sums[:, NATS_WITH] - sums[:, NATS_WITHOUT]) / math.log(2)
    better, worse = int((bits < 0).sum()), int((bits > 0).sum())
    return Figures(
        documents=len(sums),
        bytes=int(total[BYTES]),
        tokens=int(total[TOKENS]),
        bits_per_byte_without=float(total[NATS_WITHOUT] / math.log(2) / total[BYTES]),
        bits_per_byte_with=float(total[NATS_WITH] / math.log(2) / total[BYTES]),
        perplexity_without=_exp(total[NATS_WITHOUT] / total[TOKENS]),
        perplexity_with=_exp(total[NATS_WITH] / total[TOKENS]),
        difference=float(bits.sum() / total[BYTES]),
        difference_low=weighted.low,
        difference_high=weighted.high,
        mean_document_difference=float((bits / sums[:, BYTES]).mean()),
        mean_document_difference_low=plain.low,
        mean_document_difference_high=plain.high,
        documents_better=better,
        documents_worse=worse,
        sign_test_p=sign_test(better, worse),
    )


def bootstrap(
    values: np.ndarray, weights: np.ndarray, *, resamples: int, seed: int
) -> list[Interval]:
    """95% intervals of sum(values) / sum(weights), documents drawn with replacement.

    A resample in which no document of a comparison was drawn says nothing about it and is left
    out there.

    Args:
        values: float64 [comparisons, documents].
        weights: float64 [comparisons, documents], 0 where a document does not take part.
        resamples: How often all n documents are drawn from the n.
        seed: Seed of the draws.

    Returns:
        One interval for each comparison (of zeros where no document takes part).
    """
    generator = np.random.default_rng(seed)
    count = values.shape[1]
    ratios = []
    at_once = max(DRAWS_AT_ONCE // max(count, 1), 1)
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        drawn = generator.integers(0, count, size=(rows, count))
        drawn += np.arange(rows)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        top, bottom = times @ values.T, times @ weights.T
        ratios.append(np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0))
    return [_central(column) for column in np.concatenate(ratios).T]


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact binomial test of better against worse; ties are left out."""
    count, fewer = better + worse, min(better, worse)
    if count == 0:
        return 1.0
    k = np.arange(fewer + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    log_terms = log_factorial[count] - log_factorial[k] - log_factorial[count - k]
    tail = np.exp(log_terms - count * math.log(2)).sum()
    return float(min(1.0, 2 * tail))


def _central(values: np.ndarray) -> Interval:
    values = values[~np.isnan(values)]
    if not len(values):
        return Interval(0.0, 0.0)
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))


def _exp(value: float) -> float:
    """e to the value; what is beyond a float's range is its largest number (JSON has no inf)."""
    return math.exp(min(float(value), 700.0))
