"""The demo's model for some steps under several settings in one process: what came of each.

`VARIANTS` (JSON in the environment): a list of {"name", keys of the schema…}, and

    stage: of ZeRO, or FSDP2; none: data parallel
    lag: steps that are not read before the next is made, as on a GPU
    nan: the step in which the loss is not a number

The variant `bare` is not a trainer: model, optimizer, clipping, and nothing else. Rank 0 prints one
JSON object: for each name `losses` (of each step, in full precision), `model` and `optimizer` (the
types of the weights that the model computes with and of those that the optimizer updates), `kept`
(the share of the gradient that this rank holds between two micro-batches), `collectives` (calls of
all_reduce in Python: those of the loop itself) and `reads` (where the package took values from the
device in training, with their number).
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from torch import nn
from torch.distributed.tensor import DTensor

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.learning_rate import RatePlan
from bsmeta.core.signals import StopRequest
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from bsmeta.training import run as running
from bsmeta.training import trainer
from bsmeta.training.optimization import build_optimizer, set_learning_rate
from bsmeta.training.task import Loss


def bare(config: CausalLMConfig) -> list[float]:
    """Trains with a loop of a few lines over the same batches; returns the losses."""
    task = CausalLanguageModel(config)
    torch.manual_seed(config.seed)
    model = task.build_model()
    optimizer = build_optimizer(model, config)
    rates = RatePlan.of(config, config.max_train_steps)
    batches = iter(task.train_stream(0, 1, None))
    losses = []
    for step in range(1, config.max_train_steps + 1):
        set_learning_rate(optimizer.param_groups, rates.compute_rate(step))
        micro_batches = next(batches).micro_batches
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


def deepspeed_config(config: CausalLMConfig, stage: int | str | None) -> dict[str, Any] | None:
    if not isinstance(stage, int):
        return None
    return {
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
        "train_micro_batch_size_per_gpu": config.data_config.per_device_train_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_clipping": config.gradient_clipping,
        "bf16": {"enabled": config.mixed_precision == "bf16"},
        "steps_per_print": 10**9,
    }


class Observed:
    """Counts the operations of a run from inside."""

    def __init__(self, lag: int | None, nan: int | None) -> None:
        self.types: dict[str, list[str]] = {}
        self.kept = 0.0
        self.collectives = 0
        self.reads: Counter[str] = Counter()
        self._lag, self._nan = lag, nan

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Puts watchers into the trainer, and removes them at the end."""
        with ExitStack() as stack:
            self._patch(stack, trainer, "make_engine", self._engine)
            self._patch(stack, dist, "all_reduce", self._all_reduce)
            self._patch(stack, trainer.Trainer, "_run_loop", self._run_loop)
            self._patch(stack, CausalLanguageModel, "loss", self._loss)
            for name in ("item", "tolist", "cpu", "__bool__", "__float__", "__int__"):
                self._patch(stack, torch.Tensor, name, self._read)
            yield

    @staticmethod
    def _patch(stack: ExitStack, owner: Any, name: str, watcher: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **named: watcher(original, *args, **named))
        stack.callback(setattr, owner, name, original)

    def _engine(self, original: Any, *args: Any) -> Any:
        engine = original(*args)
        model, optimizer = engine.model, engine.optimizer
        outer = getattr(model, "optimizer", optimizer)
        groups = [p for group in outer.optimizer.param_groups for p in group["params"]]
        # Under ZeRO-3 they are lent to the optimizer for the length of a step.
        groups = groups or outer.fp32_partitioned_groups_flat
        self.types = {
            "model": sorted({str(p.dtype) for p in model.parameters()}),
            "optimizer": sorted({str(p.dtype) for p in groups}),
        }
        return engine

    def _all_reduce(self, original: Any, *args: Any, **named: Any) -> Any:
        self.collectives += sys._getframe(2).f_code.co_filename.endswith(
            "training/ranks/processes.py"
        )
        return original(*args, **named)

    def _run_loop(self, original: Any, one: Any) -> Any:
        if self._lag is not None:
            one._lag = self._lag
        self.task, self.made = one.task, 0
        return original(one)

    def _loss(self, original: Any, task: Any, model: nn.Module, batch: Any) -> Any:
        self.made += 1
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if gradients:  # DeepSpeed has none here, but in buffers of its own
            own = (g.to_local() if isinstance(g, DTensor) else g for g in gradients)
            self.kept = sum(g.numel() for g in own) / sum(g.numel() for g in gradients)
        loss = original(task, model, batch)
        step = (self.made - 1) // task._config.gradient_accumulation_steps + 1
        return Loss(loss.sum * float("nan"), loss.parts) if step == self._nan else loss

    def _read(self, original: Any, tensor: torch.Tensor, *args: Any) -> Any:
        code = sys._getframe(2).f_code
        part = code.co_filename.rpartition("bsmeta/")[2]
        if part.startswith(("training/", "tasks/", "models/")):
            self.reads[f"{part}: {code.co_name}"] += 1
        return original(tensor, *args)


def trained(config: CausalLMConfig, stage: int | str | None, observed: Observed) -> list[float]:
    """Trains with the trainer; returns the losses."""
    AcceleratorState._reset_state(reset_partial_state=True)
    task = CausalLanguageModel(config)
    with observed.watching():
        reshards = True if stage == "FSDP2" else None
        running.run_training(config, task, deepspeed_config(config, stage), StopRequest(), reshards)
    chunks = task._chunked is not None and task._chunked.exceeds_limit(128)
    assert chunks == (config.loss_chunk_logits < 128 * 4096)
    events = map(json.loads, (Path(config.out_dir) / "metrics.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "step"]


def main(config: CausalLMConfig) -> int:
    losses_by_variant = {}
    for variant in json.loads(os.environ["VARIANTS"]):
        name, stage = variant.pop("name"), variant.pop("stage", None)
        observed = Observed(variant.pop("lag", None), variant.pop("nan", None))
        one = replace(config, out_dir=f"{config.out_dir}/{name}", **variant)
        losses = bare(one) if name == "bare" else trained(one, stage, observed)
        losses_by_variant[name] = {
            "losses": losses,
            **observed.types,
            "kept": observed.kept,
            "collectives": observed.collectives,
            "reads": dict(observed.reads),
        }
    if os.environ.get("RANK", "0") == "0":
        print("FOUND", json.dumps(losses_by_variant))
    return 0


if __name__ == "__main__":
    sys.path.pop(0)
    run_entry_point(main, CausalLMConfig, "demo")
