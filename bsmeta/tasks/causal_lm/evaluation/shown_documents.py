"""The documents that metadata helps most and least, with their tokens, for the page of a report."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.data.text.chunks import Chunk
from bsmeta.report.figures import shorten_name
from bsmeta.tasks.causal_lm.evaluation.arms import Comparison
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.evaluation.readings import BYTES, NATS_WITH, NATS_WITHOUT
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport, ShownDocument
from bsmeta.tasks.causal_lm.evaluation.tables import SIGNED, find_main_row, label_row
from bsmeta.tasks.causal_lm.shown_tokens import TokenTexts, decode_tokens

MAX_DOCUMENTS = 3
"""Number of documents shown from each end of the order."""

MAX_TOKENS = 500
"""Number of tokens shown from the beginning of a document, its prefix included."""


def add_shown_documents(
    report: ModelReport, evaluation: PairedEvaluation, tokenizer: PreTrainedTokenizerBase
) -> ModelReport:
    """Adds the documents that the main comparison helps most and least, if one was made."""
    main_row = find_main_row(report)
    if main_row is None:
        return report

    totals = report.totals[main_row.comparison.name]
    shown_documents = show_extreme_documents(evaluation, main_row.comparison, totals, tokenizer)
    return replace(report, shown_documents=shown_documents)


def show_extreme_documents(
    evaluation: PairedEvaluation,
    comparison: Comparison,
    totals: np.ndarray,
    tokenizer: PreTrainedTokenizerBase,
) -> list[ShownDocument]:
    """Decodes the documents with the largest savings and costs in bits per byte.

    Args:
        comparison: The comparison by which they are chosen; they are shown in its test arm.
        totals: float64 [documents, COLUMNS], the sums of each document in this comparison.

    Returns:
        The documents by rising difference: first the ones with the largest savings.
    """
    texts = TokenTexts(tokenizer)
    differences = compute_differences(totals)
    shown_documents = []
    for index in select_extremes(differences, MAX_DOCUMENTS):
        encoded = evaluation.encode_in_arm(index, comparison.test)
        stop = min(len(encoded.ids), MAX_TOKENS)
        tokens = decode_tokens(Chunk(encoded, 0, stop, has_prefix=True), texts)
        shown_documents.append(
            ShownDocument(
                index=index,
                difference=float(differences[index]),
                tokens=tokens[:MAX_TOKENS],
                token_count=len(encoded.prefix_ids) + len(encoded.ids),
            )
        )
    return shown_documents


def compute_differences(totals: np.ndarray) -> np.ndarray:
    """Computes each document's bits per byte with metadata minus bits per byte without.

    Args:
        totals: float64 [documents, COLUMNS].

    Returns:
        float64 [documents]; NaN for documents that take no part.
    """
    nats = totals[:, NATS_WITH] - totals[:, NATS_WITHOUT]
    sizes = totals[:, BYTES]
    undefined = np.full(len(totals), np.nan)
    return np.divide(nats / math.log(2), sizes, out=undefined, where=sizes > 0)


def select_extremes(differences: np.ndarray, count: int) -> list[int]:
    """Selects up to `count` of the lowest and of the highest values that are not NaN.

    Returns:
        Their indices by rising value, each once.
    """
    order = np.argsort(differences, kind="stable")  # NaN comes last
    order = order[: np.count_nonzero(~np.isnan(differences))]
    lowest = order[:count]
    highest = order[max(len(order) - count, len(lowest)) :]
    return [int(index) for index in (*lowest, *highest)]


def title_document(model: ModelReport, document: ShownDocument) -> str:
    """Returns the name of a shown document, its host, and its difference."""
    name = model.names[document.index]
    host = model.hosts[document.index] if model.hosts else ""
    if host:
        name += f" ({shorten_name(host)})"
    return f"{SIGNED(document.difference)} bits per byte: {name}"


def describe_shown_documents(model: ModelReport) -> str:
    """Describes which documents the page shows with their tokens, and how much of them."""
    main_row = find_main_row(model)
    label = label_row(main_row) if main_row else ""
    return (
        f"Of {model.checkpoint}, in the comparison `{label}`: the {MAX_DOCUMENTS} documents with "
        f"the largest savings and the {MAX_DOCUMENTS} with the largest costs in bits per byte, as "
        f"the model reads them with metadata. At most {MAX_TOKENS:,} tokens of each are shown."
    )
