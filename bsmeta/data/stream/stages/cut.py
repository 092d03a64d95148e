"""Ninth stage: encoded documents are cut into the chunks that are trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bsmeta.config.data import DataConfig
from bsmeta.data.stream.stages.encode import Encoding
from bsmeta.data.stream.stages.items import WindowDocument
from bsmeta.data.text.chunks import cut_alike, cut_document


def cut_documents(encodings: Iterable[Encoding], config: DataConfig) -> Iterator[WindowDocument]:
    """Yields each document with its chunks; only the first if `long_documents` is `truncate`."""
    keeps_only_first = config.metadata_config.long_documents == "truncate"
    for document, encoded, plain in encodings:
        chunks = cut_document(encoded, config)
        if plain is not None:  # with the same text in each chunk as with metadata
            chunks = cut_alike(plain, chunks, config)
        document.chunks = chunks[:1] if keeps_only_first else chunks
        yield document
