"""A line with two weights, fitted to the double of the sum of two numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from bsmeta.config.metric_table import compute_values
from bsmeta.data.batch import MicroBatch, StepData
from bsmeta.training.metric_values import make_metrics
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import Loss, Metric, Task
from bsmeta_toy.config import ToyLineConfig
from bsmeta_toy.metrics import METRICS


class Numbers:
    """An endless stream of steps, to each of which every rank contributes `rows` numbers.

    Attributes:
        state: The first number of the next step, the same on all ranks.
    """

    def __init__(self, rows: int, rank: int, world_size: int, start: int) -> None:
        self.fingerprint = {"kind": "numbers"}
        self.state = {"next": start}
        self._rows = rows
        self._offset = rank * rows
        self._step_size = world_size * rows

    @property
    def first_step(self) -> int:
        return self.state["next"] // self._step_size + 1

    def __iter__(self) -> Iterator[StepData]:
        for start in itertools.count(self.state["next"], self._step_size):
            first = start + self._offset
            numbers = range(first, first + self._rows)
            x = torch.tensor([[number % 7 / 7, number % 5 / 5] for number in numbers])
            batch = MicroBatch(
                tensors={"x": x, "y": 2 * x.sum(1, keepdim=True)},
                weight=float(self._rows),
                tokens=self._rows,
                documents=[str(number) for number in numbers],
                counts={},
            )
            yield StepData([batch], {"next": start + self._step_size}, phase=0)

    def merge(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return states[0]


class Line(Task):
    """Fits the line."""

    def __init__(self, config: ToyLineConfig) -> None:
        self._config = config

    def build_model(self) -> nn.Module:
        return nn.Linear(2, 1)

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> Numbers:
        start = state["next"] if state else 0
        return Numbers(self._config.rows, rank, world_size, start)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        return Loss((model(batch["x"]) - batch["y"]).float().square().sum(), {})

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        with torch.no_grad():
            error = float(model(torch.ones(1, 2, device=context.device))) - 4
        return make_metrics(METRICS, compute_values(METRICS, error))

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        folder.mkdir(parents=True)
        save_file(weights, folder / "model.safetensors")
