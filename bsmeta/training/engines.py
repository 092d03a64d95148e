"""The engines that step the optimizer: plain torch (also data parallel), FSDP2, and DeepSpeed.

They differ in how they clip and step, and in how they save weights and optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import convert_outputs_to_fp32
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from bsmeta.core.errors import CheckpointError, TrainingError
from bsmeta.core.progress import opaque_work, report_progress
from bsmeta.training.distributed import ALONE, Processes
from bsmeta.training.optimizers import own_settings
from bsmeta.training.sharded_state import described, read_shards, read_whole, write_shards

_PLAIN_FILE = "torch.pt"
TAG = "pytorch_model"


class Engine(Protocol):
    """The interface of an engine to the loop. All ranks call each method together."""

    name: str
    """Identifies the engine that a checkpoint belongs to."""

    scaled: bool
    """Whether the loss is scaled (fp16): such an engine skips gradients that are not finite."""

    def clip(self, limit: float) -> torch.Tensor | float | None:
        """Clips the gradient to the norm `limit` and returns its norm; called after backward.

        A returned tensor is a scalar on the device, which has not been synchronized.
        """

    def step(self, finite: torch.Tensor) -> bool:
        """Updates the weights if loss and gradient are finite; zeroes the gradient.

        Args:
            finite: A boolean scalar on the device; the host does not wait for it.

        Returns:
            Whether the weights were changed regardless of `finite`.
        """

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the full state dict of the model on rank 0."""

    def save(self, folder: Path) -> None:
        """Writes weights and optimizer into a new folder."""

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of an engine's state in main memory, to be written while training continues.

    Attributes:
        processes: Those that write it together, each in a thread.
        write: Writes weights and optimizer into a new folder, as `Engine.save` does.
        weights: Returns the full state dict of the model, given the folder that `write` has
            written; called by rank 0 of the processes.
    """

    processes: Processes
    write: Callable[[Path], None]
    weights: Callable[[Path], dict[str, torch.Tensor]]


def prepare(
    accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, Any]:
    """Passes model and optimizer to Accelerate, which wraps or shards them."""
    prepared, wrapped = accelerator.prepare(model, optimizer)
    if accelerator.is_fsdp2 and accelerator.native_amp:
        # As Accelerate does for plain torch: evaluations compute in the precision of training.
        prepared.forward = convert_outputs_to_fp32(accelerator.autocast()(prepared.forward))
    return prepared, wrapped


def make_engine(accelerator: Accelerator, model: nn.Module, optimizer: Any) -> Engine:
    """Creates the engine of a prepared model and optimizer."""
    if accelerator.state.deepspeed_plugin is not None:
        return DeepSpeedEngine(accelerator, model)
    kind = FSDPEngine if accelerator.is_fsdp2 else PlainEngine
    return kind(accelerator, model, optimizer)


def engine_name(accelerator: Accelerator) -> str:
    """The name of the engine that this launch uses."""
    plugin = accelerator.state.deepspeed_plugin
    if plugin is not None:
        return f"deepspeed ZeRO-{plugin.zero_stage}"
    return FSDPEngine.name if accelerator.is_fsdp2 else PlainEngine.name


class PlainEngine:
    """Torch's own optimizer; data parallel if there are several processes."""

    name = "torch"

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> None:
        self._accelerator = accelerator
        self._model = model
        self._optimizer = optimizer
        self.scaled = accelerator.scaler is not None
        self._copies = HostCopies()
        if isinstance(model, DistributedDataParallel):
            fix_buckets(model)

    def clip(self, limit: float) -> torch.Tensor:
        return self._accelerator.clip_grad_norm_(self._model.parameters(), limit)

    def step(self, finite: torch.Tensor) -> bool:
        # A scaler must see every step, and itself skips those that are not finite.
        if self.scaled or self._may_step(finite):
            self._optimizer.step()
        self._optimizer.zero_grad()
        return False

    def _may_step(self, finite: torch.Tensor) -> bool:
        """Whether to call the optimizer; it then changes nothing if the step is not finite."""
        optimizer = self._optimizer.optimizer
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            return bool(finite)  # waits for the device
        # A fused kernel leaves the weights and its state unchanged if this is 1 (see
        # torch.amp.GradScaler): the device decides, and the host need not wait.
        optimizer.found_inf = (~finite).float()
        return True

    def weights(self) -> dict[str, torch.Tensor]:
        return self._accelerator.unwrap_model(self._model).state_dict()

    def state(self) -> dict[str, Any]:
        """The state of weights, optimizer and loss scaler, not copied."""
        scaler = self._accelerator.scaler
        return {
            "model": self.weights(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def save(self, folder: Path) -> None:
        if self._accelerator.is_main_process:
            write_state(self.state(), folder)

    def snapshot(self) -> Snapshot | None:
        """Copies the state to main memory; all ranks call it. None: this rank writes nothing.

        The copy is valid until the next call.
        """
        if not self._accelerator.is_main_process:
            return None
        copy = self._copies.nested(self.state())
        return Snapshot(ALONE, partial(write_state, copy), lambda _: copy["model"])

    def load(self, folder: Path) -> None:
        with opaque_work():
            state = torch.load(folder / _PLAIN_FILE, map_location="cpu", weights_only=True)
        self._accelerator.unwrap_model(self._model).load_state_dict(state["model"])
        with own_settings(self._optimizer):
            self._optimizer.load_state_dict(state["optimizer"])
        if self._accelerator.scaler is not None and state["scaler"] is not None:
            self._accelerator.scaler.load_state_dict(state["scaler"])


class FSDPEngine(PlainEngine):
    """Torch's own optimizer on parameters that `fully_shard` has sharded over the ranks."""

    name = "FSDP2"

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> None:
        super().__init__(accelerator, model, optimizer)
        self._aside = Processes.of(accelerator).aside()
        first: dict[int, str] = {}
        # A tensor that the model has under several names is saved under the first.
        self._saved_as = {
            name: first.setdefault(id(tensor), name)
            for name, tensor in model.state_dict(keep_vars=True).items()
        }

    def clip(self, limit: float) -> torch.Tensor:
        norm = super().clip(limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def weights(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, tensor in self._model_state().items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self._accelerator.is_main_process:
                found[name] = whole.to("cpu")
            report_progress()
        return self._by_all_names(found)

    def _by_all_names(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: found[first] for name, first in self._saved_as.items() if first in found}

    def _model_state(self) -> dict[str, torch.Tensor]:
        own = self._model.state_dict()
        return {name: own[name] for name in dict.fromkeys(self._saved_as.values())}

    def state(self) -> dict[str, torch.Tensor]:
        """The shards of weights and optimizer, not copied."""
        state = {_MODEL + name: tensor for name, tensor in self._model_state().items()}
        for name, parameter in self._parameters().items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                state[f"{_OPTIMIZER}{key}/{name}"] = value
        return state

    def _parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of the optimizer, in its order."""
        tensors = self._model.state_dict(keep_vars=True)
        names = {id(tensors[name]): name for name in self._saved_as.values()}
        groups = self._optimizer.param_groups
        return {names[id(own)]: own for group in groups for own in group["params"]}

    def save(self, folder: Path) -> None:
        write_shards(self.state(), folder, self._aside)

    def snapshot(self) -> Snapshot:
        copy = {key: self._copy(key, tensor) for key, tensor in self.state().items()}
        write = partial(write_shards, copy, processes=self._aside)
        return Snapshot(
            self._aside, write, lambda folder: self._by_all_names(read_whole(folder, _MODEL))
        )

    def _copy(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """Copies a tensor, or this rank's shard of one, to main memory."""
        if not isinstance(tensor, DTensor):
            return self._copies.tensor(key, tensor)
        own = self._copies.tensor(key, tensor.to_local())
        # `DTensor.from_local` would move the copy back to the device of the mesh.
        return DTensor(own, tensor._spec, requires_grad=False)

    def load(self, folder: Path) -> None:
        state = {_MODEL + name: tensor for name, tensor in self._model_state().items()}
        parameters = self._parameters()
        own: list[dict[str, torch.Tensor]] = [{} for _ in parameters]
        place = {name: number for number, name in enumerate(parameters)}
        for entry, (size, dtype) in described(folder).items():
            if entry in state:
                continue
            key, _, name = entry.removeprefix(_OPTIMIZER).partition("/")
            if name not in place:
                raise CheckpointError(f"{folder}: has {entry}, but the model has no such weight")
            parameter = parameters[name].detach()
            # Other sizes are those of step counters, which all ranks have.
            is_sharded = size == parameter.shape
            value = torch.zeros_like(parameter) if is_sharded else torch.zeros(size)
            state[entry] = own[place[name]][key] = value.to(dtype)
        read_shards(state, folder, self._aside)
        settings = self._optimizer.state_dict()["param_groups"]
        kept = {number: values for number, values in enumerate(own) if values}
        self._optimizer.load_state_dict({"state": kept, "param_groups": settings})


_MODEL, _OPTIMIZER = "model/", "optimizer/"


def fix_buckets(model: DistributedDataParallel) -> None:
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
    for parameter in parameters:
        parameter.grad = None


def write_state(state: dict[str, Any], folder: Path) -> None:
    """Writes the result of `PlainEngine.state`, or a copy of it."""
    folder.mkdir()
    with opaque_work():
        torch.save(state, folder / _PLAIN_FILE)


class HostCopies:
    """Copies of tensors in main memory, which each call overwrites: it is kept for the next.

    To write to memory for the first time takes several times as long as to copy: the system has to
    find and clear each page.
    """

    def __init__(self) -> None:
        self._memory: dict[Hashable, torch.Tensor] = {}

    def tensor(self, name: Hashable, value: torch.Tensor) -> torch.Tensor:
        """Copies a tensor; `name` is that of its memory."""
        memory = self._memory.get(name)
        if memory is None or (memory.shape, memory.dtype) != (value.shape, value.dtype):
            memory = self._memory[name] = torch.empty_like(value, device="cpu", requires_grad=False)
        return memory.copy_(value.detach())

    def nested(
        self,
        value: Any,
        path: tuple[Hashable, ...] = (),
        copied: dict[Any, torch.Tensor] | None = None,
    ) -> Any:
        """Copies the tensors in nested dicts and lists; shared tensors stay shared."""
        copied = {} if copied is None else copied
        if isinstance(value, torch.Tensor):
            key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            if value.numel() == 0 or key not in copied:
                copied[key] = self.tensor(path, value)
            return copied[key]
        if isinstance(value, dict):
            parts = value.items()
            return {part: self.nested(own, (*path, part), copied) for part, own in parts}
        if isinstance(value, (list, tuple)):
            own_parts = enumerate(value)
            return type(value)(self.nested(own, (*path, n), copied) for n, own in own_parts)
        return value


def _reporting_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose work is progress for the watchdog."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with opaque_work():
            return function(*arguments, **named)

    return call


class DeepSpeedEngine:
    """DeepSpeed, which clips, steps and skips steps within the backward pass."""

    def __init__(self, accelerator: Accelerator, model: Any) -> None:
        self._accelerator = accelerator
        self._model = model  # DeepSpeed's own engine
        self.scaled = accelerator.mixed_precision == "fp16"
        self.name = engine_name(accelerator)
        # Each file that this rank writes or reads; not the barriers around them.
        files = model.checkpoint_engine
        files.save, files.load = map(_reporting_call, (files.save, files.load))

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
        self._model.save_checkpoint(str(folder), TAG)

    def _refuse_damaged_weights(self) -> None:
        """Raises an error if a weight is not finite.

        Without ZeRO, DeepSpeed neither reports a norm nor skips a step that is not finite.
        """
        for name, parameter in self._model.module.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise TrainingError(
                    f"{name} is not finite: a gradient was not; no checkpoint of it was written. "
                    "Resume with a lower learning_rate, or under ZeRO 1-3, which skips such steps"
                )

    def load(self, folder: Path) -> None:
        optimizer = self._model.optimizer
        limit = getattr(optimizer, "clip_grad", None)  # ZeRO 1 and 2 load this as well
        with own_settings(optimizer):
            if self._model.load_universal_checkpoint():
                self._load_universal(folder)
                # This run's own checkpoints are loaded in the format in which it saves them.
                self._model._config.load_universal_checkpoint = False
            else:
                path, _ = self._model.load_checkpoint(str(folder), TAG)
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
        optimizer = self._model.optimizer.optimizer
        try:
            with opaque_work():  # reads a file for each parameter
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
