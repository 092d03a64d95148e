"""The optimizers: one entry each, which the schema, the trainer and the estimate of memory read.

The trainer passes the class its parameter groups, the learning rate and the entry's options. A step
that is not finite changes nothing under any optimizer: those whose kernel can skip a step (torch's
fused ones) do so on the device; before a step of any other the trainer waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bsmeta.config.schema import RunConfig

ADAMW = "adamw"


@dataclass(frozen=True, kw_only=True)
class OptimizerEntry:
    """An optimizer.

    Attributes:
        place: The class, as `module:name`; it is imported when it is built.
        options: Computes the options of the class from the configuration.
        keys: The keys that these depend on.
        state_values: The number of values (float32) that it keeps for a parameter of a given shape;
            the flag says whether that is a matrix of a repeated layer.
        matrices_apart: Whether the matrices of repeated layers are in groups of their own.
        by_element: Whether each element is updated by itself, so that ZeRO can partition the
            parameters, and runs under DeepSpeed have been tried; others are refused there.
        takes_shards: Whether it works on parameters that FSDP2 has sharded (DTensors), and runs
            have been tried; others are refused there.
    """

    place: str
    options: Callable[[RunConfig], Mapping[str, Any]]
    state_values: Callable[[Sequence[int], bool], int]
    keys: tuple[str, ...] = ()
    matrices_apart: bool = False
    by_element: bool = False
    takes_shards: bool = False

    def load(self) -> Callable[..., Any]:
        """The class."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)


_ADAM_KEYS = ("adam_beta1", "adam_beta2", "adam_epsilon")


def _adam(config: RunConfig) -> dict[str, Any]:
    return {"betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_epsilon}


def _adam_values(shape: Sequence[int]) -> int:
    return 2 * math.prod(shape) + 1  # two moments, and the number of steps


def _factored_values(shape: Sequence[int]) -> int:
    """The mean squares of rows and columns, and the number of steps."""
    size = math.prod(shape)
    return size + 1 if len(shape) < 2 else size // shape[-1] + size // shape[-2] + 1


OPTIMIZERS: dict[str, OptimizerEntry] = {
    # Loshchilov and Hutter 2019. The fused kernel makes one pass over the weights, which on a CPU,
    # too, is several times as fast.
    ADAMW: OptimizerEntry(
        place="torch.optim:AdamW",
        options=lambda config: {**_adam(config), "fused": True},
        keys=_ADAM_KEYS,
        state_values=lambda shape, _: _adam_values(shape),
        by_element=True,
        takes_shards=True,
    ),
    # Jordan et al. 2024 for the matrices of repeated layers, AdamW for the rest; with the rates of
    # Liu et al. 2025 (arXiv 2502.16982), under which both have the learning rate of AdamW.
    "muon": OptimizerEntry(
        place="bsmeta.training.engines:MuonWithAdamW",
        options=lambda config: {**_adam(config), "momentum": config.momentum},
        keys=(*_ADAM_KEYS, "momentum"),
        state_values=lambda shape, in_layers: (
            math.prod(shape) if in_layers else _adam_values(shape)
        ),
        matrices_apart=True,
        takes_shards=True,
    ),
    # Shazeer and Stern 2018: the second moment of a matrix by its rows and columns, which torch
    # 2.13 cannot compute of shards.
    "adafactor": OptimizerEntry(
        place="torch.optim:Adafactor",
        options=lambda _: {},
        state_values=lambda shape, _: _factored_values(shape),
    ),
    # Not torch's fused kernel: if it skips the first step, it later starts from a momentum that was
    # never written.
    "sgd": OptimizerEntry(
        place="torch.optim:SGD",
        options=lambda config: {"momentum": config.momentum},
        keys=("momentum",),
        state_values=lambda shape, _: math.prod(shape),
        takes_shards=True,
    ),
}

UNDER_DEEPSPEED = ", ".join(name for name, entry in OPTIMIZERS.items() if entry.by_element)
"""The optimizers that a run under DeepSpeed may have."""

UNDER_FSDP2 = ", ".join(name for name, entry in OPTIMIZERS.items() if entry.takes_shards)
"""The optimizers that a run under FSDP2 may have."""


def users_of(key: str) -> str:
    """The optimizers that a key has a meaning for."""
    return ", ".join(name for name, entry in OPTIMIZERS.items() if key in entry.keys)
