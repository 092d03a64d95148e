"""The steps of a rank: micro-batches of chunks of the training split, each once per epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.config.classification import ClassificationConfig
from bsmeta.config.steps import BatchPlan
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import FixedSize, TableStream
from bsmeta.tasks.classification.examples import Chunk, Examples


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


def order_of(config: ClassificationConfig, examples: Examples, world_size: int) -> FixedSize:
    """The steps of every epoch; the last of an epoch has the remaining chunks.

    Args:
        config: The run.
        examples: Its data.
        world_size: Number of processes; together with the size of a micro-batch and the
            accumulation it gives the size of a step, on which alone the steps depend.
    """
    batch_size = BatchPlan.of(config, world_size).global_batch
    return FixedSize(len(examples.chunks("train")), batch_size, config.seed)


def train_stream(
    config: ClassificationConfig,
    examples: Examples,
    collate: Callable[[list[Chunk]], MicroBatch],
    *,
    rank: int,
    world_size: int,
    state: dict[str, Any] | None,
) -> TableStream:
    """This rank's steps, from a saved state or from the beginning.

    Args:
        config: The run.
        examples: Its data.
        collate: Builds a micro-batch; called in the loader workers.
        rank: This process.
        world_size: Number of processes.
        state: As saved with a checkpoint; None starts from the beginning.
    """
    chunks = examples.chunks("train")

    def read(rows: np.ndarray, epoch: int) -> MicroBatch:
        return collate(examples.read(chunks[rows]))

    return TableStream(
        order_of(config, examples, world_size),
        read,
        rank=rank,
        world_size=world_size,
        accumulation=config.gradient_accumulation_steps,
        num_workers=config.data_config.num_workers,
        fingerprint={**examples.key, "seed": config.seed},
        state=state,
    )
