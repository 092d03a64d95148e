"""The smallest task: a line with dropout, fitted to numbers that follow from their index."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.data.batch import MicroBatch, StepData
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import Loss, Metric, Task

if TYPE_CHECKING:
    from bsmeta.core.signals import StopRequest


class ToyStream:
    """Sample g of the run goes to rank g mod world size; its weight is g mod 3."""

    def __init__(self, config: CausalLMConfig, rank: int, size: int, start: int) -> None:
        self.fingerprint = {"kind": "toy"}
        self.size = config.data_config.per_device_train_batch_size
        self.accumulation = config.gradient_accumulation_steps
        self.rank, self.world_size, self.start = rank, size, start
        self.state = {"next": start}

    @property
    def first_step(self) -> int:
        return self.start // (self.size * self.world_size * self.accumulation) + 1

    def __iter__(self) -> Iterator[StepData]:
        index = self.start
        for step in itertools.count(self.first_step):
            batches = []
            for _ in range(self.accumulation):
                batches.append(self.micro_batch(index))
                index += self.size * self.world_size
            yield StepData(batches, {"next": index}, phase=int(step > 5))

    def micro_batch(self, index: int) -> MicroBatch:
        mine = [index + i * self.world_size + self.rank for i in range(self.size)]
        x = torch.tensor([[g % 7 / 7, g % 5 / 5] for g in mine])
        weight = torch.tensor([float(g % 3) for g in mine])
        return MicroBatch(
            tensors={"x": x, "y": x.sum(1, keepdim=True) * 2, "weight": weight},
            weight=float(weight.sum()),
            tokens=self.size,
            documents=[f"toy:{g}" for g in mine],
            counts={"samples": float(self.size), "never": 0.0},
        )

    def merge(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        assert states == [states[0]] * len(states)
        return states[0]


class ToyTask(Task):
    def __init__(self, config: CausalLMConfig) -> None:
        self.config = config

    def build_model(self) -> nn.Module:
        width = int(os.environ.get("TOY_WIDTH", "8"))
        return nn.Sequential(
            nn.Linear(2, width),
            nn.Dropout(float(os.environ.get("TOY_DROPOUT", "0.1"))),
            nn.Linear(width, 1),
        )

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> ToyStream:
        start = state["next"] if state else 0
        return ToyStream(self.config, rank, world_size, start)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        squares = (
            model(batch["x"].to(next(model.parameters()).dtype)) - batch["y"]
        ).float().square().squeeze(1) * batch["weight"]
        even = batch["x"][:, 0] > 0.4
        return Loss(
            squares.sum(), {"large": ((squares * even).sum(), (batch["weight"] * even).sum())}
        )

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        ones = torch.ones(1, 2, dtype=next(model.parameters()).dtype, device=context.device)
        with torch.no_grad():
            return [Metric("at_one", float(model(ones)))]

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        folder.mkdir(parents=True)
        save_file(weights, folder / "model.safetensors")


def main(config: CausalLMConfig) -> int:
    from bsmeta.core.signals import StopRequest
    from bsmeta.training.run_folder.early_ends import record_stopped_start

    stop = StopRequest()
    stop.install(partial(record_stopped_start, Path(config.out_dir)), os.getppid())
    return train(ToyTask(config), os.environ.get("TOY_ZERO_STAGE", ""), stop)


def train(task: ToyTask, stage: str, stop: StopRequest) -> int:
    """Trains the task under an engine: a stage of ZeRO, `fsdp2`, or "" for plain torch."""
    from bsmeta.training.run import run_training

    config = task.config
    deepspeed = None
    if stage and stage != "fsdp2":
        deepspeed = {
            "zero_optimization": {
                "stage": int(stage),
                "stage3_gather_16bit_weights_on_model_save": True,
            },
            "train_micro_batch_size_per_gpu": config.data_config.per_device_train_batch_size,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
            "gradient_clipping": config.gradient_clipping,
            "bf16": {"enabled": config.mixed_precision == "bf16"},
            "steps_per_print": 10**9,
        }
    reshards = True if stage == "fsdp2" else None
    return run_training(config, task, deepspeed, stop, reshards)


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta.config.entry_point import run_entry_point

    run_entry_point(main, CausalLMConfig, "causal_lm_config")
