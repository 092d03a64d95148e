"""The interface of the engines, which wrap the model, step the optimizer and save both.

Engines differ in how they clip and step, and in how they save weights and optimizer: plain torch
(`plain`), FSDP2 (`fsdp`) and DeepSpeed (`deepspeed`); `choice` chooses. A fitted model takes no
steps (`fixed`).
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

from bsmeta.training.ranks.processes import Processes

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
        name: Name of the engine, which a checkpoint records.
        scales_loss: Whether the loss is scaled (fp16); such an engine skips non-finite gradients.
        holds_all_weights: Whether this rank has every weight whole, and not a shard of each.
        unwrapped_model: The model without the wrappers of the engine.
        unsaved_weights: Names of weights that `save` leaves out, and `load` leaves as they are.
    """

    scales_loss: bool
    holds_all_weights: bool = True

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any | None,
        unsaved_weights: frozenset[str] = frozenset(),
    ) -> None:
        """Prepares model and optimizer; without an optimizer, the model is only moved."""
        self.accelerator = accelerator
        self.unsaved_weights = unsaved_weights
        self.name = name_engine(accelerator)
        self.model: Any
        self.optimizer: Any
        if optimizer is None:
            # `prepare` would import torch's compiler and DeepSpeed, which takes seconds.
            self.model = model.to(accelerator.device)
            self.optimizer = None
            self.unwrapped_model = model
            return

        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        # The first call imports DeepSpeed; a save, perhaps in a hurry, should not wait for this.
        self.unwrapped_model = accelerator.unwrap_model(self.model)

    @abstractmethod
    def clip(self, limit: float) -> torch.Tensor | float | None:
        """Clips the gradient to the norm `limit` and returns its norm; called after backward.

        A returned tensor is a scalar on the device, which has not been synchronized.
        """

    @abstractmethod
    def step(self, is_finite: torch.Tensor) -> bool:
        """Updates the weights if loss and gradient are finite, and clears the gradient.

        Args:
            is_finite: Boolean scalar on the device, for which the host does not wait.

        Returns:
            Whether the engine changed the weights regardless of `is_finite`.
        """

    @abstractmethod
    def gather_weights(self) -> dict[str, torch.Tensor]:
        """Returns the full state dict of the model on rank 0."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes weights and optimizer into a new folder."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Restores weights and optimizer from a folder that `save` has written."""

    @abstractmethod
    def take_snapshot(self, *, with_weights: bool) -> Snapshot | None:
        """Copies the state to main memory; returns None on a rank that writes nothing.

        The copy is valid until the next call.

        Args:
            with_weights: Whether `Snapshot.read_weights` will be called.
        """


def name_engine(accelerator: Accelerator) -> str:
    """Returns the name of the engine that this launch uses."""
    plugin = accelerator.state.deepspeed_plugin
    if plugin is not None:
        return f"deepspeed ZeRO-{plugin.zero_stage}"
    return FSDP if accelerator.is_fsdp2 else PLAIN
