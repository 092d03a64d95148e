"""The engine of plain torch, for one process or data parallel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bsmeta.training.checkpoints.checkpoint import name_damaged_file
from bsmeta.training.checkpoints.fragments import Fragment
from bsmeta.training.checkpoints.shards import read_shards
from bsmeta.training.engines.state import (
    allocate_optimizer_values,
    collect_optimizer_values,
    collect_weights,
    map_trained_weights,
    restore_optimizer,
)
from bsmeta.training.engines.training_engine import TrainingEngine
from bsmeta.training.engines.values import VALUES_FILE, EngineValues, LossScale, read_values


class PlainEngine(TrainingEngine):
    """Torch's own optimizer; data parallel if there are several processes."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        unsaved_weights: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(accelerator, model, optimizer, unsaved_weights)
        self.scales_loss = accelerator.scaler is not None
        self._keeps_gradients = False

        if isinstance(self.model, DistributedDataParallel):
            # Buffers are equal on all ranks and never change: no model here has running statistics.
            self.model.broadcast_buffers = False
            _fix_ddp_buckets(self.model)
            # Otherwise the micro-batches before the last one of a step would accumulate their
            # gradients outside of the buckets, in as much memory again.
            self._keeps_gradients = accelerator.gradient_accumulation_steps > 1

        self._clear_gradients()

    def clip(self, limit: float) -> torch.Tensor:
        return self.accelerator.clip_grad_norm_(self.model.parameters(), limit)

    def step(self, is_finite: torch.Tensor) -> bool:
        # A scaler must see every step; it skips non-finite ones itself.
        if self.scales_loss or self._decide_to_step(is_finite):
            self.optimizer.step()
        self._clear_gradients()
        return False

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=not self._keeps_gradients)

    def _decide_to_step(self, is_finite: torch.Tensor) -> bool:
        """Returns whether to call the optimizer; a fused one skips a non-finite step itself."""
        optimizer = self.optimizer.optimizer
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            return bool(is_finite)  # waits for the device

        # A fused kernel leaves the weights and its state unchanged if this is 1 (see
        # torch.amp.GradScaler): the device decides, and the host need not wait.
        optimizer.found_inf = (~is_finite).float()
        return True

    def gather_weights(self) -> dict[str, torch.Tensor]:
        return self.unwrapped_model.state_dict()

    def collect_state(self) -> dict[str, torch.Tensor | Fragment]:
        weights = collect_weights(self.unwrapped_model, self.unsaved_weights)
        values = collect_optimizer_values(self.optimizer, self._map_trained_weights())
        return {**weights, **values}

    def _map_trained_weights(self) -> dict[str, nn.Parameter]:
        return map_trained_weights(self.unwrapped_model, self.optimizer)

    def _collect_values(self) -> EngineValues:
        scaler = self.accelerator.scaler
        if scaler is None:
            return EngineValues(has_optimizer=True)

        values = scaler.state_dict()
        scale = LossScale(values["scale"], type(scaler).__name__, values)
        return EngineValues(has_optimizer=True, loss_scale=scale)

    def load(self, folder: Path) -> None:
        values = read_values(folder, has_optimizer=True)
        weights = collect_weights(self.unwrapped_model, self.unsaved_weights)
        parameters = self._map_trained_weights()
        optimizer_values = allocate_optimizer_values(folder, set(weights), parameters)

        read_shards(weights | optimizer_values, folder, self._processes)
        restore_optimizer(self.optimizer, parameters, optimizer_values)
        with name_damaged_file(folder / VALUES_FILE):
            self._restore_scaler(values.loss_scale)

    def _restore_scaler(self, saved: LossScale | None) -> None:
        """Restores the loss scaler; from a scaler of another class, it takes the scale."""
        scaler = self.accelerator.scaler
        if scaler is None or saved is None:
            return
        if saved.scaler == type(scaler).__name__:
            scaler.load_state_dict(saved.values)
        else:
            scaler.load_state_dict({**scaler.state_dict(), "scale": saved.scale})


def _fix_ddp_buckets(model: DistributedDataParallel) -> None:
    """Makes DDP arrange its all-reduce buckets now, in the reverse order of the parameters.

    By default, DDP does so after the first backward pass of the *process*. The first step after a
    resume would then use different buckets from the same step of an uninterrupted run; its
    gradients would be summed in another order, and differ by rounding with three or more ranks. The
    backward pass here is on a loss that is always 0. Its gradients become ready in the usual order
    of a network, the last layer first.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    zero_loss = torch.stack([parameter.sum() for parameter in parameters]).sum() * 0.0
    model.reducer.prepare_for_backward([])
    zero_loss.backward()
    model.reducer._rebuild_buckets()
