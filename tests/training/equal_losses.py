"""The demo's model for some steps under several settings in one process: the losses of each.

`VARIANTS` (JSON in the environment): a list of {"name", "stage" (ZeRO; none: torch), keys of the
schema…}. Prints one JSON object: {name: [loss of each step, in full precision], …} on rank 0. The
variant `bare` is no trainer: model, optimizer, clipping, and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from torch import nn

from bsmeta.config.compose import run_entry_point
from bsmeta.config.schema import TrainConfig
from bsmeta.tasks.causal_lm import CausalLanguageModel
from bsmeta.training import run as running
from bsmeta.training.optim import build_optimizer, learning_rate, set_learning_rate


def bare(config: TrainConfig) -> list[float]:
    """A loop of a few lines over the same batches."""
    task = CausalLanguageModel(config)
    torch.manual_seed(config.seed)
    model = task.build_model()
    optimizer = build_optimizer(model, config)
    batches = iter(task.train_stream(0, 1, None))
    losses = []
    for step in range(1, config.max_train_steps + 1):
        set_learning_rate(optimizer.param_groups, learning_rate(config, step))
        micro_batches = [next(batches) for _ in range(config.gradient_accumulation_steps)]
        targets = sum(batch.weight for batch in micro_batches)
        total = 0.0
        for batch in micro_batches:
            tensors = batch.tensors
            logits = model(
                input_ids=tensors["input_ids"],
                position_ids=tensors["position_ids"],
                use_cache=False,
            ).logits
            wanted = tensors["input_ids"].masked_fill(~tensors["loss_mask"], -100)[:, 1:]
            loss = nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), wanted.flatten(), reduction="sum"
            )
            (loss / targets).backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / targets)
    return losses


def deepspeed_config(config: TrainConfig, stage: int | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    return {
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
        "train_micro_batch_size_per_gpu": config.data_config.per_device_train_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_clipping": config.gradient_clipping,
        "bf16": {"enabled": config.mixed_precision == "bf16"},
        "steps_per_print": 10**9,
    }


def trained(config: TrainConfig, stage: int | None) -> list[float]:
    """The trainer's losses."""
    AcceleratorState._reset_state(reset_partial_state=True)
    task = CausalLanguageModel(config)
    running.run(config, task, deepspeed_config(config, stage))
    if task._chunked is not None:
        chunks = task._chunked.pays(config.data_config.per_device_train_batch_size * 64)
        assert chunks == (config.loss_chunk_logits < 2**17)
    events = map(json.loads, (Path(config.out_dir) / "metrics.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "step"]


def main(config: TrainConfig) -> int:
    found = {}
    for variant in json.loads(os.environ["VARIANTS"]):
        name, stage = variant.pop("name"), variant.pop("stage", None)
        one = replace(config, out_dir=f"{config.out_dir}/{name}", **variant)
        found[name] = bare(one) if name == "bare" else trained(one, stage)
    if os.environ.get("RANK", "0") == "0":
        print("LOSSES", json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.path.pop(0)
    run_entry_point(main, TrainConfig, "demo")
