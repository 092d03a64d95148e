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
        encoded: The document as rendered.
        plain: The document without metadata, if it is trained on in this form; otherwise None.
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
            plain = [*encoder.encode([document.without_metadata() for document in rendered])]
        yield from map(Encoding, batch, encoded, plain)


def batch_documents(documents: Iterable[WindowDocument]) -> Iterator[list[WindowDocument]]:
    """Yields batches of at most `ENCODING_BATCH_CHARS` characters, or of one longer document.

    A tokenizer needs 10 to 80 bytes of memory per character of a batch, which for a whole window
    of long documents would be many gigabytes.
    """
    batch: list[WindowDocument] = []
    size = 0
    for document in documents:
        length = len(document.rendered.body)
        if batch and size + length > ENCODING_BATCH_CHARS:
            yield batch
            batch = []
            size = 0
        batch.append(document)
        size += length

    if batch:
        yield batch
