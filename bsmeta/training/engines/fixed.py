"""The engine of a run without steps: a fitted model, whose weights no optimizer changes.

Its `state/` in a checkpoint holds `weights.safetensors` and `engine.json`: no other engine
continues such a run, and torch's distributed checkpoint takes long to import.
"""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_model, save_model
from torch import nn

from bsmeta.training.checkpoints.checkpoint import name_damaged_file
from bsmeta.training.engines.engine import Engine, Snapshot
from bsmeta.training.engines.values import EngineValues, read_values
from bsmeta.training.ranks.processes import ALONE

WEIGHTS_FILE = "weights.safetensors"


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
        """Writes weights and values into a new folder (rank 0)."""
        folder.mkdir()
        save_model(self.unwrapped_model, str(folder / WEIGHTS_FILE))
        EngineValues(has_optimizer=False).write(folder)

    def load(self, folder: Path) -> None:
        read_values(folder, has_optimizer=False)
        with name_damaged_file(folder / WEIGHTS_FILE):
            load_model(self.unwrapped_model, folder / WEIGHTS_FILE)

    def take_snapshot(self, *, with_weights: bool) -> Snapshot | None:
        """Returns the state itself, which does not change while it is written."""
        if not self.accelerator.is_main_process:
            return None
        return Snapshot(ALONE, self._write, lambda _: self.gather_weights())
