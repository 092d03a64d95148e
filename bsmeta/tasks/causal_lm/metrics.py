"""The metrics of the language model: held-out text with and without its metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from bsmeta.config.metric_table import MetricDefinition

if TYPE_CHECKING:
    from bsmeta.tasks.causal_lm.evaluation.results import PairedMetrics

BITS = "{:.4f}".format
SIGNED = "{:+.4f}".format
P_VALUE = "{:.2g}".format
PERPLEXITY = "{:,.1f}".format
COUNT = "{:,.0f}".format


class Compared(NamedTuple):
    """The comparisons of an evaluation; None if no byte takes part in one.

    Attributes:
        text: All documents, without metadata.
        paired: The documents that have metadata, with and without it.
    """

    text: PairedMetrics | None
    paired: PairedMetrics | None


def read_paired(read: Callable[[PairedMetrics], Any]) -> Callable[[Compared], Any]:
    """Makes a function that reads a value of `paired`; the function returns None without it."""
    return lambda compared: None if compared.paired is None else read(compared.paired)


def read_text(read: Callable[[PairedMetrics], Any]) -> Callable[[Compared], Any]:
    """Makes a function that reads a value of `text`; the function returns None without it."""
    return lambda compared: None if compared.text is None else read(compared.text)


def count_in_documents(read: Callable[[PairedMetrics], int]) -> Callable[[Compared], int]:
    """Makes a function that reads a count of `paired`, or without it of `text`; 0 without both."""

    def count(compared: Compared) -> int:
        if compared.text is None:
            return 0
        return read(compared.paired or compared.text)

    return count


METRICS = {
    "bits_per_byte_without": MetricDefinition[Compared](
        label="without",
        description="bits per byte without metadata",
        better="min",
        format=BITS,
        format_difference=SIGNED,
        compute=read_paired(lambda paired: paired.bits_per_byte_without),
    ),
    "bits_per_byte_with": MetricDefinition[Compared](
        label="with",
        description="bits per byte with all metadata, same text",
        better="min",
        format=BITS,
        format_difference=SIGNED,
        compute=read_paired(lambda paired: paired.bits_per_byte_with),
    ),
    "difference": MetricDefinition[Compared](
        label="difference",
        description="difference",
        better="min",
        format=SIGNED,
        format_difference=SIGNED,
        compute=read_paired(lambda paired: paired.difference),
    ),
    "text_bits_per_byte": MetricDefinition[Compared](
        label="text alone",
        description="bits per byte of all documents, text alone",
        better="min",
        format=BITS,
        format_difference=SIGNED,
        compute=read_text(lambda text: text.bits_per_byte_without),
    ),
    "documents": MetricDefinition[Compared](
        label="documents",
        better=None,
        format=COUNT,
        in_card=False,
        compute=count_in_documents(lambda metrics: metrics.documents),
    ),
    "bytes": MetricDefinition[Compared](
        label="bytes",
        better=None,
        format=COUNT,
        in_card=False,
        compute=count_in_documents(lambda metrics: metrics.bytes),
    ),
    "tokens": MetricDefinition[Compared](
        label="tokens",
        better=None,
        format=COUNT,
        in_card=False,
        compute=read_paired(lambda paired: paired.tokens),
    ),
    "perplexity_without": MetricDefinition[Compared](
        label="perplexity without",
        better="min",
        format=PERPLEXITY,
        in_card=False,
        compute=read_paired(lambda paired: paired.perplexity_without),
    ),
    "perplexity_with": MetricDefinition[Compared](
        label="perplexity with",
        better="min",
        format=PERPLEXITY,
        in_card=False,
        compute=read_paired(lambda paired: paired.perplexity_with),
    ),
    "difference_low": MetricDefinition[Compared](
        label="difference, low",
        better=None,
        format=SIGNED,
        in_card=False,
        compute=read_paired(lambda paired: paired.difference_low),
    ),
    "difference_high": MetricDefinition[Compared](
        label="difference, high",
        better=None,
        format=SIGNED,
        in_card=False,
        compute=read_paired(lambda paired: paired.difference_high),
    ),
    "mean_document_difference": MetricDefinition[Compared](
        label="mean difference of a document",
        better="min",
        format=SIGNED,
        in_card=False,
        compute=read_paired(lambda paired: paired.mean_document_difference),
    ),
    "mean_document_difference_low": MetricDefinition[Compared](
        label="mean difference of a document, low",
        better=None,
        format=SIGNED,
        in_card=False,
        compute=read_paired(lambda paired: paired.mean_document_difference_low),
    ),
    "mean_document_difference_high": MetricDefinition[Compared](
        label="mean difference of a document, high",
        better=None,
        format=SIGNED,
        in_card=False,
        compute=read_paired(lambda paired: paired.mean_document_difference_high),
    ),
    "documents_better": MetricDefinition[Compared](
        label="better documents",
        better=None,
        format=COUNT,
        in_card=False,
        compute=read_paired(lambda paired: paired.documents_better),
    ),
    "documents_worse": MetricDefinition[Compared](
        label="worse documents",
        better=None,
        format=COUNT,
        in_card=False,
        compute=read_paired(lambda paired: paired.documents_worse),
    ),
    "sign_test_p": MetricDefinition[Compared](
        label="sign test p",
        better=None,
        format=P_VALUE,
        in_card=False,
        compute=read_paired(lambda paired: paired.sign_test_p),
    ),
}
"""The metrics by name. The most important come first, so that a narrow screen shows them."""
