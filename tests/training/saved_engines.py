"""Engines that load a state, train a small model for some steps, and save: one after the other.

`ENGINES` (JSON in the environment): a list of {"stage" of ZeRO, "steps", "load" and "save" (folders
or null), "names" of weights that are left out, "accumulation" (type of gradients)}. Rank 0 prints, for each, the losses of the steps,
and whether the weights of the model are those of the saved state, rounded.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from torch import nn

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.distributed import create_accelerator
from bsmeta.training.engines import make_engine
from bsmeta.training.optimization import build_optimizer
from bsmeta.training.shards import read_full_tensors


class SmallModel(nn.Module):
    """Has a shared weight, a frozen one, a buffer, and sizes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.middle = nn.Linear(5, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.mixture = nn.Parameter(torch.randn(3, 5, 3))
        self.output = nn.Linear(5, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("offset", torch.randn(5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.frozen(self.middle(self.embedding(tokens)).relu())
        values = values + self.offset.to(values.dtype)
        values = values + torch.einsum("bi,kil->bi", values, self.mixture)
        logits: torch.Tensor = self.output(values)
        return logits


def make_deepspeed_config(
    config: CausalLMConfig, stage: int, accumulation: str | None
) -> dict[str, Any]:
    return {
        "zero_optimization": {
            "stage": stage,
            "stage3_gather_16bit_weights_on_model_save": True,
            "stage3_param_persistence_threshold": 10,
            "sub_group_size": 40,
        },
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": config.mixed_precision == "bf16"},
        "fp16": {"enabled": config.mixed_precision == "fp16", "loss_scale_window": 2},
        "data_types": {"grad_accum_dtype": accumulation},
        "steps_per_print": 10**9,
    }


def run_engine(
    config: CausalLMConfig,
    stage: int,
    steps: int = 0,
    load: str | None = None,
    save: str | None = None,
    names: tuple[str, ...] = (),
    accumulation: str | None = None,
) -> dict[str, Any]:
    AcceleratorState._reset_state(reset_partial_state=True)
    deepspeed_config = make_deepspeed_config(config, stage, accumulation)
    accelerator = create_accelerator(config, deepspeed_config, None)
    torch.manual_seed(config.seed if load is None else config.seed + 1)
    model = SmallModel()
    engine = make_engine(accelerator, model, build_optimizer(model, config), frozenset(names))
    first_step = 0
    if load is not None:
        engine.load(Path(load))
        counter = "optimizer/step/middle.weight"
        first_step = int(read_full_tensors(Path(load), counter)[counter])

    losses = []
    for step in range(first_step, first_step + steps):
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(7, (4,), generator=generator)[accelerator.process_index :: 2]
        loss = nn.functional.cross_entropy(engine.model(tokens).float(), 6 - tokens)
        accelerator.backward(loss)
        assert engine.step(torch.tensor(True))
        losses.append(loss.item())

    if save is None:
        return {"losses": losses}
    engine.save(Path(save))
    weights = engine.gather_weights()
    if not accelerator.is_main_process:
        return {}
    dtype = next(engine.model.parameters()).dtype
    saved_tensors = read_full_tensors(Path(save), "model/")
    is_rounded = all(
        torch.equal(weights[entry.removeprefix("model/")], tensor.to(dtype))
        for entry, tensor in saved_tensors.items()
    )
    return {"losses": losses, "is_rounded": is_rounded}


def main(config: CausalLMConfig) -> int:
    results = [run_engine(config, **engine) for engine in json.loads(os.environ["ENGINES"])]
    if os.environ.get("RANK", "0") == "0":
        print("FOUND", json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta.config.entry_point import run_entry_point

    run_entry_point(main, CausalLMConfig, "demo")
