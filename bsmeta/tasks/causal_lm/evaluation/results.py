"""Turns sums into the rows of a report, as plain dataclasses and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bsmeta.tasks.causal_lm.evaluation.arms import TEXT, Comparison
from bsmeta.tasks.causal_lm.evaluation.documents import Slice
from bsmeta.tasks.causal_lm.evaluation.paired import ComparisonSums
from bsmeta.tasks.causal_lm.evaluation.statistics import (
    BYTES,
    NATS_WITH,
    NATS_WITHOUT,
    TOKENS,
    TOKENS_WITH,
    PairedMetrics,
)

MetricsOf = Callable[..., list[PairedMetrics | None]]


@dataclass(frozen=True, slots=True)
class PositionBin:
    """One comparison over the text from `first_byte` up to the next bin."""

    first_byte: int
    metrics: PairedMetrics

    def as_dict(self) -> dict[str, Any]:
        """The bin as a dict for JSON."""
        return {"first_byte": self.first_byte, **asdict(self.metrics)}


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; `metrics` is None if no document could be compared.

    Attributes:
        metrics: The metrics over all documents with a byte that both arms scored.
        text_bytes: All bytes of the documents that take part, including documents of which an arm
            could not score any.
        prefixes_cut: Number of the documents of the metrics with a prefix that was too long and
            truncated.
        positions: The metrics by byte offset in the document.
        contexts: The metrics by bytes of preceding text in the same window.
    """

    comparison: Comparison
    metrics: PairedMetrics | None
    text_bytes: int = 0
    prefixes_cut: int = 0
    positions: list[PositionBin] = field(default_factory=list)
    contexts: list[PositionBin] = field(default_factory=list)

    @property
    def compares(self) -> bool:
        """Whether two different arms were compared, over at least one document."""
        return self.metrics is not None and self.comparison.group != TEXT

    @property
    def left_out(self) -> float:
        """Share of the text bytes that one of the arms could not score."""
        scored = self.metrics.bytes if self.metrics else 0
        return 1 - scored / self.text_bytes if self.text_bytes else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The row as a dict for JSON."""
        comparison = self.comparison
        return {
            "name": comparison.name,
            "group": comparison.group,
            "base": asdict(comparison.base),
            "test": asdict(comparison.test),
            **_plain(self.metrics),
            "text_bytes": self.text_bytes,
            "prefixes_cut": self.prefixes_cut,
            "by_position": [bin_.as_dict() for bin_ in self.positions],
            "by_context": [bin_.as_dict() for bin_ in self.contexts],
        }


@dataclass(frozen=True, slots=True)
class SliceRows:
    """The comparisons over the documents of one slice."""

    slice: Slice
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """The slice as a dict for JSON."""
        return {
            "by": self.slice.by,
            "name": self.slice.name,
            "documents": int(self.slice.members.sum()),
            "comparisons": [
                {"name": row.comparison.name, **_plain(row.metrics)} for row in self.rows
            ],
        }


@dataclass(frozen=True, slots=True)
class DocumentSums:
    """The sums of each document in each comparison.

    Attributes:
        names: The names of the documents, as in training.
        digests: xxh3 hash of each text, which matches the documents of two models.
        totals: By comparison: float64 [documents, COLUMNS]; zeros if a document takes no part.
    """

    names: list[str]
    digests: list[int]
    totals: dict[str, np.ndarray]

    def lines(self, checkpoint: str) -> Iterator[dict[str, Any]]:
        """Yield a flat dict for each document and comparison that it takes part in."""
        for name, totals in self.totals.items():
            for document, row in zip(self.names, totals.tolist(), strict=True):
                if row[BYTES]:
                    yield {
                        "checkpoint": checkpoint,
                        "comparison": name,
                        "document": document,
                        "bytes": int(row[BYTES]),
                        "tokens_without": int(row[TOKENS]),
                        "tokens_with": int(row[TOKENS_WITH]),
                        "nats_without": row[NATS_WITHOUT],
                        "nats_with": row[NATS_WITH],
                    }


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The results of one model.

    Attributes:
        checkpoint: The checkpoint as the user named it.
        data: The held-out file, its documents and the number left out.
        rows: The comparisons; the first is the text alone.
        sums: The per-document sums that the rows were computed from.
        slices: The comparisons over slices of the documents.
    """

    checkpoint: str
    model: str
    data: dict[str, Any]
    rows: list[Row]
    sums: DocumentSums
    slices: list[SliceRows] = field(default_factory=list)

    def row(self, name: str) -> Row | None:
        """The comparison of this name, if it was made."""
        return next((row for row in self.rows if row.comparison.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        """The model as a dict for JSON."""
        return {
            "checkpoint": self.checkpoint,
            "model": self.model,
            "data": self.data,
            "comparisons": [row.as_dict() for row in self.rows],
            "slices": [part.as_dict() for part in self.slices],
        }


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
        """The content of `evaluation.json`."""
        return {
            "settings": self.settings,
            "models": [model.as_dict() for model in self.models],
            "pairs": [asdict(pair) for pair in self.pairs],
        }


def rows_of(
    comparisons: Sequence[Comparison],
    sums: Mapping[str, ComparisonSums],
    text_bytes: np.ndarray,
    position_edges: Sequence[int],
    metrics_of: MetricsOf,
) -> list[Row]:
    """Metrics of each comparison, overall and by position; corrected for multiple comparisons.

    Args:
        text_bytes: int [documents], all bytes of each text.
        position_edges: First byte of each position bin.
        metrics_of: `paired_metrics` with the settings of the bootstrap.
    """
    bins = len(position_edges)
    stacked = [sums[comparison.name].totals[None] for comparison in comparisons]
    for comparison in comparisons:
        # [documents, 2, bins, COLUMNS] to [2 * bins, documents, COLUMNS]
        by_bin = np.moveaxis(sums[comparison.name].values, 0, 2)
        stacked.append(by_bin.reshape(2 * bins, *by_bin.shape[2:]))
    family = [i for i, comparison in enumerate(comparisons) if comparison.group != TEXT]
    metrics = metrics_of(np.concatenate(stacked), family=family)
    rows = []
    for number, comparison in enumerate(comparisons):
        start = len(comparisons) + 2 * bins * number
        found = sums[comparison.name]
        rows.append(
            Row(
                comparison,
                metrics[number],
                text_bytes=int(text_bytes[found.takes_part].sum()),
                prefixes_cut=int((found.prefix_cut & (found.totals[:, BYTES] > 0)).sum()),
                positions=_bins(position_edges, metrics[start : start + bins]),
                contexts=_bins(position_edges, metrics[start + bins : start + 2 * bins]),
            )
        )
    return rows


def _bins(edges: Sequence[int], metrics: Sequence[PairedMetrics | None]) -> list[PositionBin]:
    return [
        PositionBin(edge, here)
        for edge, here in zip(edges, metrics, strict=True)
        if here is not None
    ]


def slice_rows_of(
    slices: Sequence[Slice],
    comparisons: Sequence[Comparison],
    sums: Mapping[str, ComparisonSums],
    metrics_of: MetricsOf,
) -> list[SliceRows]:
    """Metrics of each comparison over the documents of each slice."""
    made = []
    for part in slices:
        stacked = np.stack([sums[each.name].totals for each in comparisons])
        metrics = metrics_of(stacked * part.members[None, :, None])
        rows = [Row(each, own) for each, own in zip(comparisons, metrics, strict=True)]
        made.append(SliceRows(part, rows))
    return made


def _plain(metrics: PairedMetrics | None) -> dict[str, Any]:
    return asdict(metrics) if metrics else {"documents": 0, "bytes": 0}


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two models over the documents that both scored; below 0, the second needs fewer bits.

    Attributes:
        shown: The arm in which the documents were scored.
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
