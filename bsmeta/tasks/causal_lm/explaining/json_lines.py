"""Documents as training sees them, as lines of JSON."""

from __future__ import annotations

import json

from bsmeta.config.metadata import MetadataConfig
from bsmeta.tasks.causal_lm.explaining.windows import ExplainedDocument
from bsmeta.tasks.causal_lm.shown_tokens import compute_metadata_mask


def format_json_line(document: ExplainedDocument, config: MetadataConfig) -> str:
    """Returns one document as a line of JSON, without the newline.

    `text` is the whole text that the model reads, including `prefix` (untruncated, even if it is
    truncated in the chunks). The lists of a chunk have one entry per token; masks are 0 or 1.
    """
    chunks = [
        {
            "input_ids": chunk.ids.tolist(),
            "metadata_mask": compute_metadata_mask(chunk, config).astype(int).tolist(),
            "loss_mask": chunk.loss_mask.astype(int).tolist(),
        }
        for chunk in document.chunks
    ]
    return json.dumps(
        {
            "document": document.name,
            "text": document.rendered.full_text,
            "prefix": document.rendered.prefix,
            "pieces": chunks,
        }
    )
