"""The choice of the engine: plain torch (also data parallel), FSDP2, DeepSpeed, or no training."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.training.engines.engine import PLAIN, Engine, name_engine
from bsmeta.training.engines.fixed import FixedEngine


def needs_optimizer(accelerator: Accelerator, steps_per_epoch: int | None) -> bool:
    """Returns whether the engine of this launch needs an optimizer.

    DeepSpeed and FSDP2 always do; plain torch does not if the run takes no steps.

    Args:
        steps_per_epoch: See `Task.steps_per_epoch`.
    """
    return steps_per_epoch != 0 or name_engine(accelerator) != PLAIN


def make_engine(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    unsaved_weights: frozenset[str] = frozenset(),
) -> Engine:
    """Creates the engine of this launch, which wraps or shards model and optimizer.

    Args:
        optimizer: None if the engine needs none.
        unsaved_weights: Names of weights that checkpoints leave out.
    """
    if optimizer is None:
        return FixedEngine(accelerator, model)

    # Imported here because torch's distributed checkpoint is slow to import.
    if accelerator.state.deepspeed_plugin is not None:
        from bsmeta.training.engines.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(accelerator, model, optimizer, unsaved_weights)
    if accelerator.is_fsdp2:
        from bsmeta.training.engines.fsdp import FSDPEngine

        return FSDPEngine(accelerator, model, optimizer, unsaved_weights)
    from bsmeta.training.engines.plain import PlainEngine

    return PlainEngine(accelerator, model, optimizer, unsaved_weights)
