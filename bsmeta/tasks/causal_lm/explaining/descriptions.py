"""Describes a document and the packing of its window, for the terminal and the page."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bsmeta.tasks.causal_lm.explaining.windows import ExplainedDocument, ExplainedWindow
from bsmeta.tasks.causal_lm.shown_tokens import Part, ShownToken, TokenTexts, decode_tokens


@dataclass(frozen=True, slots=True)
class DocumentView:
    """A document to show.

    Attributes:
        lines: Two lines about its metadata and its length.
        chunks: The caption and the tokens of each chunk.
    """

    lines: list[str]
    chunks: list[tuple[str, list[ShownToken]]]


def describe_document(
    document: ExplainedDocument, window: ExplainedWindow, texts: TokenTexts
) -> DocumentView:
    """Describes a document, and decodes and describes its chunks."""
    chunks = [decode_tokens(chunk, texts) for chunk in document.chunks]
    num_tokens = sum(len(tokens) for tokens in chunks)
    num_targets = sum(_count_targets(tokens) for tokens in chunks)
    length = (
        f"{format_count(len(document.rendered.text), 'character')} of text, "
        f"{format_count(num_tokens, 'token')} in {format_count(len(chunks), 'chunk')}, "
        f"loss on {num_targets:,}"
    )

    captioned_chunks = []
    for index, tokens in enumerate(chunks):
        counts = Counter(token.part for token in tokens)
        parts = ", ".join(f"{part.value} {counts[part]:,}" for part in Part if counts[part])
        caption = (
            f"chunk {index + 1} of {len(chunks)}: {format_count(len(tokens), 'token')} ({parts}), "
            f"loss on {_count_targets(tokens):,}; "
            f"sequence {document.sequences[index] + 1:,} of {len(window.sequences):,}"
        )
        captioned_chunks.append((caption, tokens))
    return DocumentView([_describe_metadata(document), length], captioned_chunks)


def _count_targets(tokens: Sequence[ShownToken]) -> int:
    return sum(token.target for token in tokens)


def _describe_metadata(document: ExplainedDocument) -> str:
    """Lists the types of a document: rendered, present but not rendered, and lacking."""
    types = document.rendered.types
    description = f"metadata: {', '.join(types) or 'none'}"
    others = [name for name in document.present if name not in types]
    if others:
        description += f"; it also has {', '.join(others)}"
    if document.lacking:
        description += f"; no record of {', '.join(document.lacking)}"
    return description


def describe_packing(window: ExplainedWindow) -> str:
    """Describes how densely a window is packed."""
    chunks = list(itertools.chain.from_iterable(window.sequences))
    used_tokens = sum(chunk.budgeted_length for chunk in chunks)
    total_capacity = max(len(window.sequences) * window.capacity, 1)

    documents = f"documents {window.first} to {window.last} of {window.shard}"
    if window.count <= window.last - window.first:
        documents = f"{window.count:,} of {documents} (the others are in windows of other streams)"
    return (
        f"{documents} are one window: "
        f"{format_count(len(chunks), 'chunk')} in "
        f"{format_count(len(window.sequences), 'sequence')} of "
        f"{window.capacity:,} tokens{' of text' if window.by_text else ''}, "
        f"{used_tokens / total_capacity:.1%} full"
    )


def select_sequences(window: ExplainedWindow, limit: int) -> list[int]:
    """Selects the first `limit` sequences, and at most `limit` others of shown documents.

    Returns:
        The indices of the sequences, rising.
    """
    shown_sequences: set[int] = set()
    for document in window.documents:
        shown_sequences.update(document.sequences)
    others = sorted(index for index in shown_sequences if index >= limit)
    return [*range(min(limit, len(window.sequences))), *others[:limit]]


def format_count(number: int, name: str) -> str:
    """Returns a number with its noun: `1 chunk`, `2,000 chunks`."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {name}{plural}"
