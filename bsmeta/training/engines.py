"""The engines that step the optimizer: plain torch (also data parallel), FSDP2, and DeepSpeed.

They differ in how they clip and step, and in how they save weights and optimizer. That of FSDP2 is
in `training.fsdp`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from bsmeta.core.errors import CheckpointError, TrainingError
from bsmeta.core.files import format_bytes
from bsmeta.core.progress import opaque_work
from bsmeta.training.checkpoint import naming_file
from bsmeta.training.engines_states import only_values
from bsmeta.training.optimization import own_settings
from bsmeta.training.processes import ALONE, Processes

PLAIN, FSDP = "torch", "FSDP2"
"""Names of the engines other than DeepSpeed's."""
TAG = "pytorch_model"  # of DeepSpeed's checkpoints
_PLAIN_FILE = "torch.pt"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """The state of an engine to be written, or a copy of it in main memory.

    Attributes:
        processes: Those that write it together; for a copy, each in a thread.
        write: Writes weights and optimizer into a new folder.
        weights: Returns the full state dict of the model on rank 0, given the folder that `write`
            has written.
    """

    processes: Processes
    write: Callable[[Path], None]
    weights: Callable[[Path], dict[str, torch.Tensor]]


class Engine(ABC):
    """The interface of an engine to the loop. All ranks call each method together.

    Attributes:
        name: Identifies the engine that a checkpoint belongs to.
        scaled: Whether the loss is scaled (fp16): such an engine skips gradients that are not
            finite.
        plain: The model without what the engine wraps it in.
    """

    scaled: bool

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> None:
        self.accelerator = accelerator
        self.name = engine_name(accelerator)
        self.model: Any
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        # Its first call imports DeepSpeed, which a save, perhaps in a hurry, need not wait for.
        self.plain = accelerator.unwrap_model(self.model)

    @abstractmethod
    def clip(self, limit: float) -> torch.Tensor | float | None:
        """Clips the gradient to the norm `limit` and returns its norm; called after backward.

        A returned tensor is a scalar on the device, which has not been synchronized.
        """

    @abstractmethod
    def step(self, finite: torch.Tensor) -> bool:
        """Updates the weights if loss and gradient are `finite`; zeroes the gradient.

        The host does not wait for `finite`, a boolean scalar on the device. Returns whether the
        weights were changed regardless of it.
        """

    @abstractmethod
    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the full state dict of the model on rank 0."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes weights and optimizer into a new folder."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""

    def snapshot(self) -> Snapshot | None:
        """Copies the state to main memory; None: this rank writes nothing.

        The copy is valid until the next call. DeepSpeed has none: its ranks write their partitions
        together, and the checks refuse `async_save`.
        """
        raise NotImplementedError


def make_engine(
    accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Engine:
    """Creates the engine of this launch, which wraps or shards model and optimizer."""
    if accelerator.state.deepspeed_plugin is not None:
        return DeepSpeedEngine(accelerator, model, optimizer)
    if accelerator.is_fsdp2:
        from bsmeta.training.fsdp import FSDPEngine

        return FSDPEngine(accelerator, model, optimizer)
    return PlainEngine(accelerator, model, optimizer)


def engine_name(accelerator: Accelerator) -> str:
    """The name of the engine that this launch uses."""
    plugin = accelerator.state.deepspeed_plugin
    if plugin is not None:
        return f"deepspeed ZeRO-{plugin.zero_stage}"
    return FSDP if accelerator.is_fsdp2 else PLAIN


class PlainEngine(Engine):
    """Torch's own optimizer; data parallel if there are several processes."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> None:
        super().__init__(accelerator, model, optimizer)
        self.scaled = accelerator.scaler is not None
        self._keeps_gradients = False
        if isinstance(self.model, DistributedDataParallel):
            # They are the same on all ranks, and steps change none: no model here has layers with
            # running statistics.
            self.model.broadcast_buffers = False
            _fix_buckets(self.model)
            # Otherwise the micro-batches before the last one of a step would accumulate their
            # gradients outside of the buckets, in as much memory again.
            self._keeps_gradients = accelerator.gradient_accumulation_steps > 1
        self._clear_gradients()

    def clip(self, limit: float) -> torch.Tensor:
        return self.accelerator.clip_grad_norm_(self.model.parameters(), limit)

    def step(self, finite: torch.Tensor) -> bool:
        # A scaler must see every step, and itself skips those that are not finite.
        if self.scaled or self._may_step(finite):
            self.optimizer.step()
        self._clear_gradients()
        return False

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=not self._keeps_gradients)

    def _may_step(self, finite: torch.Tensor) -> bool:
        """Whether to call the optimizer; it then changes nothing if the step is not finite."""
        optimizer = self.optimizer.optimizer
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            return bool(finite)  # waits for the device
        # A fused kernel leaves the weights and its state unchanged if this is 1 (see
        # torch.amp.GradScaler): the device decides, and the host need not wait.
        optimizer.found_inf = (~finite).float()
        return True

    def weights(self) -> dict[str, torch.Tensor]:
        return self.plain.state_dict()

    def state(self) -> dict[str, Any]:
        """The state of weights, optimizer and loss scaler, not copied."""
        scaler = self.accelerator.scaler
        return {
            "model": self.weights(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def save(self, folder: Path) -> None:
        if self.accelerator.is_main_process:
            write_state(self.state(), folder)

    @cached_property
    def _stager(self) -> Any:
        """Keeps the memory of a copy for the next.

        To write to memory for the first time takes several times as long as to copy, because the
        system has to find and clear each page. For copies from a GPU it is page-locked (pinned),
        without which the driver would copy each part twice.
        """
        from torch.distributed.checkpoint import staging  # slow; only needed if it copies

        pinned = self.accelerator.device.type == "cuda"
        size = format_bytes(storage_bytes(self.state()))
        logger.info(
            "async_save: the copy of a checkpoint takes %s of main memory%s, for the whole run",
            size, " (page-locked)" if pinned else "",
        )  # fmt: skip
        return staging.DefaultStager(
            staging.StagingOptions(
                use_pinned_memory=pinned,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=pinned,
            )
        )

    def copy(self) -> dict[str, Any]:
        """The state in main memory, which each call overwrites; shared tensors stay shared."""
        copied: dict[str, Any] = self._stager.stage(self.state())
        return copied

    def snapshot(self) -> Snapshot | None:
        if not self.accelerator.is_main_process:
            return None
        copy = self.copy()
        return Snapshot(ALONE, partial(write_state, copy), lambda _: copy["model"])

    def load(self, folder: Path) -> None:
        with naming_file(folder / _PLAIN_FILE):
            with opaque_work():
                state = torch.load(folder / _PLAIN_FILE, map_location="cpu", weights_only=True)
            self.plain.load_state_dict(state["model"])
            with own_settings(self.optimizer):
                self.optimizer.load_state_dict(state["optimizer"])
            if self.accelerator.scaler is not None and state["scaler"] is not None:
                self.accelerator.scaler.load_state_dict(state["scaler"])


def _fix_buckets(model: DistributedDataParallel) -> None:
    """Makes DDP arrange its all-reduce buckets now, in the reverse order of the parameters.

    By default, DDP does so after the first backward pass of the *process*. The first step after a
    resume would then use different buckets from the same step of an uninterrupted run; its
    gradients would be summed in another order, and differ by rounding with three or more ranks. The
    backward pass here is that of a loss that is always 0, and its gradients become ready in the
    order in which those of a network usually do: those of the last layer first.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    zero = torch.stack([parameter.sum() for parameter in parameters]).sum() * 0.0
    model.reducer.prepare_for_backward([])
    zero.backward()
    model.reducer._rebuild_buckets()


def storage_bytes(state: Any) -> int:
    """Bytes of the tensors in a nested state on this rank; shared memory counts once."""
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    local = [leaf.to_local() if isinstance(leaf, DTensor) else leaf for leaf in tensors]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in local}
    return sum(storage.nbytes() for storage in storages.values())


def write_state(state: dict[str, Any], folder: Path) -> None:
    """Writes the result of `PlainEngine.state`, or a copy of it."""
    folder.mkdir()
    with opaque_work():
        torch.save(state, folder / _PLAIN_FILE)


class DeepSpeedEngine(Engine):
    """DeepSpeed, which clips, steps and skips steps within the backward pass.

    The model is DeepSpeed's own engine.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> None:
        super().__init__(accelerator, model, optimizer)
        self.scaled = accelerator.mixed_precision == "fp16"
        # Each file that this rank writes or reads is progress; not the barriers around them.
        files = self.model.checkpoint_engine
        files.save, files.load = (opaque_work()(call) for call in (files.save, files.load))

    def clip(self, limit: float) -> torch.Tensor | float | None:
        norm: torch.Tensor | float | None = self.model.get_global_grad_norm()
        return norm

    def step(self, finite: torch.Tensor) -> bool:
        return bool(self.model.was_step_applied())

    def weights(self) -> dict[str, torch.Tensor]:
        return self.accelerator.get_state_dict(self.model)

    def save(self, folder: Path) -> None:
        if self.model.zero_optimization_stage() == 0:
            self._refuse_damaged_weights()
        self.model.save_checkpoint(str(folder), TAG)

    def _refuse_damaged_weights(self) -> None:
        """Raises an error if a weight is not finite.

        Without ZeRO, DeepSpeed neither reports a norm nor skips a step that is not finite.
        """
        for name, parameter in self.model.module.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise TrainingError(
                    f"{name} is not finite: a gradient was not; no checkpoint of it was written. "
                    "Resume with a lower learning_rate, or under ZeRO 1-3, which skips such steps"
                )

    def load(self, folder: Path) -> None:
        optimizer = self.model.optimizer
        limit = getattr(optimizer, "clip_grad", None)  # ZeRO 1 and 2 load this as well
        with own_settings(optimizer), naming_file(folder), only_values():
            if self.model.load_universal_checkpoint():
                self._load_universal(folder)
                # This run's own checkpoints are loaded in the format in which it saves them.
                self.model._config.load_universal_checkpoint = False
            else:
                path, _ = self.model.load_checkpoint(str(folder), TAG)
                if path is None:
                    raise CheckpointError(f"{folder}: DeepSpeed found no checkpoint there")
        if limit is not None:
            optimizer.clip_grad = limit

    def _load_universal(self, folder: Path) -> None:
        """Loads a checkpoint saved by another number of processes, and repairs the optimizer.

        For ZeRO-3, DeepSpeed 0.19.8 gives all parameter groups the settings of the first group
        (biases would be decayed; see `own_settings`) and one shared step counter (which is then
        incremented too often).
        """
        optimizer = self.model.optimizer.optimizer
        try:
            with opaque_work():  # reads a file for each parameter
                self.model.load_checkpoint(str(folder), "universal")
        except (IndexError, KeyError) as error:
            raise CheckpointError(
                f"{folder}: DeepSpeed cannot cut the checkpoint for "
                f"{self.accelerator.num_processes} processes ({error!r}): each must get a part of "
                "every parameter group; resume with fewer processes"
            ) from error
        for state in optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()
