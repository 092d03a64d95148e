"""The slow, obvious scorer: one document, one chunk, one character at a time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.data.text.chunks import Chunk, cut_document
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.rendering import Renderer

Token = tuple[int, int, float]
"""First character, end, nats (NaN where it is not scored)."""


def tokens_of_chunk(model: GPT2LMHeadModel, chunk: Chunk) -> list[Token]:
    chunk = replace(chunk, first_text_is_target=False)
    with torch.no_grad():
        logits = model(torch.from_numpy(chunk.ids.astype(np.int64))[None]).logits[0]
    log_p = logits.double().log_softmax(-1)
    tokens = []
    for j in range(chunk.prefix_length, len(chunk)):
        start, end = int(chunk.text_starts[j]), int(chunk.text_ends[j])
        if end > start:
            scored = chunk.token_types[j] == 0 and chunk.loss_mask[j]
            tokens.append((start, end, -float(log_p[j - 1, chunk.ids[j]]) if scored else math.nan))
    return tokens


def bits_of_document(
    model: GPT2LMHeadModel,
    tokenizer: PreTrainedTokenizerBase,
    config: DataConfig,
    document: Document,
    types: tuple[str, ...],
) -> tuple[int, float, float]:
    """Returns the bytes that both readings score, and the bits without and with metadata."""
    encoder, renderer = DocumentEncoder(tokenizer, config), Renderer(config.metadata_config)
    arms = []
    for shown_types in ((), types):
        (encoded,) = encoder.encode([renderer.render(document, shown_types)])
        arms.append(
            [t for chunk in cut_document(encoded, config) for t in tokens_of_chunk(model, chunk)]
        )
    text = document.text
    inside = {p for arm in arms for start, end, _ in arm for p in range(start + 1, end)}
    marks = [p for p in range(len(text) + 1) if p not in inside]
    size, bits = 0, [0.0, 0.0]
    for first, last in itertools.pairwise(marks):
        segment = [[t for t in arm if first <= t[0] < last] for arm in arms]
        if all(part and not any(math.isnan(n) for *_, n in part) for part in segment):
            size += len(text[first:last].encode())
            for side, part in enumerate(segment):
                bits[side] += sum(n for *_, n in part) / math.log(2)
    return size, bits[0], bits[1]
