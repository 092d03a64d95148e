"""The loops that `loop.py` compares, each in its own process, over the same batches.

The batches drive all of them: after the last batch of a round, a loop waits until it is its turn
again (`Rounds`), so that only one loop runs at a time. A loop that prefetches is interrupted at a
different point of its step than one that does not, but always at the same point, so a round is a
whole number of steps for each loop.
"""

from __future__ import annotations

import itertools
import os
import resource
import socket
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.steps import BatchPlan
from bsmeta.data.batch import StepData, Stream
from bsmeta.tasks.causal_lm.task import CausalLanguageModel

POOL = 16
"""Number of steps whose batches are built beforehand and reused, with feed=memory."""


class Rounds:
    """Steps, in rounds that the parent process starts one by one.

    The first step of a round is not measured, since it may have to reallocate GPU memory.

    Args:
        data: An endless iterator of steps.
        steps: Number of measured steps per round.
        parent: Pipe that receives True for another round or False for the end, and sends the
            measurements of each round.
    """

    def __init__(self, data: Iterator[StepData], steps: int, parent: Connection) -> None:
        self._data = data
        self._steps = steps
        self._parent = parent
        self.fingerprint: dict[str, Any] = {}
        self.state: dict[str, Any] = {}

    def merge(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Required by the trainer, which saves nothing here."""
        return states[0]

    def __iter__(self) -> Iterator[StepData]:
        while self._parent.recv():
            yield next(self._data)
            self._parent.send((yield from self._measured()))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # the other loops need the memory now
        # Whatever the loop would still do, such as save: it is not measured, and takes minutes for
        # a large model. (Gloo's threads may also abort an interpreter that shuts down.)
        os._exit(0)

    def _measured(self) -> Generator[StepData, None, dict[str, float]]:
        wait_for_device()
        wall, cpu, waited, tokens = time.perf_counter(), time.process_time(), 0.0, 0
        for _ in range(self._steps):
            asked = time.perf_counter()
            step = next(self._data)
            waited += time.perf_counter() - asked
            tokens += sum(batch.tokens for batch in step.micro_batches)
            yield step
        wait_for_device()
        wall = time.perf_counter() - wall
        return {
            "tokens": tokens,
            "wall_s": wall,
            "cpu_s": time.process_time() - cpu,
            "data_wait_share": waited / wall,
            "peak_memory_gb": peak_memory_gb(),
        }


def wait_for_device() -> None:
    """Wait until the GPU has finished all work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory_gb() -> float:
    """Peak GPU memory allocation, or without a GPU the peak resident size of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def work(
    arm: str, engine: str, feed: str, steps: int, config: CausalLMConfig, pipe: Connection
) -> None:
    """Main function of one loop's process, which ends when there are no more rounds."""
    torch.manual_seed(config.seed)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    if engine == "torch":
        del os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    task = CausalLanguageModel(config)

    def rounds() -> Rounds:
        stream = iter(task.train_stream(0, 1, None))
        if feed == "memory":
            stream = itertools.cycle(list(itertools.islice(stream, POOL)))
        return Rounds(stream, steps, pipe)

    ARMS[arm](config, task, rounds, zero_config(config) if engine == "zero2" else None)


def zero_config(config: CausalLMConfig) -> dict[str, Any]:
    """DeepSpeed's configuration for one process with ZeRO-2."""
    plan = BatchPlan.of(config, processes=1)
    return {
        "zero_optimization": {"stage": 2, "overlap_comm": torch.cuda.is_available()},
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "train_batch_size": plan.global_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "gradient_clipping": config.gradient_clipping,
        "bf16": {"enabled": config.mixed_precision == "bf16"},
        "steps_per_print": 10**9,
    }


def bare(config: CausalLMConfig, task: CausalLanguageModel, rounds: Any, zero: Any) -> None:
    """The baseline: only model, optimizer and gradient clipping."""
    from bsmeta.training.optimization import build_optimizer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = task.build_model().to(device).train()
    optimizer = build_optimizer(model, config)
    engine: Any = None
    if zero is not None:
        import deepspeed

        from bsmeta.training.ranks.distributed_op import prepare_cpu_op

        prepare_cpu_op()
        deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo")
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=zero)
    half = config.mixed_precision == "bf16" and zero is None
    for data in rounds():
        step = data.micro_batches
        scale = 1.0 / sum(batch.weight for batch in step)
        for batch in step:
            tensors = {k: v.to(device, non_blocking=True) for k, v in batch.tensors.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = task.compute_batch_losses(engine or model, tensors)[0] * scale
            if engine is None:
                loss.backward()
            else:
                engine.backward(loss * len(step))
                engine.step()
        if engine is None:
            nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clipping)
            optimizer.step()
            optimizer.zero_grad()


def ours(config: CausalLMConfig, task: CausalLanguageModel, rounds: Any, zero: Any) -> None:
    """The trainer of this project, with metrics at every step."""
    from bsmeta.core.signals import StopRequest
    from bsmeta.training.run import run_training

    class Fed(CausalLanguageModel):
        """The task with batches from the benchmark."""

        def train_stream(self, rank: int, world_size: int, state: Any) -> Stream:
            return rounds()

    run_training(config, Fed(config), zero, StopRequest())


def trainer(config: CausalLMConfig, task: CausalLanguageModel, rounds: Any, zero: Any) -> None:
    """Transformers' Trainer, logging every step, with its own loss and the unmodified model."""
    import transformers

    class Batches(IterableDataset):
        """Whole micro-batches in the input format of transformers' models."""

        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            for batch in (batch for step in rounds() for batch in step.micro_batches):
                ids, mask = batch.tensors["input_ids"], batch.tensors["loss_mask"]
                yield {
                    "input_ids": ids,
                    "position_ids": batch.tensors["position_ids"],
                    "labels": ids.masked_fill(~mask, -100),
                }

    class Fed(transformers.Trainer):
        """The Trainer with batches from the benchmark."""

        def get_train_dataloader(self) -> DataLoader:
            return DataLoader(Batches(), batch_size=None)

    plain = CausalLanguageModel(replace(config, loss_chunk_logits=0))
    arguments = transformers.TrainingArguments(
        output_dir=config.out_dir,
        per_device_train_batch_size=config.data_config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        max_grad_norm=config.gradient_clipping,
        learning_rate=config.learning_rate,
        max_steps=config.max_train_steps,
        warmup_steps=config.num_warmup_steps,
        bf16=config.mixed_precision == "bf16",
        deepspeed=zero,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available() and zero is None,
    )
    fed = Fed(model=plain.build_model(), args=arguments)
    fed.remove_callback(transformers.PrinterCallback)  # standard output is for the result
    fed.train()


ARMS = {"bare": bare, "ours": ours, "trainer": trainer}
