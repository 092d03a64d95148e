"""The engine of plain torch, for one process or data parallel."""

from __future__ import annotations

import logging
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from bsmeta.core.files import format_bytes
from bsmeta.training.checkpoint import name_damaged_file
from bsmeta.training.engine import Engine, Snapshot
from bsmeta.training.engine_state import (
    MODEL_PREFIX,
    allocate_optimizer_values,
    collect_optimizer_values,
    collect_weights,
    map_first_names,
    map_trained_weights,
    restore_optimizer,
    write_state,
)
from bsmeta.training.engine_values import VALUES_FILE, EngineValues, LossScale, read_values
from bsmeta.training.processes import ALONE, Processes
from bsmeta.training.shards import read_shards

logger = logging.getLogger(__name__)


class PlainEngine(Engine):
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
        # Under FSDP2, a thread that asked the model for them would disturb training.
        self._first_names = map_first_names(self.unwrapped_model)

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

    def collect_state(self) -> dict[str, torch.Tensor]:
        """Returns weights and optimizer by their names in a checkpoint, not copied."""
        weights = collect_weights(self.unwrapped_model, self.unsaved_weights)
        return weights | collect_optimizer_values(self.optimizer, self._map_trained_weights())

    def _map_trained_weights(self) -> dict[str, nn.Parameter]:
        return map_trained_weights(self.unwrapped_model, self.optimizer)

    def _collect_values(self) -> EngineValues:
        """Returns the small values of a checkpoint."""
        scaler = self.accelerator.scaler
        if scaler is None:
            return EngineValues(has_optimizer=True)

        values = scaler.state_dict()
        scale = LossScale(values["scale"], type(scaler).__name__, values)
        return EngineValues(has_optimizer=True, loss_scale=scale)

    def save(self, folder: Path) -> None:
        if self.accelerator.is_main_process:
            write_state(self.collect_state(), self._collect_values(), folder, ALONE)

    @cached_property
    def _stager(self) -> Any:
        """Torch's stager, which copies the state into the same memory each time.

        The first write to new memory takes several times as long as a copy, because the system has
        to find and clear each page. For copies from a GPU the memory is page-locked (pinned);
        otherwise the driver would copy each part twice.
        """
        from torch.distributed.checkpoint import staging  # slow; only needed if it copies

        pinned = self.accelerator.device.type == "cuda"
        size = format_bytes(count_storage_bytes(self.collect_state()))
        logger.info(
            "async_save: the copy of a checkpoint takes %s of main memory%s, for the whole run",
            size,
            " (page-locked)" if pinned else "",
        )

        return staging.DefaultStager(
            staging.StagingOptions(
                use_pinned_memory=pinned,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=pinned,
            )
        )

    def copy_state(self) -> dict[str, torch.Tensor]:
        """Copies the state to main memory, over the last copy."""
        copied: dict[str, torch.Tensor] = self._stager.stage(self.collect_state())
        return copied

    def take_snapshot(self, *, with_weights: bool) -> Snapshot | None:
        if not self.accelerator.is_main_process:
            return None
        copy = self.copy_state()

        def read_weights(_: Path) -> dict[str, torch.Tensor]:
            # Training never changes the weights that the copy lacks.
            live_weights = self.gather_weights()
            return {
                name: copy.get(MODEL_PREFIX + first_name, live_weights[name])
                for name, first_name in self._first_names.items()
            }

        values = self._collect_values()
        write = partial(write_state, copy, values, processes=ALONE)
        return Snapshot(ALONE, write, read_weights)

    def load(self, folder: Path) -> None:
        self._load(folder, ALONE)  # each rank reads everything

    def _load(self, folder: Path, readers: Processes) -> None:
        """Restores weights, optimizer and loss scaler.

        Args:
            readers: The processes that read the tensors together.
        """
        values = read_values(folder, has_optimizer=True)
        weights = collect_weights(self.unwrapped_model, self.unsaved_weights)
        parameters = self._map_trained_weights()
        optimizer_values = allocate_optimizer_values(folder, set(weights), parameters)

        read_shards(weights | optimizer_values, folder, readers)
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


def count_storage_bytes(state: Any) -> int:
    """Returns the bytes of this rank's tensors in a nested state; shared memory counts once."""
    from torch.distributed.tensor import DTensor  # slow; only needed if a copy is made

    bytes_by_address: dict[int, int] = {}
    for leaf in tree_leaves(state):
        if isinstance(leaf, torch.Tensor):
            local_tensor = leaf.to_local() if isinstance(leaf, DTensor) else leaf
            storage = local_tensor.untyped_storage()
            bytes_by_address[storage.data_ptr()] = storage.nbytes()
    return sum(bytes_by_address.values())
