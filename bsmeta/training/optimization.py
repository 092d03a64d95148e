"""The optimizer and its learning rate.

The learning rate (`bsmeta.config.learning_rate`) is applied to the optimizer's groups before each
step, under DeepSpeed as well, so that neither Accelerate nor DeepSpeed steps a scheduler of its
own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from bsmeta.config.schema import OPTIMIZERS, RunConfig
from bsmeta.core.errors import ConfigurationError

RATE_SCALE = "rate_scale"
"""Key of a parameter group: the factor of its learning rate."""

IN_LAYERS = "in_layers"
"""Key of a parameter group: whether it holds the matrices of repeated layers, for Muon."""


def build_optimizer(
    model: nn.Module, config: RunConfig, rate_scale: Callable[[str], float] = lambda name: 1.0
) -> torch.optim.Optimizer:
    """Builds the optimizer of `optimizer_type`; only matrices are decayed, not biases or norms.

    Args:
        rate_scale: Returns the factor of the learning rate of a parameter, given its name.

    Raises:
        ConfigurationError: If the model has no parameters that the optimizer is made for.
    """
    entry = OPTIMIZERS[config.optimizer_type]
    layer_matrices: set[nn.Parameter] = set()
    if entry.matrices_apart:
        layer_matrices = find_layer_matrices(model)
    if entry.matrices_apart and not layer_matrices:
        raise ConfigurationError(
            f"optimizer_type={config.optimizer_type}: the model has no repeated layers with "
            "trainable matrices; expected another optimizer, such as optimizer_type=adamw"
        )

    parameters = _group_parameters(model, layer_matrices, rate_scale)
    groups = [
        {
            "params": parameters[key],
            "weight_decay": config.weight_decay if key.is_decayed else 0.0,
            RATE_SCALE: key.rate_scale,
            IN_LAYERS: key.in_layers,
        }
        # Highest rate first, and decayed matrices before the others.
        for key in sorted(parameters, reverse=True)
    ]
    optimizer: torch.optim.Optimizer = entry.load()(
        groups, lr=config.learning_rate, **entry.options(config)
    )
    return optimizer


class _GroupKey(NamedTuple):
    """Settings that the parameters of a group share."""

    rate_scale: float
    in_layers: bool
    is_decayed: bool


def _group_parameters(
    model: nn.Module, layer_matrices: set[nn.Parameter], rate_scale: Callable[[str], float]
) -> dict[_GroupKey, list[nn.Parameter]]:
    """Groups the trainable parameters by the settings of the optimizer that they share."""
    parameters: dict[_GroupKey, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        # Under ZeRO-3 a parameter is a flat shard here, and its shape is in ds_shape.
        shape = getattr(parameter, "ds_shape", parameter.shape)
        key = _GroupKey(
            rate_scale=rate_scale(name),
            in_layers=parameter in layer_matrices,
            is_decayed=len(shape) > 1,
        )
        parameters.setdefault(key, []).append(parameter)
    return parameters


def find_layer_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Returns the trainable matrices of repeated layers (in a `ModuleList`), without embeddings."""
    matrices = set()
    for layers in model.modules():
        if not isinstance(layers, nn.ModuleList):
            continue
        for module in layers.modules():
            if isinstance(module, nn.Embedding):
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad and parameter.ndim == 2:
                    matrices.add(parameter)
    return matrices


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the groups marked `IN_LAYERS`, AdamW for the others, with one learning rate.

    Both share their groups and state with this optimizer, whose state dict therefore holds both.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        lr: float,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        muon_groups = [group for group in groups if group[IN_LAYERS]]
        adamw_groups = [group for group in groups if not group[IN_LAYERS]]
        muon = torch.optim.Muon(
            muon_groups, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw"
        )
        self._optimizers: list[torch.optim.Optimizer] = [muon]
        if adamw_groups:  # empty if only adapters are trained, which are matrices of layers
            adamw = torch.optim.AdamW(adamw_groups, lr=lr, betas=betas, eps=eps, fused=True)
            self._optimizers.append(adamw)

        all_groups: list[dict[str, Any]] = []
        for optimizer in self._optimizers:
            all_groups += optimizer.param_groups
        super().__init__(all_groups, {})
        self._share_state()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Replaces groups and state; torch calls it when a state dict is loaded."""
        super().__setstate__(state)
        self._share_state()

    def _share_state(self) -> None:
        """Makes both optimizers use the groups and the state of this one."""
        groups = iter(self.param_groups)
        for optimizer in self._optimizers:
            optimizer.param_groups = list(itertools.islice(groups, len(optimizer.param_groups)))
            optimizer.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self._optimizers:
            optimizer.step()


def set_learning_rate(groups: Iterable[dict[str, Any]], rate: float) -> None:
    """Sets the learning rate of each parameter group to `rate` times the group's factor."""
    for group in groups:
        group["lr"] = rate * group.get(RATE_SCALE, 1.0)
