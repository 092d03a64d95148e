"""Engines step the optimizer: their interface to the loop, and the state that they write.

Engines differ in how they clip and step, and in how they save weights and optimizer: plain torch
(`engine_plain`), FSDP2 (`fsdp`) and DeepSpeed (`engine_deepspeed`); `engines` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.training.processes import Processes

PLAIN = "torch"
"""Name of the engine of plain torch in a checkpoint."""

FSDP = "FSDP2"
"""Name of the engine of FSDP2 in a checkpoint."""


@dataclass(frozen=True)
class Snapshot:
    """The state of an engine that is about to be written, or a copy of it in main memory.

    Attributes:
        processes: The processes that write it together; for a copy, each in a thread.
        write: Writes weights and optimizer into a new folder.
        read_weights: Returns the full state dict of the model on rank 0, given the folder that
            `write` has written.
    """

    processes: Processes
    write: Callable[[Path], None]
    read_weights: Callable[[Path], dict[str, torch.Tensor]]


class Engine(ABC):
    """The interface of an engine to the loop. All ranks call each method together.

    Attributes:
        name: Identifies the engine that a checkpoint belongs to.
        scales_loss: Whether the loss is scaled (fp16); such an engine skips non-finite gradients.
        holds_all_weights: Whether this rank has every weight whole, and not a shard of each.
        unwrapped_model: The model without the wrappers of the engine.
    """

    scales_loss: bool
    holds_all_weights: bool = True

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: Any) -> None:
        self.accelerator = accelerator
        self.name = name_engine(accelerator)
        self.model: Any
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        # The first call imports DeepSpeed; a save, perhaps in a hurry, should not wait for this.
        self.unwrapped_model = accelerator.unwrap_model(self.model)

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
    def gather_weights(self) -> dict[str, torch.Tensor]:
        """Returns the full state dict of the model on rank 0."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes weights and optimizer into a new folder."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""

    def take_snapshot(self) -> Snapshot | None:
        """Copies the state to main memory; None: this rank writes nothing.

        The copy is valid until the next call. DeepSpeed cannot copy: its ranks write their
        partitions together, and the checks refuse `async_save`.
        """
        raise NotImplementedError


def name_engine(accelerator: Accelerator) -> str:
    """Returns the name of the engine that this launch uses."""
    plugin = accelerator.state.deepspeed_plugin
    if plugin is not None:
        return f"deepspeed ZeRO-{plugin.zero_stage}"
    return FSDP if accelerator.is_fsdp2 else PLAIN
