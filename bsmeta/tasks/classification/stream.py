"""The steps of a rank: chunks of the training split, each exactly once per epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bsmeta.config.batch import BatchPlan
from bsmeta.config.classification import ClassificationConfig
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.order import FixedSize
from bsmeta.data.table.stream import TableStream
from bsmeta.tasks.classification.examples import Chunk, Examples


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
