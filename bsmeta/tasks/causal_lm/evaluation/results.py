"""Computes metrics, and the rows of a report, from the sums of each document.

The interval is the percentile bootstrap over documents (Efron and Tibshirani 1993, chapter 13):
documents are drawn with replacement, so it reflects the choice of held-out documents. All
comparisons use the same draws, which `scipy.stats.bootstrap` cannot share among hundreds of them.
With hosts as the units, it is Student's interval with the jackknife over hosts: there are often few
hosts, and for few units the percentile bootstrap is too narrow.

Among many comparisons, some differ by chance: the intervals and p-values of a family are corrected
as `bsmeta.report.inference` defines it, with these standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from scipy.stats import binomtest

from bsmeta.core.errors import DataError
from bsmeta.report.inference import (
    ErrorSource,
    Interval,
    compute_central_interval,
    compute_cluster_degrees,
    compute_half_width,
    compute_jackknife_variance,
    compute_simultaneous_half_widths,
    correct_p_values,
    leave_one_out,
    resample_ratios,
    sum_by_cluster,
)
from bsmeta.tasks.causal_lm.evaluation.arms import TEXT, Comparison
from bsmeta.tasks.causal_lm.evaluation.readings import (
    BYTES,
    NATS_WITH,
    NATS_WITHOUT,
    TOKENS,
    TOKENS_WITH,
)
from bsmeta.tasks.causal_lm.evaluation.slices import Slice
from bsmeta.tasks.causal_lm.evaluation.training_overlap import TrainingOverlap
from bsmeta.tasks.causal_lm.shown_tokens import ShownToken

MAX_EXPONENT = 700.0
"""Exponents are capped here, because exp() of larger ones is infinite and JSON has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedMetrics:
    """The metrics of one comparison; differences below 0 mean that metadata helps.

    Attributes:
        documents: Number of documents with at least one byte that both readings score.
        bytes: Number of bytes that both readings score (UTF-8, of the original text).
        tokens: Number of tokens of these bytes in the reading without metadata.
        bits_per_byte_without, bits_per_byte_with: Over exactly these bytes.
        perplexity_without, perplexity_with: Per token of the reading without metadata (the same
            token count for both, so that they can be compared).
        difference: Bits per byte with metadata minus bits per byte without.
        difference_low, difference_high: 95% interval over documents (bootstrap) or hosts
            (jackknife); None if only one document or host takes part.
        simultaneous_low, simultaneous_high: Simultaneous 95% interval over the whole family of
            comparisons; None outside the family.
        mean_document_difference: Unweighted mean of the per-document differences, with its
            interval.
        documents_better, documents_worse: Documents that need fewer or more bits with metadata.
        sign_test_p: Two-sided p-value of the sign test over documents, or hosts; ties are left out.
        sign_test_p_holm: The p-value after Holm's correction for the family; None outside it.
        hosts: Number of hosts that take part, if hosts are the units; None if documents are.
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
    simultaneous_low: float | None = None
    simultaneous_high: float | None = None
    mean_document_difference: float
    mean_document_difference_low: float | None
    mean_document_difference_high: float | None
    documents_better: int
    documents_worse: int
    sign_test_p: float
    sign_test_p_holm: float | None = None
    hosts: int | None = None

    @property
    def relative(self) -> float:
        """The difference as a share of the bits per byte without metadata."""
        return self.difference / self.bits_per_byte_without if self.bits_per_byte_without else 0.0


def compute_paired_metrics(
    sums: np.ndarray,
    *,
    resamples: int,
    seed: int,
    family: Sequence[int] = (),
    clusters: np.ndarray | None = None,
) -> list[PairedMetrics | None]:
    """Computes the metrics of several comparisons over one set of documents.

    Args:
        sums: float64 [comparisons, documents, COLUMNS]; a document without bytes does not take
            part in a comparison.
        resamples: Number of bootstrap resamples; all comparisons use the same draws.
        seed: Seed of the draws; the same seed gives the same intervals.
        family: Indices of the comparisons that are corrected jointly.
        clusters: int64 [documents], the host of each document as a number, to use hosts as the
            units; None: documents are the units.

    Returns:
        The metrics of each comparison; None if no document has a byte to compare.
    """
    sizes = sums[:, :, BYTES]
    takes_part = sizes > 0
    bit_differences = (sums[:, :, NATS_WITH] - sums[:, :, NATS_WITHOUT]) / math.log(2)
    differences = np.divide(
        bit_differences, sizes, out=np.zeros_like(bit_differences), where=takes_part
    )

    if clusters is None:
        errors = _estimate_errors_over_documents(
            bit_differences, sizes, differences, takes_part, resamples=resamples, seed=seed
        )
    else:
        errors = [
            _estimate_errors_over_hosts(*arrays, clusters)
            for arrays in zip(bit_differences, sizes, differences, takes_part, strict=True)
        ]

    metrics: list[PairedMetrics | None] = []
    for comparison_sums, members, comparison_errors in zip(sums, takes_part, errors, strict=True):
        if members.any():
            metrics.append(_make_metrics(comparison_sums[members], comparison_errors))
        else:
            metrics.append(None)
    _correct_family(metrics, errors, family)
    return metrics


@dataclass(frozen=True, slots=True)
class _Errors:
    """The uncertainty of a comparison.

    Attributes:
        difference: Interval of the difference; None if only one unit takes part.
        mean_difference: Interval of the mean of the documents' differences; None if only one unit
            takes part.
        source: The error of the difference.
        better, worse: Units that need fewer or more bits with metadata.
        hosts: Hosts that take part; None if documents are the units.
    """

    difference: Interval | None
    mean_difference: Interval | None
    source: ErrorSource
    better: int
    worse: int
    hosts: int | None = None


def _estimate_errors_over_documents(
    bit_differences: np.ndarray,
    sizes: np.ndarray,
    differences: np.ndarray,
    takes_part: np.ndarray,
    *,
    resamples: int,
    seed: int,
) -> list[_Errors]:
    """Bootstraps each comparison over documents.

    Args:
        bit_differences: float64 [comparisons, documents], bits with metadata minus bits without.
        sizes: float64 [comparisons, documents], bytes.
        differences: float64 [comparisons, documents], bits per byte of each document.
        takes_part: bool [comparisons, documents].
    """
    ratios = resample_ratios(bit_differences, sizes, resamples=resamples, seed=seed)
    means = resample_ratios(
        differences, takes_part.astype(np.float64), resamples=resamples, seed=seed
    )

    errors = []
    for number in range(len(bit_differences)):
        members = takes_part[number]
        count = int(members.sum())
        if not count:
            errors.append(_Errors(None, None, ErrorSource(0.0, 0), 0, 0))
            continue

        difference_interval = None
        mean_interval = None
        if count > 1:
            difference_interval = compute_central_interval(ratios[:, number])
            mean_interval = compute_central_interval(means[:, number])

        member_differences = bit_differences[number][members]
        difference = member_differences.sum() / sizes[number].sum()
        variance = float(np.nanmean((ratios[:, number] - difference) ** 2))
        errors.append(
            _Errors(
                difference=difference_interval,
                mean_difference=mean_interval,
                source=ErrorSource(variance, count - 1),
                better=int((member_differences < 0).sum()),
                worse=int((member_differences > 0).sum()),
            )
        )
    return errors


def _estimate_errors_over_hosts(
    bit_differences: np.ndarray,
    sizes: np.ndarray,
    differences: np.ndarray,
    takes_part: np.ndarray,
    clusters: np.ndarray,
) -> _Errors:
    """Computes the jackknife over hosts of one comparison.

    The arguments are as in `_estimate_errors_over_documents`, each [documents].
    """
    document_sums = np.stack(
        [
            np.where(takes_part, bit_differences, 0.0),
            sizes,
            differences,
            takes_part.astype(np.float64),
        ]
    )
    host_bits, host_sizes, host_differences, host_documents = sum_by_cluster(
        document_sums, clusters
    )

    num_hosts = int((host_sizes > 0).sum())
    difference_interval = None
    mean_interval = None
    if num_hosts > 1:
        difference_interval = _compute_student_interval(host_bits, host_sizes)
        mean_interval = _compute_student_interval(host_differences, host_documents)

    return _Errors(
        difference=difference_interval,
        mean_difference=mean_interval,
        source=estimate_ratio_error(host_bits, host_sizes),
        better=int((host_bits < 0).sum()),
        worse=int((host_bits > 0).sum()),
        hosts=num_hosts,
    )


def estimate_ratio_error(values: np.ndarray, weights: np.ndarray) -> ErrorSource:
    """Returns the error over clusters of sum(values) / sum(weights), each float64 [clusters]."""
    changes = leave_one_out(values, weights)
    variance = compute_jackknife_variance(changes, int((weights > 0).sum()))
    return ErrorSource(variance, compute_cluster_degrees(weights))


def _compute_student_interval(values: np.ndarray, weights: np.ndarray) -> Interval:
    """Returns Student's interval of sum(values) / sum(weights), each float64 [clusters]."""
    ratio = float(values.sum() / weights.sum())
    half_width = compute_half_width([estimate_ratio_error(values, weights)])
    return Interval(ratio - half_width, ratio + half_width)


def _make_metrics(sums: np.ndarray, errors: _Errors) -> PairedMetrics:
    """Computes the metrics of the documents that take part: sums float64 [documents, COLUMNS]."""
    total = sums.sum(axis=0)
    bit_differences = (sums[:, NATS_WITH] - sums[:, NATS_WITHOUT]) / math.log(2)
    difference = errors.difference
    mean_difference = errors.mean_difference

    return PairedMetrics(
        documents=len(sums),
        bytes=int(total[BYTES]),
        tokens=int(total[TOKENS]),
        bits_per_byte_without=float(total[NATS_WITHOUT] / math.log(2) / total[BYTES]),
        bits_per_byte_with=float(total[NATS_WITH] / math.log(2) / total[BYTES]),
        perplexity_without=_exponentiate(total[NATS_WITHOUT] / total[TOKENS]),
        perplexity_with=_exponentiate(total[NATS_WITH] / total[TOKENS]),
        difference=float(bit_differences.sum() / total[BYTES]),
        difference_low=difference.low if difference else None,
        difference_high=difference.high if difference else None,
        mean_document_difference=float((bit_differences / sums[:, BYTES]).mean()),
        mean_document_difference_low=mean_difference.low if mean_difference else None,
        mean_document_difference_high=mean_difference.high if mean_difference else None,
        documents_better=int((bit_differences < 0).sum()),
        documents_worse=int((bit_differences > 0).sum()),
        sign_test_p=compute_sign_test(errors.better, errors.worse),
        hosts=errors.hosts,
    )


def _correct_family(
    comparisons: list[PairedMetrics | None], errors: Sequence[_Errors], family: Sequence[int]
) -> None:
    """Adds simultaneous intervals and corrected p-values to the comparisons of the family."""
    members: list[tuple[int, PairedMetrics]] = []
    for number in family:
        metrics = comparisons[number]
        if metrics is not None:
            members.append((number, metrics))

    half_widths = compute_simultaneous_half_widths(
        [[errors[number].source] for number, _ in members]
    )
    p_values = correct_p_values([metrics.sign_test_p for _, metrics in members])
    for (number, metrics), half_width, p_value in zip(members, half_widths, p_values, strict=True):
        has_interval = metrics.difference_low is not None
        comparisons[number] = replace(
            metrics,
            simultaneous_low=metrics.difference - half_width if has_interval else None,
            simultaneous_high=metrics.difference + half_width if has_interval else None,
            sign_test_p_holm=p_value,
        )


def compute_sign_test(better: int, worse: int) -> float:
    """Returns the two-sided exact binomial p-value of better against worse; 1 if both are 0."""
    if better + worse == 0:
        return 1.0
    return float(binomtest(better, better + worse).pvalue)


def _exponentiate(value: float) -> float:
    """Returns exp(value), kept finite by `MAX_EXPONENT`."""
    return math.exp(min(float(value), MAX_EXPONENT))


@dataclass(frozen=True, slots=True)
class ComparisonSums:
    """The per-document sums of a comparison.

    Attributes:
        values: float64 [documents, 2, bins, COLUMNS], see `sum_paired`; zero for documents that
            are not part of the comparison.
        takes_part: bool [documents], whether a document is part of the comparison.
        prefix_cut: bool [documents], whether a prefix of either arm was too long and was truncated.
        lost_bytes: int64 [documents], bytes that are left out because the tokenizer loses text.
    """

    values: np.ndarray
    takes_part: np.ndarray
    prefix_cut: np.ndarray
    lost_bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def totals(self) -> np.ndarray:
        """The sums over all bins: float64 [documents, COLUMNS]."""
        return self.values[:, 0].sum(axis=1)


def refuse_empty_scores(sums: Mapping[str, ComparisonSums], model_setting: str) -> None:
    """Refuses results in which the tokenizer loses all text that could be scored.

    Args:
        sums: The sums of an evaluation by comparison, including the text alone.
        model_setting: The setting that names the model, for the message.

    Raises:
        DataError: If no bytes are left to score.
    """
    text = sums[TEXT]
    lost = int(text.lost_bytes.sum())
    if lost and not text.totals[:, BYTES].any():
        raise DataError(
            f"{model_setting}: no bytes are left to score: the tokenizer of the model loses "
            f"{lost:,} bytes of the held-out text (unknown tokens, or characters "
            "that it changes or drops), and no other byte has a probability; expected a model with "
            "a tokenizer that gives the text back, such as byte-level BPE"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one comparison.

    Attributes:
        metrics: None if no document could be compared.
        text_bytes: All bytes of the documents that take part, including documents without a byte
            that both arms score.
        lost_bytes: Of these, bytes that are left out because the tokenizer loses them.
        prefixes_cut: Documents of the metrics with a prefix that was too long and was truncated.
        positions: The metrics by byte offset in the document, by the first byte of each bin.
        contexts: The same by bytes of preceding text in the same window.
    """

    comparison: Comparison
    metrics: PairedMetrics | None
    text_bytes: int = 0
    lost_bytes: int = 0
    prefixes_cut: int = 0
    positions: dict[int, PairedMetrics] = field(default_factory=dict)
    contexts: dict[int, PairedMetrics] = field(default_factory=dict)

    @property
    def compares(self) -> bool:
        """Whether two different arms were compared, over at least one document."""
        return self.metrics is not None and self.comparison.group != TEXT

    def metrics_dict(self) -> dict[str, Any]:
        """Returns the metrics as a dict for JSON."""
        return asdict(self.metrics) if self.metrics else {"documents": 0, "bytes": 0}

    def as_dict(self) -> dict[str, Any]:
        """Returns the row as a dict for JSON."""
        return {
            **asdict(self.comparison),
            **self.metrics_dict(),
            "text_bytes": self.text_bytes,
            "lost_bytes": self.lost_bytes,
            "prefixes_cut": self.prefixes_cut,
            "by_position": _list_bins(self.positions),
            "by_context": _list_bins(self.contexts),
        }


def _list_bins(bins: Mapping[int, PairedMetrics]) -> list[dict[str, Any]]:
    """Returns the metrics of each bin as a dict for JSON."""
    return [{"first_byte": byte, **asdict(metrics)} for byte, metrics in bins.items()]


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document whose tokens the page of a report shows.

    Attributes:
        index: Its index among the documents of the evaluation.
        difference: Bits per byte with minus without metadata.
        tokens: The tokens that are shown, from the first.
        token_count: Number of all its tokens, its prefix included.
    """

    index: int
    difference: float
    tokens: list[ShownToken]
    token_count: int


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The results of one model.

    Attributes:
        checkpoint: The checkpoint as the user named it.
        data: The held-out file, its documents and the number left out.
        rows: The comparisons; the first is the text alone.
        names: The names of the documents, as in training.
        digests: xxh3 hash of each text, which matches the documents of two models.
        totals: The sums of each document, by comparison: float64 [documents, COLUMNS]; zeros if a
            document takes no part.
        slices: The comparisons over slices of the documents.
        hosts: The host of each document; "" if it is not known.
        over_hosts: The metrics of the comparisons with hosts as the units, by name; empty if hosts
            are the units of `rows`, too, or fewer than two hosts are known.
        shown_documents: The documents that the main comparison helps most and least.
        training_overlap: The comparison of the file with the training shards; None if the run kept
            the file out of training.
    """

    checkpoint: str
    model: str
    data: dict[str, Any]
    rows: list[Row]
    names: list[str]
    digests: list[int]
    totals: dict[str, np.ndarray]
    slices: list[tuple[Slice, list[Row]]] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    over_hosts: dict[str, PairedMetrics] = field(default_factory=dict)
    shown_documents: list[ShownDocument] = field(default_factory=list)
    training_overlap: TrainingOverlap | None = None

    @property
    def lost_bytes(self) -> int:
        """Bytes of all documents that are left out because the tokenizer loses them."""
        return max((row.lost_bytes for row in self.rows), default=0)

    def find_row(self, name: str) -> Row | None:
        """Returns the comparison of this name; None if it was not made."""
        return next((row for row in self.rows if row.comparison.name == name), None)

    def iterate_document_lines(self) -> Iterator[dict[str, Any]]:
        """Yields a flat dict for each document and comparison that it takes part in."""
        for name, totals in self.totals.items():
            for document, sums in zip(self.names, totals.tolist(), strict=True):
                if not sums[BYTES]:
                    continue
                yield {
                    "checkpoint": self.checkpoint,
                    "comparison": name,
                    "document": document,
                    "bytes": int(sums[BYTES]),
                    "tokens_without": int(sums[TOKENS]),
                    "tokens_with": int(sums[TOKENS_WITH]),
                    "nats_without": sums[NATS_WITHOUT],
                    "nats_with": sums[NATS_WITH],
                }

    def as_dict(self) -> dict[str, Any]:
        """Returns the model as a dict for JSON."""
        slices = []
        for part, rows in self.slices:
            comparisons = [{"name": row.comparison.name, **row.metrics_dict()} for row in rows]
            slices.append(
                {
                    "by": part.by,
                    "name": part.name,
                    "documents": int(part.members.sum()),
                    "comparisons": comparisons,
                }
            )
        overlap = self.training_overlap
        return {
            "checkpoint": self.checkpoint,
            "model": self.model,
            "data": self.data,
            "training_overlap": None if overlap is None else overlap.as_dict(),
            "comparisons": [row.as_dict() for row in self.rows],
            "slices": slices,
            "over_hosts": {name: asdict(metrics) for name, metrics in self.over_hosts.items()},
        }


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two models over the documents that both scored; below 0, the second needs fewer bits.

    Attributes:
        shown: The arm in which the documents were scored.
        documents: Documents that both scored, matched by their text.
        bits_per_byte_first, bits_per_byte_second: Each over the bytes that the model scored.
        difference: Bits per byte of the second model minus bits per byte of the first.
        difference_low, difference_high: 95% interval over documents (bootstrap) or hosts
            (jackknife); None if there is only one document or host.
        documents_better, documents_worse: Documents for which the second model needs fewer or more
            bits per byte.
        sign_test_p: The p-value of the sign test over documents, or hosts.
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
class Report:
    """All results of an evaluation.

    Attributes:
        settings: The evaluation's configuration.
        models: The results of each checkpoint, in the order of the configuration.
        pairs: The comparisons of each pair of models.
    """

    settings: dict[str, Any]
    models: list[ModelReport]
    pairs: list[PairRow] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Returns the content of `evaluation.json`."""
        return {
            "settings": self.settings,
            "models": [model.as_dict() for model in self.models],
            "pairs": [asdict(pair) for pair in self.pairs],
        }


ComputeMetrics = Callable[..., list[PairedMetrics | None]]
"""`compute_paired_metrics` with the settings of the bootstrap."""


def make_rows(
    comparisons: Sequence[Comparison],
    sums: Mapping[str, ComparisonSums],
    text_bytes: np.ndarray,
    position_edges: Sequence[int],
    compute_metrics: ComputeMetrics,
) -> list[Row]:
    """Computes the metrics of each comparison, overall and by position.

    The comparisons other than the text alone are corrected for their number.

    Args:
        text_bytes: int [documents], all bytes of each text.
        position_edges: First byte of each position bin.
    """
    # All metrics are computed in one call, which draws the resamples once.
    stacked = _stack_totals_and_bins([sums[comparison.name] for comparison in comparisons])
    family = [number for number, comparison in enumerate(comparisons) if comparison.group != TEXT]
    metrics = compute_metrics(stacked, family=family)

    num_bins = len(position_edges)

    def select_bins(start: int) -> dict[int, PairedMetrics]:
        """Returns the metrics of the bins from index `start` on, by their first byte."""
        pairs = zip(position_edges, metrics[start : start + num_bins], strict=True)
        return {edge: bin_metrics for edge, bin_metrics in pairs if bin_metrics is not None}

    rows = []
    for number, comparison in enumerate(comparisons):
        comparison_sums = sums[comparison.name]
        is_cut = comparison_sums.prefix_cut & (comparison_sums.totals[:, BYTES] > 0)
        start = len(comparisons) + 2 * num_bins * number
        rows.append(
            Row(
                comparison,
                metrics[number],
                text_bytes=int(text_bytes[comparison_sums.takes_part].sum()),
                lost_bytes=int(comparison_sums.lost_bytes.sum()),
                prefixes_cut=int(is_cut.sum()),
                positions=select_bins(start),
                contexts=select_bins(start + num_bins),
            )
        )
    return rows


def _stack_totals_and_bins(sums: Sequence[ComparisonSums]) -> np.ndarray:
    """Stacks the totals of each comparison, then the bins of each, by position and by context.

    Returns:
        float64 [comparisons + comparisons * 2 * bins, documents, COLUMNS].
    """
    stacked = [comparison_sums.totals[None] for comparison_sums in sums]
    for comparison_sums in sums:
        by_bin = np.moveaxis(comparison_sums.values, 0, 2)  # [2, bins, documents, COLUMNS]
        stacked.append(by_bin.reshape(-1, *by_bin.shape[2:]))
    return np.concatenate(stacked)


def make_slice_rows(
    slices: Sequence[Slice],
    comparisons: Sequence[Comparison],
    sums: Mapping[str, ComparisonSums],
    compute_metrics: ComputeMetrics,
) -> list[tuple[Slice, list[Row]]]:
    """Computes the metrics of each comparison over the documents of each slice."""
    stacked = np.stack([sums[comparison.name].totals for comparison in comparisons])
    slice_rows = []
    for part in slices:
        metrics = compute_metrics(stacked * part.members[None, :, None])
        rows = [
            Row(comparison, comparison_metrics)
            for comparison, comparison_metrics in zip(comparisons, metrics, strict=True)
        ]
        slice_rows.append((part, rows))
    return slice_rows
