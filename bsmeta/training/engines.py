"""The engines that step the optimizer: plain torch (also data parallel), FSDP2, and DeepSpeed.

They differ in how they clip and step, and in how they save weights and optimizer.

The optimizer of a run, and its learning rate.

The learning rate is a pure function of the step number: it has no state to save, and a resumed run
cannot deviate from it. It is applied to the optimizer's groups before each step, under DeepSpeed as
well, so that neither Accelerate nor DeepSpeed steps a scheduler of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import convert_outputs_to_fp32
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bsmeta.config.schema import OPTIMIZERS, WSD, RunConfig
from bsmeta.config.steps import decay_start, warm_up_steps
from bsmeta.core.errors import CheckpointError, ConfigurationError, TrainingError
from bsmeta.core.progress import opaque_work
from bsmeta.training.distributed import ALONE, Processes

_PLAIN_FILE = "torch.pt"

TAG = "pytorch_model"

PLAIN, FSDP = "torch", "FSDP2"

RATE_SCALE = "rate_scale"
"""Key of a parameter group: the factor of its learning rate."""

IN_LAYERS = "in_layers"
"""Whether a parameter group holds matrices of repeated layers that are apart from the others."""

SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "1-sqrt": lambda progress: 1.0 - math.sqrt(progress),
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}
"""Factor of the learning rate after a given share of the decay."""


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


class PlainEngine:
    """Torch's own optimizer; data parallel if there are several processes."""

    name = PLAIN

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


def build_optimizer(
    model: nn.Module, config: RunConfig, rate_scale: Callable[[str], float] = lambda name: 1.0
) -> torch.optim.Optimizer:
    """Builds the optimizer of `optimizer_type`; only matrices are decayed, no biases or norms.

    Args:
        rate_scale: What the learning rate of a parameter, given its name, is multiplied with.

    Raises:
        ConfigurationError: If the model has no parameters of the kind that the optimizer is for.
    """
    entry = OPTIMIZERS[config.optimizer_type]
    apart = matrices_in_layers(model) if entry.matrices_apart else set()
    if entry.matrices_apart and not apart:
        raise ConfigurationError(
            f"optimizer_type={config.optimizer_type}: the model has no repeated layers with "
            "trainable matrices; expected another optimizer, such as optimizer_type=adamw"
        )
    groups: dict[tuple[float, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            # Under ZeRO-3 a parameter is a flat shard here, and its shape is in ds_shape.
            shape = getattr(parameter, "ds_shape", parameter.shape)
            group = (rate_scale(name), parameter in apart, len(shape) > 1)
            groups.setdefault(group, []).append(parameter)
    optimizer: torch.optim.Optimizer = entry.load()(
        [
            {
                "params": groups[scale, in_layers, is_decayed],
                "weight_decay": config.weight_decay if is_decayed else 0.0,
                RATE_SCALE: scale,
                IN_LAYERS: in_layers,
            }
            # Highest rate first, and the decayed matrices before the rest.
            for scale, in_layers, is_decayed in sorted(groups, reverse=True)
        ],
        lr=config.learning_rate,
        **entry.options(config),
    )
    return optimizer


def matrices_in_layers(model: nn.Module) -> set[nn.Parameter]:
    """The trainable matrices of repeated layers (in a `ModuleList`), without embeddings."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.ModuleList)]
    modules = {module for layer in layers for module in layer.modules()}
    return {
        parameter
        for module in modules
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad and parameter.ndim == 2
    }


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the groups marked `IN_LAYERS`, AdamW for the others, with one learning rate.

    The two share their groups and state with this optimizer, whose state dict is that of both.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        lr: float,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        inner, outer = (
            [group for group in groups if group[IN_LAYERS] == flag] for flag in (True, False)
        )
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(inner, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw")
        ]
        if outer:  # none with adapters alone, which are matrices of layers
            self._parts.append(torch.optim.AdamW(outer, lr=lr, betas=betas, eps=eps, fused=True))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Replaces groups and state, as torch does when a state dict is loaded."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [*itertools.islice(groups, len(part.param_groups))]
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Updates all parameters."""
        for part in self._parts:
            part.step()


def learning_rate(config: RunConfig, max_steps: int, step: int) -> float:
    """The learning rate of a step.

    A linear warm-up reaches the peak at step `num_warmup_steps`, or after `warmup_share` of the
    steps; then the rate stays there (`constant`), or decays linearly (`linear`) or along half a
    cosine (`cosine`) such that it would reach `min_learning_rate_ratio` of the peak one step after
    the last. Under `wsd` (Hu et al. 2024, arXiv 2404.06395) it stays there until the last
    `num_decay_steps`, or `decay_share` of the steps, and decays in these; `1-sqrt` is the shape
    that Hägele et al. 2024 (arXiv 2405.18392) found best.

    Args:
        step: The step number, from 1 to `max_steps`.
    """
    start = warm_up_steps(config, max_steps)
    if step <= start:
        return config.learning_rate * step / start
    if config.lr_scheduler_type == "constant":
        return config.learning_rate
    shape = config.lr_scheduler_type
    if shape == WSD:
        start, shape = decay_start(config, max_steps) or 0, config.decay_shape
    progress = min(1.0, max(0, step - 1 - start) / max(1, max_steps - start))
    lowest = config.min_learning_rate_ratio
    return config.learning_rate * (lowest + (1.0 - lowest) * SHAPES[shape](progress))


@contextmanager
def own_settings(optimizer: Any) -> Iterator[None]:
    """Keeps the settings that the optimizer was built with while a checkpoint is loaded.

    A saved state contains its own settings: a changed `weight_decay` would be ignored.
    """
    own = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    yield
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def set_learning_rate(groups: Iterable[dict[str, Any]], rate: float) -> None:
    """Sets the rate of every parameter group: its own share of `rate`."""
    for group in groups:
        group["lr"] = rate * group.get(RATE_SCALE, 1.0)
