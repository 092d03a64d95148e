"""The optimizer, and the engines that step it: plain torch (also data parallel), and DeepSpeed.

The engines differ in how they clip and step, and in how they save weights and optimizer. The
learning rate is a pure function of the step number: it has no state to save, and a resumed run
cannot deviate from it. It is applied to the optimizer's groups before each step, under DeepSpeed as
well, so that neither Accelerate nor DeepSpeed steps a scheduler of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bsmeta.config.schema import WSD, RunConfig
from bsmeta.config.steps import decay_start, warm_up_steps
from bsmeta.core.errors import CheckpointError, TrainingError
from bsmeta.core.progress import opaque_work

RATE_SCALE = "rate_scale"
"""What the learning rate of a parameter group is multiplied with."""
SETTINGS = ("lr", "betas", "eps", "weight_decay", RATE_SCALE)
"""The settings of each parameter group that the configuration determines."""


SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "1-sqrt": lambda progress: 1.0 - math.sqrt(progress),
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}
"""What is left of the learning rate after a share of its decay."""


def build_optimizer(
    model: nn.Module, config: RunConfig, rate_scale: Callable[[str], float] = lambda name: 1.0
) -> torch.optim.Optimizer:
    """Builds AdamW (Loshchilov and Hutter 2019); only matrices are decayed, no biases or norms.

    The kernel is fused, also on a CPU: it makes one pass over the weights (7 times as fast there),
    and is the only kernel that can skip a step without waiting for the device.

    Args:
        model: The model.
        config: The run.
        rate_scale: What the learning rate of a parameter, given its name, is multiplied with.
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            # Under ZeRO-3 a parameter is a flat shard here, and its shape is in ds_shape.
            shape = getattr(parameter, "ds_shape", parameter.shape)
            groups.setdefault((rate_scale(name), len(shape) > 1), []).append(parameter)
    # Highest rate first, and the decayed matrices before the rest.
    order = sorted(groups, reverse=True)
    return torch.optim.AdamW(
        [
            {
                "params": groups[scale, is_decayed],
                "weight_decay": config.weight_decay if is_decayed else 0.0,
                RATE_SCALE: scale,
            }
            for scale, is_decayed in order
        ],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=True,
    )


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
    own = [{name: group[name] for name in SETTINGS} for group in optimizer.param_groups]
    yield
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def set_learning_rate(groups: Iterable[dict[str, Any]], rate: float) -> None:
    """Sets the rate of every parameter group: its own share of `rate`."""
    for group in groups:
        group["lr"] = rate * group.get(RATE_SCALE, 1.0)


_PLAIN_FILE = "torch.pt"
_TAG = "pytorch_model"


class Engine(Protocol):
    """What the loop needs from an engine. All ranks call each method together."""

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


def make_engine(accelerator: Accelerator, model: nn.Module, optimizer: Any) -> Engine:
    """Creates the engine of a prepared model and optimizer."""
    if accelerator.state.deepspeed_plugin is None:
        return PlainEngine(accelerator, model, optimizer)
    return DeepSpeedEngine(accelerator, model)


def engine_name(accelerator: Accelerator) -> str:
    """The name of the engine that this launch uses."""
    plugin = accelerator.state.deepspeed_plugin
    return PlainEngine.name if plugin is None else f"deepspeed ZeRO-{plugin.zero_stage}"


class PlainEngine:
    """Torch's own optimizer; data parallel if there are several processes."""

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
        # A scaler must see every step, and itself skips those that are not finite.
        if not self.scaled:
            # The fused AdamW leaves the weights and its state unchanged if this is 1 (see
            # torch.amp.GradScaler): the device decides, and the host need not wait.
            self._optimizer.optimizer.found_inf = (~finite).float()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return False

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


def to_memory(value: Any, copied: dict[Any, torch.Tensor] | None = None) -> Any:
    """Copies nested dicts, lists and tensors to main memory; shared tensors stay shared."""
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
        self._model.save_checkpoint(str(folder), _TAG)

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
                path, _ = self._model.load_checkpoint(str(folder), _TAG)
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
