"""Computes metrics from per-document sums: bits per byte, their difference, and its uncertainty.

The interval is the percentile bootstrap over documents (Efron and Tibshirani 1993, chapter 13):
documents are drawn with replacement, so it reflects the choice of held-out documents. All
comparisons use the same draws, which `scipy.stats.bootstrap` cannot share among hundreds of them.

Among many comparisons, some differ by chance: the intervals and p-values of a family are corrected
as `bsmeta.report.inference` defines it, with the bootstrap's standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import binomtest

from bsmeta.report.inference import Source, central, holm, resampled, simultaneous_half_widths
from bsmeta.report.table import Interval
from bsmeta.tasks.causal_lm.evaluation.segments import BYTES, NATS_WITH, NATS_WITHOUT, TOKENS


@dataclass(frozen=True, slots=True)
class PairedMetrics:
    """The metrics of one comparison.

    Differences are bits per byte with metadata minus without: below 0, metadata helps.

    Attributes:
        documents: Documents with at least one byte that both readings score.
        bytes: Number of those bytes (UTF-8, of the original text).
        tokens: Number of their tokens in the reading without metadata.
        bits_per_byte_without, bits_per_byte_with: Bits per byte over exactly those bytes.
        perplexity_without, perplexity_with: Per token of the reading without metadata (the same
            token count for both, so that they can be compared).
        difference: Bits per byte with metadata, minus those without.
        difference_low, difference_high: 95% bootstrap interval over documents; None if only one
            document takes part.
        simultaneous_low, simultaneous_high: Simultaneous 95% interval over the whole family of
            comparisons; None outside the family.
        mean_document_difference: Mean of the per-document differences (each document has the same
            weight, whatever its length), with its interval.
        documents_better, documents_worse: Documents that need fewer or more bits with metadata.
        sign_test_p: Two-sided p-value of the sign test; documents that do not differ are left out.
        sign_test_p_holm: The p-value after Holm's correction for the family; None outside it.
    """

    documents: int
    bytes: int
    tokens: int
    bits_per_byte_without: float
    bits_per_byte_with: float
    perplexity_without: float
    perplexity_with: float
    difference: float
    difference_low: float | None
    difference_high: float | None
    simultaneous_low: float | None
    simultaneous_high: float | None
    mean_document_difference: float
    mean_document_difference_low: float | None
    mean_document_difference_high: float | None
    documents_better: int
    documents_worse: int
    sign_test_p: float
    sign_test_p_holm: float | None

    @property
    def relative(self) -> float:
        """The difference as a share of the bits per byte without metadata."""
        return self.difference / self.bits_per_byte_without if self.bits_per_byte_without else 0.0

    def as_dict(self) -> dict[str, Any]:
        """A flat dict of plain numbers, for JSON and experiment trackers."""
        return asdict(self)


def paired_metrics(
    sums: np.ndarray, *, resamples: int, seed: int, family: Sequence[int] = ()
) -> list[PairedMetrics | None]:
    """Metrics of several comparisons over one set of documents.

    Args:
        sums: float64 [comparisons, documents, COLUMNS]; a document without bytes does not take
            part in a comparison.
        resamples: Number of bootstrap resamples; all comparisons use the same draws.
        seed: Seed of the draws; the same seed gives the same intervals.
        family: Indices of the comparisons that are corrected jointly.

    Returns:
        The metrics of each comparison; None if no document has a byte to compare.
    """
    takes_part = sums[:, :, BYTES] > 0
    bits = (sums[:, :, NATS_WITH] - sums[:, :, NATS_WITHOUT]) / math.log(2)
    own = np.divide(bits, sums[:, :, BYTES], out=np.zeros_like(bits), where=takes_part)
    ratios = resampled(bits, sums[:, :, BYTES], resamples=resamples, seed=seed)
    plain = resampled(own, takes_part.astype(np.float64), resamples=resamples, seed=seed)
    found: list[PairedMetrics | None] = [
        _metrics(sums[i][takes_part[i]], central(ratios[:, i]), central(plain[:, i]))
        if takes_part[i].any()
        else None
        for i in range(len(sums))
    ]
    _correct(found, ratios, [i for i in family if found[i] is not None])
    return found


def _metrics(sums: np.ndarray, weighted: Interval, plain: Interval) -> PairedMetrics:
    """Metrics of the documents that take part: sums float64 [documents, COLUMNS]."""
    total = sums.sum(axis=0)
    bits = (sums[:, NATS_WITH] - sums[:, NATS_WITHOUT]) / math.log(2)
    better, worse = int((bits < 0).sum()), int((bits > 0).sum())
    several = len(sums) > 1
    return PairedMetrics(
        documents=len(sums),
        bytes=int(total[BYTES]),
        tokens=int(total[TOKENS]),
        bits_per_byte_without=float(total[NATS_WITHOUT] / math.log(2) / total[BYTES]),
        bits_per_byte_with=float(total[NATS_WITH] / math.log(2) / total[BYTES]),
        perplexity_without=_exp(total[NATS_WITHOUT] / total[TOKENS]),
        perplexity_with=_exp(total[NATS_WITH] / total[TOKENS]),
        difference=float(bits.sum() / total[BYTES]),
        difference_low=weighted.low if several else None,
        difference_high=weighted.high if several else None,
        simultaneous_low=None,
        simultaneous_high=None,
        mean_document_difference=float((bits / sums[:, BYTES]).mean()),
        mean_document_difference_low=plain.low if several else None,
        mean_document_difference_high=plain.high if several else None,
        documents_better=better,
        documents_worse=worse,
        sign_test_p=sign_test(better, worse),
        sign_test_p_holm=None,
    )


def _correct(found: list[PairedMetrics | None], ratios: np.ndarray, family: Sequence[int]) -> None:
    """Add simultaneous intervals and corrected p-values to the comparisons of the family."""
    members = [(i, metrics) for i in family if (metrics := found[i]) is not None]
    if not members:
        return
    sources = [
        [Source(_variance(ratios[:, i], metrics.difference), metrics.documents - 1)]
        for i, metrics in members
    ]
    halves = simultaneous_half_widths(sources)
    corrected = holm([metrics.sign_test_p for _, metrics in members])
    for (i, metrics), half, p in zip(members, halves, corrected, strict=True):
        several = metrics.documents > 1
        found[i] = replace(
            metrics,
            simultaneous_low=metrics.difference - half if several else None,
            simultaneous_high=metrics.difference + half if several else None,
            sign_test_p_holm=p,
        )


def _variance(draws: np.ndarray, estimate: float) -> float:
    """Variance of an estimate from its resamples: float64 [resamples], NaN left out."""
    return float(np.nanmean((draws - estimate) ** 2))


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact binomial test of better against worse; ties are left out."""
    count = better + worse
    return float(binomtest(better, count).pvalue) if count else 1.0


def _exp(value: float) -> float:
    """exp(value), with the value capped at 700 to keep it finite (JSON has no infinity)."""
    return math.exp(min(float(value), 700.0))
