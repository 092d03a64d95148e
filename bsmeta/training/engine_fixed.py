"""The engine of a run without steps: a fitted model, whose weights no optimizer changes."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.training.engine import Engine, Snapshot
from bsmeta.training.engine_state import EngineValues, collect_weights, write_state
from bsmeta.training.processes import ALONE
from bsmeta.training.shards import read_shards


class FixedEngine(Engine):
    """Saves and loads a model without an optimizer."""

    def __init__(self, accelerator: Accelerator, model: nn.Module) -> None:
        super().__init__(accelerator, model, None)
        self.scales_loss = False

    def clip(self, limit: float) -> torch.Tensor:
        raise AssertionError("a run without steps has no gradients")

    def step(self, is_finite: torch.Tensor) -> bool:
        raise AssertionError("a run without steps has no optimizer")

    def gather_weights(self) -> dict[str, torch.Tensor]:
        return self.unwrapped_model.state_dict()

    def save(self, folder: Path) -> None:
        if self.accelerator.is_main_process:
            self._write(folder)

    def _write(self, folder: Path) -> None:
        """Writes the weights (rank 0)."""
        write_state(self._collect_weights(), EngineValues(has_optimizer=False), folder, ALONE)

    def _collect_weights(self) -> dict[str, torch.Tensor]:
        """Returns the weights by their names in a checkpoint."""
        return collect_weights(self.unwrapped_model, self.unsaved_weights)

    def load(self, folder: Path) -> None:
        read_shards(self._collect_weights(), folder, ALONE)

    def take_snapshot(self, *, with_weights: bool) -> Snapshot | None:
        """Returns the state itself, which does not change while it is written."""
        if not self.accelerator.is_main_process:
            return None
        return Snapshot(ALONE, self._write, lambda _: self.gather_weights())
