"""Measures padding and training speed of the spelling tasks with and without length buckets.

    python experiments/benchmarks/spelling_batches.py texts.txt

Prints one JSON line for each task and form of batches (buckets of `--span` tokens, or one bucket
for all lengths): the share of padding in an epoch, the share of the budget that real tokens fill,
and real tokens per second of CPU time (forward, backward and update; a median over the steps).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bsmeta.core.process import run_and_report
from bsmeta.data.batch import MicroBatch
from bsmeta.tasks.spelling.config import SecConfig, SedWordsConfig, SmallModelConfig, SpellingConfig
from bsmeta.tasks.spelling.correction import CandidateCorrection
from bsmeta.tasks.spelling.task import WordDetection

ONE_BUCKET = 1_000_000


def make_task(config: SpellingConfig) -> WordDetection | CandidateCorrection:
    """Makes the task of a configuration."""
    if isinstance(config, SedWordsConfig):
        return WordDetection(config)
    assert isinstance(config, SecConfig)
    return CandidateCorrection(config)


def measure_batches(config: SpellingConfig, steps: int) -> dict[str, Any]:
    """Measures the padding of an epoch, and the tokens per CPU second of some of its steps.

    Args:
        config: The configuration of the run.
        steps: Number of steps to train on.
    """
    task = make_task(config)
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    epoch_steps = task.steps_per_epoch(1)
    stream = itertools.islice(task.train_stream(0, 1, None), epoch_steps)
    batches = [step.micro_batches[0] for step in stream]
    tokens = sum(batch.tokens for batch in batches)
    padding = sum(batch.padding for batch in batches)

    # Evenly over the epoch, whose steps are in random order; the first warms up.
    chosen = batches[:: max(1, epoch_steps // (steps + 1))][: steps + 1]
    rates = [train_on_batch(task, model, optimizer, batch) for batch in chosen][1:]
    return {
        "steps": epoch_steps,
        "padding_share": round(padding / (tokens + padding), 4),
        "filled_share": round(tokens / (epoch_steps * config.batch_max_length), 4),
        "tokens_per_cpu_second": round(statistics.median(rates)),
        "largest_step": max(batch.tokens + batch.padding for batch in batches),
    }


def train_on_batch(
    task: WordDetection | CandidateCorrection,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: MicroBatch,
) -> float:
    """Trains on a batch; returns its real tokens per CPU second."""
    start = time.process_time()
    (task.loss(model, batch.tensors).sum / batch.weight).backward()
    optimizer.step()
    optimizer.zero_grad()
    return batch.tokens / (time.process_time() - start)


def main() -> None:
    """Reads the texts, and prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, help=".txt or .jsonl")
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--budget", type=int, default=4096)
    parser.add_argument("--span", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as store:
        for schema in (SedWordsConfig, SecConfig):
            for span in (arguments.span, ONE_BUCKET):
                config = schema(
                    datasets=[str(arguments.texts)],
                    dataset_limits=[arguments.samples],
                    val_splits=[],
                    max_characters=256,
                    store_dir=store,
                    batch_max_length=arguments.budget,
                    bucket_span=span,
                    small_model=SmallModelConfig(width=128, layers=2),
                )
                measurements = measure_batches(config, arguments.steps)
                name = "one bucket" if span == ONE_BUCKET else f"buckets of {span}"
                row = {"task": config.task, "batches": name, **measurements}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(run_and_report(main))
