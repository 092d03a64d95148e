"""Engines that load a state, train a small model for some steps, and save: one after the other.

`ENGINES` (JSON in the environment): a list of {"stage" of ZeRO, "steps" (first and last), "load"
and "save" (folders), "unsaved" (names of weights), "accumulation" (type of the gradients),
"offload" (of the optimizer), "copy" (folder)}. Rank 0 prints a line for each: the losses of the
steps, and failures, such as weights of the model that are not those that it saved, rounded.

With "copy", the state is copied after each step but the last one, during which a thread writes the
last copy.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from accelerate.state import AcceleratorState
from torch import nn
from torch.distributed import checkpoint as dcp

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.checkpoints.fragments import Fragment
from bsmeta.training.checkpoints.shards import read_full_tensors
from bsmeta.training.engines.choice import make_engine
from bsmeta.training.engines.training_engine import TrainingEngine
from bsmeta.training.optimization import build_optimizer
from bsmeta.training.ranks.distributed import create_accelerator


class SmallModel(nn.Module):
    """Has a shared weight, a frozen one, a buffer, and sizes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.middle = nn.Linear(5, 5, bias=False)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.mixture = nn.Parameter(torch.randn(3, 5, 3))
        self.shift = nn.Parameter(torch.tensor([0.5]))
        self.output = nn.Linear(5, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("offset", torch.randn(5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.frozen((self.middle(self.embedding(tokens)) + self.shift).relu())
        values = values + self.offset.to(values.dtype)
        values = values + torch.einsum("bi,kil->bi", values, self.mixture)
        logits: torch.Tensor = self.output(values)
        return logits


def make_deepspeed_config(
    config: CausalLMConfig, stage: int, accumulation: str | None, offload: bool
) -> dict[str, Any]:
    device = "cpu" if offload else "none"
    return {
        "zero_optimization": {
            "stage": stage,
            "offload_optimizer": {"device": device, "pin_memory": False},
            "stage3_gather_16bit_weights_on_model_save": True,
            "stage3_param_persistence_threshold": 10,
            "sub_group_size": 40,
        },
        "zero_force_ds_cpu_optimizer": False,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": config.mixed_precision == "bf16"},
        "data_types": {"grad_accum_dtype": accumulation},
        "steps_per_print": 10**9,
    }


def list_addresses(state: dict[str, torch.Tensor | Fragment]) -> list[int]:
    values = [value.values if isinstance(value, Fragment) else value for value in state.values()]
    return [tensor.data_ptr() for tensor in values]


class CopyThread(threading.Thread):
    """Writes a copy of the state of an engine, but no file before `finish` is called."""

    def __init__(self, engine: TrainingEngine, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._weights = {name: weight.clone() for name, weight in engine.gather_weights().items()}
        snapshot = engine.take_snapshot(with_weights=True)
        self._snapshot = snapshot
        self._may_write = threading.Event()
        if snapshot is not None:
            self.start()

    def run(self) -> None:
        assert self._snapshot is not None
        write_data = dcp.FileSystemWriter.write_data

        def wait_and_write(*arguments: Any) -> Any:
            self._may_write.wait()
            return write_data(*arguments)

        with mock.patch.object(dcp.FileSystemWriter, "write_data", wait_and_write):
            self._snapshot.write(self._folder)

    def finish(self) -> None:
        """Waits for the files."""
        self._may_write.set()
        if self._snapshot is not None:
            self.join()

    def list_failures(self) -> list[str]:
        """Lists weights that are exported otherwise than they were at the copy (rank 0)."""
        assert self._snapshot is not None
        exported = self._snapshot.read_weights(self._folder)
        assert exported.keys() == self._weights.keys()
        return [
            f"{name} is not exported as it was"
            for name, weight in self._weights.items()
            if not torch.equal(exported[name], weight) or exported[name].dtype != weight.dtype
        ]


def run_engine(
    config: CausalLMConfig,
    stage: int,
    save: str,
    load: str | None = None,
    steps: tuple[int, int] = (1, 0),
    rounds: int = 1,
    unsaved: tuple[str, ...] = (),
    accumulation: str | None = None,
    offload: bool = False,
    copy: str | None = None,
) -> dict[str, Any]:
    AcceleratorState._reset_state(reset_partial_state=True)
    deepspeed_config = make_deepspeed_config(config, stage, accumulation, offload)
    accelerator = create_accelerator(config, deepspeed_config, None)
    torch.manual_seed(config.seed)
    model = SmallModel()
    engine = make_engine(accelerator, model, build_optimizer(model, config), frozenset(unsaved))
    assert isinstance(engine, TrainingEngine)

    losses = []
    copies: list[list[int]] = []  # the addresses of the values of each
    thread = None
    for _ in range(rounds):
        if load is not None:
            engine.load(Path(load))
        for step in range(steps[0], steps[1] + 1):
            if copy is not None and copies and step == steps[1]:
                thread = CopyThread(engine, Path(copy))
            rank = accelerator.process_index
            tokens = torch.arange(7)[(torch.arange(4) * step + rank) % 7]
            loss = nn.functional.cross_entropy(engine.model(tokens).float(), (tokens + 1) % 7)
            accelerator.backward(loss)
            assert engine.step(torch.tensor(True))
            losses.append(loss.item())
            if copy is not None and step < steps[1]:
                copies.append(list_addresses(engine.copy_state()))

    if thread is not None:
        thread.finish()
    engine.save(Path(save))
    weights = engine.gather_weights()
    if not accelerator.is_main_process:
        return {}
    failures = [] if thread is None else thread.list_failures()
    for entry, tensor in read_full_tensors(Path(save), "model/").items():
        weight = weights[entry.removeprefix("model/")]
        if not torch.equal(weight, tensor.to(weight.dtype)):
            failures.append(f"{entry} is not the rounded weight")
    if copies != copies[:1] * len(copies):
        failures.append("copies have other memory")
    return {"losses": losses, "failures": failures}


def main(config: CausalLMConfig) -> int:
    for engine in json.loads(os.environ["ENGINES"]):
        result = run_engine(config, **engine)
        if result:
            print("RESULT", json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta.config.entry_point import run_entry_point

    run_entry_point(main, CausalLMConfig, "demo")
