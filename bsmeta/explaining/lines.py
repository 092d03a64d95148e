"""Documents as JSON lines, for programs."""

from __future__ import annotations

import json

from bsmeta.config.metadata import MetadataConfig
from bsmeta.explaining.selection import ExplainedDocument
from bsmeta.explaining.tokens import metadata_mask


def json_line(document: ExplainedDocument, config: MetadataConfig) -> str:
    """One document as one line of JSON, without its end.

    `text` is all that the model reads, `prefix` included (whole, even where the pieces have it cut
    to its longest length). The lists of a piece have one entry a token; the masks are of 0 and 1.
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
