"""Chunks of texts as tensors: the micro-batches of the training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.data.batch import MicroBatch
from bsmeta.tasks.classification.examples import Chunk


def pad(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]]
) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask`, int64 [chunks, longest chunk]."""
    padded = tokenizer.pad({"input_ids": [list(chunk) for chunk in ids]}, return_tensors="pt")
    return {name: padded[name] for name in ("input_ids", "attention_mask")}


def micro_batch(
    chunks: Sequence[Chunk], tokenizer: PreTrainedTokenizerBase, weights: Sequence[float], name: str
) -> MicroBatch:
    """Builds a micro-batch; the weight of a chunk is that of its label.

    Args:
        chunks: At least one.
        tokenizer: Pads them.
        weights: The weight of each label.
        name: The file that `log_documents` names, with the source row.
    """
    tensors = pad(tokenizer, [chunk.ids for chunk in chunks])
    own = [weights[chunk.label] for chunk in chunks]
    tokens = sum(len(chunk.ids) for chunk in chunks)
    return MicroBatch(
        tensors={
            **tensors,
            "labels": torch.tensor([chunk.label for chunk in chunks]),
            "weights": torch.tensor(own),
        },
        weight=sum(own),
        tokens=tokens,
        padding=tensors["input_ids"].numel() - tokens,
        documents=[f"{name}:{chunk.source}" for chunk in chunks],
        counts={"chunks": float(len(chunks)), "weight": sum(own)},
    )
