"""Runs of a small model under several engines in one launch, from the start or from a checkpoint.

`RUNS` (JSON in the environment): a list of {"out_dir", "engine" (see `toy_task.train`), keys of the
schema…}. The model has two layers with the same weight, a buffer, and sizes that no number of
processes divides.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from torch import nn

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.core.signals import StopRequest
from tests.training import toy_task


class TiedLayers(nn.Module):
    """A network from 2 numbers to 1; the inner two of its four layers share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 5), nn.Linear(5, 1)
        self.inner = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.inner[1].weight = self.inner[0].weight
        self.register_buffer("scale", torch.tensor([0.5, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.first(x * self.scale).tanh()
        for layer in self.inner:
            values = layer(values).tanh()
        output: torch.Tensor = self.last(values)
        return output


class TiedTask(toy_task.ToyTask):
    """The toy task with that model."""

    def build_model(self) -> nn.Module:
        return TiedLayers()

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        assert weights["inner.0.weight"].equal(weights.pop("inner.1.weight"))
        super().export(model, weights, folder)


def main(config: CausalLMConfig) -> int:
    for keys in json.loads(os.environ["RUNS"]):
        engine = keys.pop("engine")
        AcceleratorState._reset_state(reset_partial_state=True)
        toy_task.train(TiedTask(replace(config, **keys)), engine, StopRequest())
    return 0


if __name__ == "__main__":
    sys.path.pop(0)
    run_entry_point(main, CausalLMConfig, "causal_lm_config")
