"""Eighth stage: rendered documents become tokens, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bsmeta.data.stream.stages.items import WindowDocument
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument

ENCODING_BATCH_CHARS = 8_000_000
"""Approximate characters of the documents that one call of the tokenizer encodes."""


class Encoding(NamedTuple):
    """A document of a window, and its tokens.

    Attributes:
        encoded: The document as rendered.
        plain: The same document without metadata, if it is trained on in this form.
    """

    document: WindowDocument
    encoded: EncodedDocument
    plain: EncodedDocument | None


def encode_documents(
    documents: Iterable[WindowDocument], encoder: DocumentEncoder, *, also_plain: bool
) -> Iterator[Encoding]:
    """Yields the tokens of each document.

    Args:
        also_plain: Whether documents are encoded without their metadata, too.
    """
    for batch in batch_documents(documents):
        rendered = [document.rendered for document in batch]
        encoded = encoder.encode(rendered)
        plain: list[EncodedDocument | None] = [None] * len(batch)
        if also_plain:
            plain = [*encoder.encode([document.without_metadata() for document in rendered])]
        yield from map(Encoding, batch, encoded, plain)


def batch_documents(documents: Iterable[WindowDocument]) -> Iterator[list[WindowDocument]]:
    """Yields documents in batches of about `ENCODING_BATCH_CHARS`, or of one longer document.

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
