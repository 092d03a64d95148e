"""The choice of the engine: plain torch (also data parallel), FSDP2, or DeepSpeed."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.training.engine import Engine
from bsmeta.training.engine_deepspeed import DeepSpeedEngine
from bsmeta.training.engine_plain import PlainEngine


def make_engine(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    unsaved_weights: frozenset[str] = frozenset(),
) -> Engine:
    """Creates the engine of this launch, which wraps or shards model and optimizer.

    Args:
        unsaved_weights: Names of weights that checkpoints leave out.
    """
    if accelerator.state.deepspeed_plugin is not None:
        return DeepSpeedEngine(accelerator, model, optimizer, unsaved_weights)
    if accelerator.is_fsdp2:
        from bsmeta.training.fsdp import FSDPEngine

        return FSDPEngine(accelerator, model, optimizer, unsaved_weights)
    return PlainEngine(accelerator, model, optimizer, unsaved_weights)
