"""Eighth stage: rendered documents become tokens, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bsmeta.data.stream.stages.items import WindowDocument
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument

ENCODING_BATCH_CHARS = 8_000_000
"""Approximate number of characters that are encoded in one call of the tokenizer."""


class Encoding(NamedTuple):
    """A document of a window, and its tokens.

    Attributes:
        encoded: The tokens of the document as rendered.
        plain: The tokens without metadata, if these are trained on; otherwise None.
    """

    document: WindowDocument
    encoded: EncodedDocument
    plain: EncodedDocument | None


def encode_documents(
    documents: Iterable[WindowDocument], encoder: DocumentEncoder, *, also_plain: bool
) -> Iterator[Encoding]:
    """Yields each document with its tokens.

    Args:
        also_plain: Whether documents are also encoded without their metadata.
    """
    for batch in batch_documents(documents):
        rendered = [document.rendered for document in batch]
        encoded = encoder.encode(rendered)
        plain: list[EncodedDocument | None] = [None] * len(batch)
        if also_plain:
            plain = list(encoder.encode([document.without_metadata() for document in rendered]))
        yield from map(Encoding, batch, encoded, plain)


def batch_documents(documents: Iterable[WindowDocument]) -> Iterator[list[WindowDocument]]:
    """Yields batches of at most `ENCODING_BATCH_CHARS` characters, or of one longer document.

    A tokenizer needs 10 to 80 bytes of memory per character of a batch, which would be many
    gigabytes for a whole window of long documents.
    """
    batch: list[WindowDocument] = []
    num_chars = 0
    for document in documents:
        length = len(document.rendered.body)
        if batch and num_chars + length > ENCODING_BATCH_CHARS:
            yield batch
            batch = []
            num_chars = 0
        batch.append(document)
        num_chars += length

    if batch:
        yield batch
