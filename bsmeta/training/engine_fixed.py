"""The engine of a run without steps: a fitted model, whose weights no optimizer changes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.training.checkpoint import name_damaged_file
from bsmeta.training.engine import Engine, Snapshot
from bsmeta.training.engine_plain import STATE_FILE, read_state, write_state
from bsmeta.training.processes import ALONE


class FixedEngine(Engine):
    """Saves and loads a model in the format of plain torch, without an optimizer."""

    def __init__(self, accelerator: Accelerator, model: nn.Module) -> None:
        super().__init__(accelerator, model, None)
        self.scales_loss = False

    def clip(self, limit: float) -> torch.Tensor:
        raise AssertionError("a run without steps has no gradients")

    def step(self, is_finite: torch.Tensor) -> bool:
        raise AssertionError("a run without steps has no optimizer")

    def gather_weights(self) -> dict[str, torch.Tensor]:
        return self.unwrapped_model.state_dict()

    def collect_state(self) -> dict[str, Any]:
        """Returns the state in the format of `PlainEngine`."""
        return {"model": self.gather_weights(), "optimizer": None, "scaler": None}

    def save(self, folder: Path) -> None:
        if self.accelerator.is_main_process:
            write_state(self.collect_state(), folder)

    def load(self, folder: Path) -> None:
        with name_damaged_file(folder / STATE_FILE):
            self.unwrapped_model.load_state_dict(read_state(folder)["model"])

    def take_snapshot(self, *, with_weights: bool) -> Snapshot | None:
        """Returns the state itself, which does not change while it is written."""
        if not self.accelerator.is_main_process:
            return None
        state = self.collect_state()
        return Snapshot(ALONE, partial(write_state, state), lambda _: state["model"])
