"""The optimizer, and the learning rate as a function of the step.

The schedule is a pure function of the step number: it has no state to save, and a resumed run
cannot deviate from it. It is applied to the optimizer's groups before each step, under DeepSpeed
as well, so that neither Accelerate nor DeepSpeed steps a scheduler of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bsmeta.config.schema import RunConfig

SETTINGS = ("lr", "betas", "eps", "weight_decay")
"""The settings of each parameter group that the configuration determines."""


def build_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """Builds AdamW (Loshchilov and Hutter 2019); only matrices are decayed, no biases or norms.

    The kernel is fused, also on a CPU: it makes one pass over the weights (7 times as fast there),
    and is the only kernel that can skip a step without waiting for the device.
    """
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            # Under ZeRO-3 a parameter is a flat shard here, and its shape is in ds_shape.
            shape = getattr(parameter, "ds_shape", parameter.shape)
            (decayed if len(shape) > 1 else plain).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
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
    the last.

    Args:
        step: The step number, from 1 to `max_steps`.
    """
    share = config.warmup_share
    warm_up = config.num_warmup_steps if share is None else round(share * max_steps)
    if step <= warm_up:
        return config.learning_rate * step / warm_up
    if config.lr_scheduler_type == "constant":
        return config.learning_rate
    progress = min(1.0, (step - 1 - warm_up) / max(1, max_steps - warm_up))
    left = 1.0 - progress
    if config.lr_scheduler_type == "cosine":
        left = 0.5 * (1 + math.cos(math.pi * progress))
    lowest = config.min_learning_rate_ratio
    return config.learning_rate * (lowest + (1.0 - lowest) * left)


@contextmanager
def own_settings(optimizer: Any) -> Iterator[None]:
    """Keeps the settings that the optimizer was built with while a checkpoint is loaded.

    A saved state contains its own settings: a changed `weight_decay` would be ignored.
    """
    own = [{name: group[name] for name in SETTINGS} for group in optimizer.param_groups]
    yield
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def set_learning_rate(groups: Iterable[dict[str, object]], rate: float) -> None:
    """Sets the rate of every parameter group."""
    for group in groups:
        group["lr"] = rate
