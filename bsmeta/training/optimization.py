"""The optimizer and its learning rate.

The learning rate is a pure function of the step number: it has no state to save, and a resumed run
cannot deviate from it. It is applied to the optimizer's groups before each step, under DeepSpeed as
well, so that neither Accelerate nor DeepSpeed steps a scheduler of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bsmeta.config.schema import OPTIMIZERS, WSD, RunConfig
from bsmeta.config.steps import decay_start, warm_up_steps
from bsmeta.core.errors import ConfigurationError

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
    settings = [
        {
            "params": groups[scale, in_layers, is_decayed],
            "weight_decay": config.weight_decay if is_decayed else 0.0,
            RATE_SCALE: scale,
            IN_LAYERS: in_layers,
        }
        # Highest rate first, and the decayed matrices before the rest.
        for scale, in_layers, is_decayed in sorted(groups, reverse=True)
    ]
    built: torch.optim.Optimizer = entry.load()(
        settings, lr=config.learning_rate, **entry.options(config)
    )
    return built


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
        self, groups: Sequence[dict[str, Any]], lr: float, momentum: float,
        betas: tuple[float, float], eps: float,
    ) -> None:  # fmt: skip
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


def set_learning_rate(groups: Iterable[dict[str, Any]], rate: float) -> None:
    """Sets the rate of every parameter group: its own share of `rate`."""
    for group in groups:
        group["lr"] = rate * group.get(RATE_SCALE, 1.0)


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
