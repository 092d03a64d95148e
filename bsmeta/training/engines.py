"""The engines that the loop runs on: plain torch (alone or data parallel), and DeepSpeed.

What differs between them is here: who clips and steps, and how weights and optimizer are saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bsmeta.config.errors import CheckpointError, TrainingError
from bsmeta.training.optim import own_settings

_PLAIN_FILE = "torch.pt"
_TAG = "pytorch_model"


class Engine(Protocol):
    """What the loop needs of an engine. All ranks call each method together."""

    name: str
    """Says which engine a checkpoint belongs to."""

    scaled: bool
    """Whether the loss is scaled (fp16): such an engine skips gradients that are not finite."""

    def clip(self, limit: float) -> torch.Tensor | float | None:
        """The gradient's norm, after backward; a larger one is scaled down to `limit`.

        A tensor is a scalar on the device, which nobody has waited for.
        """

    def step(self, finite: torch.Tensor) -> bool:
        """Updates the weights if loss and gradient are finite; forgets the gradient.

        Args:
            finite: A boolean scalar on the device, which is not waited for.

        Returns:
            Whether the weights were changed whatever `finite` says.
        """

    def weights(self) -> dict[str, torch.Tensor]:
        """The full state dict of the model on rank 0."""

    def save(self, folder: Path) -> None:
        """Writes weights and optimizer into a new folder."""

    def load(self, folder: Path) -> None:
        """Reads what `save` has written."""


def make_engine(accelerator: Accelerator, model: nn.Module, optimizer: Any) -> Engine:
    """The engine of a prepared model and optimizer."""
    if accelerator.state.deepspeed_plugin is None:
        return PlainEngine(accelerator, model, optimizer)
    return DeepSpeedEngine(accelerator, model)


def engine_name(accelerator: Accelerator) -> str:
    """The name of the engine that this launch makes."""
    plugin = accelerator.state.deepspeed_plugin
    return PlainEngine.name if plugin is None else f"deepspeed ZeRO-{plugin.zero_stage}"


class PlainEngine:
    """Torch's own optimizer; data parallel where there are several processes."""

    name = "torch"

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> None:
        self._accelerator = accelerator
        self._model = model
        self._optimizer = optimizer
        self.scaled = accelerator.scaler is not None
        if isinstance(model, DistributedDataParallel):
            fix_buckets(model)

    def clip(self, limit: float) -> torch.Tensor:
        return self._accelerator.clip_grad_norm_(self._model.parameters(), limit)

    def step(self, finite: torch.Tensor) -> bool:
        # A scaler must be told of every step, and skips those that are not finite by itself.
        if not self.scaled:
            # The fused AdamW leaves the weights and its state alone where this is 1 (see
            # torch.amp.GradScaler): the device decides, and the host need not wait to know.
            self._optimizer.optimizer.found_inf = (~finite).float()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return False

    def weights(self) -> dict[str, torch.Tensor]:
        return self._accelerator.unwrap_model(self._model).state_dict()

    def state(self) -> dict[str, Any]:
        """Weights, optimizer and loss scaler, not copied."""
        scaler = self._accelerator.scaler
        return {
            "model": self.weights(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def save(self, folder: Path) -> None:
        if self._accelerator.is_main_process:
            write_state(self.state(), folder)

    def load(self, folder: Path) -> None:
        state = torch.load(folder / _PLAIN_FILE, map_location="cpu", weights_only=True)
        self._accelerator.unwrap_model(self._model).load_state_dict(state["model"])
        with own_settings(self._optimizer):
            self._optimizer.load_state_dict(state["optimizer"])
        if self._accelerator.scaler is not None and state["scaler"] is not None:
            self._accelerator.scaler.load_state_dict(state["scaler"])


def fix_buckets(model: DistributedDataParallel) -> None:
    """Has DDP arrange its all-reduce buckets now, in the reverse order of the parameters.

    By itself it does so after the first backward pass of the *process*. The first step after a
    resume would then run with other buckets than the same step of an undisturbed run; its gradients
    would be added up in another order, and differ by rounding as soon as there are three ranks. The
    backward pass here is that of a loss that is 0 whatever the parameters, and its gradients become
    ready in the order in which those of a network usually do: those of the last layer first.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    zero = torch.stack([parameter.sum() for parameter in parameters]).sum() * 0.0
    model.reducer.prepare_for_backward([])
    zero.backward()
    model.reducer._rebuild_buckets()
    for parameter in parameters:
        parameter.grad = None


def write_state(state: dict[str, Any], folder: Path) -> None:
    """Writes what `PlainEngine.state` gave, or a copy of it."""
    folder.mkdir()
    torch.save(state, folder / _PLAIN_FILE)


def to_memory(value: Any, copied: dict[Any, torch.Tensor] | None = None) -> Any:
    """A copy of nested dicts, lists and tensors in main memory; shared tensors stay shared."""
    copied = {} if copied is None else copied
    if isinstance(value, torch.Tensor):
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() == 0 or key not in copied:
            copied[key] = value.detach().to("cpu", copy=True)
        return copied[key]
    if isinstance(value, dict):
        return {name: to_memory(part, copied) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_memory(part, copied) for part in value)
    return value


class DeepSpeedEngine:
    """DeepSpeed, which clips, steps and skips steps within the backward pass."""

    def __init__(self, accelerator: Accelerator, model: Any) -> None:
        self._accelerator = accelerator
        self._model = model  # DeepSpeed's own engine
        self.scaled = accelerator.mixed_precision == "fp16"
        self.name = engine_name(accelerator)

    def clip(self, limit: float) -> torch.Tensor | float | None:
        norm: torch.Tensor | float | None = self._model.get_global_grad_norm()
        return norm

    def step(self, finite: torch.Tensor) -> bool:
        return bool(self._model.was_step_applied())

    def weights(self) -> dict[str, torch.Tensor]:
        return self._accelerator.get_state_dict(self._model)

    def save(self, folder: Path) -> None:
        if self._model.zero_optimization_stage() == 0:
            self._refuse_damaged_weights()
        self._model.save_checkpoint(str(folder), _TAG)

    def _refuse_damaged_weights(self) -> None:
        """Without ZeRO, DeepSpeed neither tells a norm nor skips a step that is not finite."""
        for name, parameter in self._model.module.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise TrainingError(
                    f"{name} is not finite: a gradient was not; no checkpoint of it was written. "
                    "Resume with a lower learning_rate, or under ZeRO 1-3, which skips such steps"
                )

    def load(self, folder: Path) -> None:
        optimizer = self._model.optimizer
        limit = getattr(optimizer, "clip_grad", None)  # ZeRO 1 and 2 load this, too
        with own_settings(optimizer):
            if self._model.load_universal_checkpoint():
                self._load_universal(folder)
                # What this run saves itself, it reads as it saved it.
                self._model._config.load_universal_checkpoint = False
            else:
                path, _ = self._model.load_checkpoint(str(folder), _TAG)
                if path is None:
                    raise CheckpointError(f"{folder}: DeepSpeed found no checkpoint there")
        if limit is not None:
            optimizer.clip_grad = limit

    def _load_universal(self, folder: Path) -> None:
        """Reads a checkpoint of another number of processes, and repairs the optimizer.

        For ZeRO-3, DeepSpeed 0.19.8 gives all parameter groups the settings of the first one
        (biases would be decayed; see `own_settings`) and one shared step counter (which then runs
        too fast).
        """
        optimizer = self._model.optimizer.optimizer
        try:
            self._model.load_checkpoint(str(folder), "universal")
        except (IndexError, KeyError) as error:
            raise CheckpointError(
                f"{folder}: DeepSpeed cannot cut the checkpoint for "
                f"{self._accelerator.num_processes} processes ({error!r}): each must get a part of "
                "every parameter group; resume with fewer processes"
            ) from error
        for state in optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()
