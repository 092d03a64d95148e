"""Descriptions of documents, chunks and packing: JSON Lines for programs, sentences for views."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from bsmeta.config.metadata import MetadataConfig
from bsmeta.explaining.selection import ExplainedDocument, ExplainedWindow, PackedChunk
from bsmeta.explaining.tokens import Part, ShownToken, metadata_mask


def document_facts(
    document: ExplainedDocument, chunks: Sequence[Sequence[ShownToken]]
) -> tuple[str, str]:
    """Describes a document's metadata, and its lengths.

    Args:
        document: The document.
        chunks: The tokens of each of its chunks.
    """
    given = document.rendered.types
    others = [name for name in document.present if name not in given]
    metadata = f"metadata: {', '.join(given) or 'none'}"
    if others:
        metadata += f"; it also has {', '.join(others)}"
    if document.lacking:
        metadata += f"; no record of {', '.join(document.lacking)}"
    tokens, targets = (
        sum(map(len, chunks)),
        sum(token.target for chunk in chunks for token in chunk),
    )
    lengths = (
        f"{count(len(document.rendered.text), 'character')} of text, {count(tokens, 'token')} in "
        f"{count(len(chunks), 'chunk')}, loss on {targets:,}"
    )
    return metadata, lengths


def chunk_facts(
    document: ExplainedDocument, place: int, tokens: Sequence[ShownToken], sequences: int
) -> str:
    """Describes the lengths of a chunk, and the sequence that it is packed into.

    Args:
        document: The document.
        place: Index of the chunk in the document.
        tokens: The tokens of the chunk.
        sequences: Number of sequences in the window.
    """
    lengths = Counter(token.part for token in tokens)
    parts = ", ".join(f"{part.value} {lengths[part]:,}" for part in Part if lengths[part])
    return (
        f"chunk {place + 1} of {len(document.chunks)}: {count(len(tokens), 'token')} ({parts}), "
        f"loss on {sum(token.target for token in tokens):,}; "
        f"sequence {document.sequences[place] + 1:,} of {sequences:,}"
    )


def packing_facts(window: ExplainedWindow) -> str:
    """Describes how densely a window is packed."""
    chunks = sum(map(len, window.sequences))
    used = sum(chunk.length for sequence in window.sequences for chunk in sequence)
    places = max(len(window.sequences) * window.capacity, 1)
    which = f"documents {window.first} to {window.last} of {window.shard}"
    if window.count <= window.last - window.first:
        which = f"{window.count:,} of {which} (the others are in windows of other streams)"
    return (
        f"{which} are one window: "
        f"{count(chunks, 'chunk')} in {count(len(window.sequences), 'sequence')} of "
        f"{window.capacity:,} tokens, {used / places:.1%} full"
    )


def shown_sequences(window: ExplainedWindow, most: int) -> list[int]:
    """Indices of the sequences to show: the first, then others that contain shown documents.

    Args:
        window: The window.
        most: Maximum number of each.
    """
    own = {place for document in window.documents for place in document.sequences}
    others = sorted(place for place in own if place >= most)
    return [*range(min(most, len(window.sequences))), *others[:most]]


def chunk_name(chunk: PackedChunk) -> str:
    """`17 (1/3): 256`: number of the document, chunk and number of chunks, tokens."""
    part = f" ({chunk.place + 1}/{chunk.count})" if chunk.count > 1 else ""
    return f"{chunk.number}{part}: {chunk.length}"


def padding(sequence: Sequence[PackedChunk], capacity: int) -> int:
    """Number of padding tokens in a sequence."""
    return capacity - sum(chunk.length for chunk in sequence)


def count(number: int, name: str) -> str:
    """`1 chunk`, `2,000 chunks`."""
    return f"{number:,} {name}" + ("" if number == 1 else "s")


def json_line(document: ExplainedDocument, config: MetadataConfig) -> str:
    """One document as a line of JSON, without the newline.

    `text` is the whole text that the model reads, including `prefix` (untruncated, even if it is
    truncated in the chunks). The lists of a chunk have one entry per token; masks are 0 or 1.
    """
    rendered = document.rendered
    chunks = [
        {
            "input_ids": chunk.ids.tolist(),
            "metadata_mask": metadata_mask(chunk, rendered, config).astype(int).tolist(),
            "loss_mask": chunk.loss_mask.astype(int).tolist(),
        }
        for chunk in document.chunks
    ]
    return json.dumps(
        {
            "document": document.name,
            "text": rendered.prefix + rendered.lead + rendered.body + rendered.suffix,
            "prefix": rendered.prefix,
            "pieces": chunks,
        }
    )
