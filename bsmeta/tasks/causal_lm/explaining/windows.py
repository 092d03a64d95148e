"""Data classes: windows of the training data with their documents, chunks and sequences."""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.data.text.chunks import Chunk
from bsmeta.metadata.rendering import Rendered


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """A chunk in a sequence.

    Attributes:
        number: Number of its document in the shard.
        index: Index of the chunk among the chunks of its document.
        count: Number of chunks of the document.
        length: Number of its tokens.
        budgeted_length: Number of the tokens that count toward the length of the sequence: under
            `row_budget=text` only tokens of text.
    """

    number: int
    index: int
    count: int
    length: int
    budgeted_length: int

    @property
    def label(self) -> str:
        """`17 (1/3): 256`: number of the document, chunk and number of chunks, tokens."""
        part = f" ({self.index + 1}/{self.count})" if self.count > 1 else ""
        return f"{self.number}{part}: {self.length}"


@dataclass(frozen=True, slots=True)
class ExplainedDocument:
    """A document to show.

    Attributes:
        name: `<shard>:<number>`.
        chunks: The chunks that are trained on, in order.
        sequences: For each chunk, the index of its sequence in the window.
        rendered: The document as it is rendered.
        present: Types of `metadata_list` for which the document has records.
        lacking: Requested types that could not be rendered for this document.
    """

    name: str
    rendered: Rendered
    chunks: list[Chunk]
    sequences: list[int]
    present: tuple[str, ...]
    lacking: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExplainedWindow:
    """A window with documents to show.

    Attributes:
        shard: Name of its shard.
        first, last: Numbers of its first and its last document.
        count: Number of documents in it; fewer than from `first` to `last` if streams share the
            shard.
        documents: The documents to show.
        sequences: All of its sequences, in the order in which the stream yields them.
        capacity: Maximum number of tokens in a sequence.
        by_text: Whether only tokens of text count, so that metadata has room of its own.
    """

    shard: str
    first: int
    last: int
    count: int
    documents: list[ExplainedDocument]
    sequences: list[list[PackedChunk]]
    capacity: int
    by_text: bool

    @property
    def shown_numbers(self) -> set[int]:
        """Numbers of the documents to show."""
        return {int(document.name.rpartition(":")[2]) for document in self.documents}

    def count_padding(self, sequence: int) -> int:
        """Returns the number of tokens that would still fit into a sequence."""
        return self.capacity - sum(chunk.budgeted_length for chunk in self.sequences[sequence])
