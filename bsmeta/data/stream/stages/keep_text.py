"""Seventh stage: under `row_budget=text`, documents with bad metadata are kept without metadata.

Otherwise, the choice of training documents would depend on which metadata is read. All other bad
documents are dropped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bsmeta.data.stream.stages.decode import decode_lines
from bsmeta.data.stream.stages.guard import Guard
from bsmeta.data.stream.stages.items import BadLine, WindowDocument, apply_stage
from bsmeta.data.stream.stages.render import DocumentRenderer
from bsmeta.metadata.decoding import Decoder


def keep_text(
    documents: Iterable[WindowDocument | BadLine],
    decoder: Decoder | None,
    guard: Guard,
    renderer: DocumentRenderer,
) -> Iterator[WindowDocument]:
    """Yields the good documents; yields documents with bad metadata without their metadata.

    Args:
        decoder: Decodes only the text of a line; None drops all bad documents.
        guard: Decides again whether the text is trained on.
    """
    for document in documents:
        if not isinstance(document, BadLine):
            yield document
        elif decoder is not None:
            decoded = decode_lines([document.source], decoder)
            admitted = apply_stage(guard.admit, decoded)
            for text_document in apply_stage(renderer.render, admitted):
                if not isinstance(text_document, BadLine):
                    yield text_document
