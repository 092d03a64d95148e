"""Documents as JSON Lines, for programs."""

from __future__ import annotations

import json

from bsmeta.config.metadata import MetadataConfig
from bsmeta.explaining.selection import ExplainedDocument
from bsmeta.explaining.tokens import metadata_mask


def json_line(document: ExplainedDocument, config: MetadataConfig) -> str:
    """One document as a line of JSON, without the newline.

    `text` is the whole text that the model reads, including `prefix` (untruncated, even if it is
    truncated in the chunks). The lists of a chunk have one entry per token; masks are 0 or 1.
    """
    rendered = document.rendered
    pieces = [
        {
            "input_ids": piece.ids.tolist(),
            "metadata_mask": metadata_mask(piece, rendered, config).astype(int).tolist(),
            "loss_mask": piece.loss_mask.astype(int).tolist(),
        }
        for piece in document.pieces
    ]
    return json.dumps(
        {
            "document": document.name,
            "text": rendered.prefix + rendered.lead + rendered.body + rendered.suffix,
            "prefix": rendered.prefix,
            "pieces": pieces,
        }
    )
