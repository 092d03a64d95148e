"""Measures what `data_config.row_budget=text` costs, beside rows that text and metadata share.

    python experiments/benchmarks/row_budget.py --config-name demo \
        data_config.train_file='shards/*.jsonl.gz' train_steps=20 rounds=5

accepts every training key. Each arm (text alone, URL, all global types, these and html, given to
every document) reads all shards once, and trains the model on the first `train_steps`
micro-batches, under both budgets, in turns, in processes of their own. Prints one JSON line for
each arm and budget: `fill` (share of positions that are not padding), `text` (share that are text
tokens with loss), `targets` (text tokens with loss in a micro-batch), `left_out` (metadata tokens
for which a row had no room, per micro-batch), `stream` and `train` (text tokens with loss per CPU
second of the stream, and of training; medians of the rounds), and for `text` their ratios to
`sequence` (median, smallest and largest of the rounds).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from common import cpu_seconds, own_arguments
from stream_arms import Passes, alternate

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.data.batch import MicroBatch
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from bsmeta.training.optimization import build_optimizer

OWN_KEYS = {"train_steps": "20", "rounds": "5"}
GLOBAL = ["title", "url", "datasource", "website_description", "timestamp", "length"]
ARMS = {"text alone": [], "URL": ["url"], "global types": GLOBAL, "and html": ["html", *GLOBAL]}
BUDGETS = ("sequence", "text")
SPEEDS = ("stream", "train")


def arm_config(config: CausalLMConfig, types: list[str], budget: str) -> CausalLMConfig:
    """The configuration of an arm, with loss on text only."""
    metadata = dataclasses.replace(
        config.data_config.metadata_config,
        metadata_list=types,
        metadata_column_list=None,
        metadata_probability=1.0,
        random_sample_metadata=False,
        random_sample_metadata_weights={},
        treat_local_metadata_as_regular_text=False,
    )
    data = dataclasses.replace(
        config.data_config,
        metadata_config=metadata,
        row_budget=budget,
        num_streams=1,
        num_workers=0,
    )
    return dataclasses.replace(config, data_config=data, gradient_accumulation_steps=1)


def read(config: CausalLMConfig) -> dict[str, float]:
    """Reads all shards once: the sums of the micro-batches' counts, and CPU seconds."""
    stream = CausalLanguageModel(config).train_stream(0, 1, None)
    begin = cpu_seconds()
    whole_pass = itertools.takewhile(lambda step: step.state["streams"][0]["epoch"] == 0, stream)
    sums = total(step.micro_batches[0] for step in whole_pass)
    return {**sums, "cpu_s": cpu_seconds() - begin}


def train(config: CausalLMConfig, steps: int) -> dict[str, float]:
    """Trains on the first micro-batches; the same counts, and CPU seconds without reading."""
    torch.set_num_threads(1)
    task = CausalLanguageModel(config)
    torch.manual_seed(config.seed)
    model = task.build_model()
    optimizer = build_optimizer(model, config)
    stream = itertools.islice(task.train_stream(0, 1, None), steps)
    batches = [step.micro_batches[0] for step in stream]
    task.loss(model, batches[0].tensors)  # the first call also checks what each token sees
    begin = cpu_seconds()
    for batch in batches:
        (task.loss(model, batch.tensors).sum / batch.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {**total(batches), "cpu_s": cpu_seconds() - begin}


def total(batches: Iterable[MicroBatch]) -> dict[str, float]:
    """Sums of the counts of micro-batches."""
    sums = dict.fromkeys(("batches", "tokens", "positions", "targets", "left_out"), 0.0)
    for batch in batches:
        sums["batches"] += 1
        sums["tokens"] += batch.tokens
        sums["positions"] += batch.tokens + batch.padding
        sums["targets"] += batch.weight
        sums["left_out"] += batch.counts["metadata_tokens_left_out"]
    return sums


def speeds(passes: Passes, name: str) -> np.ndarray:
    """Text tokens with loss per CPU second in each round."""
    return np.array([found["targets"] / found["cpu_s"] for found in passes[name]])


def summary(arm: str, budget: str, passes: dict[str, Passes]) -> dict[str, object]:
    """The metrics of an arm under a budget."""
    counts = passes["stream"][f"{arm}/{budget}"][0]
    found: dict[str, object] = {
        "arm": arm,
        "row_budget": budget,
        "fill": round(counts["tokens"] / counts["positions"], 4),
        "text": round(counts["targets"] / counts["positions"], 4),
        "targets": round(counts["targets"] / counts["batches"], 1),
        "left_out": round(counts["left_out"] / counts["batches"], 1),
    }
    for what in SPEEDS:
        own = speeds(passes[what], f"{arm}/{budget}")
        found[what] = round(float(np.median(own)))
        if budget == "text":
            ratio = own / speeds(passes[what], f"{arm}/sequence")
            found[f"{what}_ratio"] = _spread(ratio)
    return found


def _spread(values: np.ndarray) -> Sequence[float]:
    return [round(float(one), 3) for one in (np.median(values), values.min(), values.max())]


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the results."""
    rounds, steps = int(OWN["rounds"]), int(OWN["train_steps"])
    arms = {
        f"{arm}/{budget}": arm_config(config, types, budget)
        for arm, types in ARMS.items()
        for budget in BUDGETS
    }
    passes = {
        "stream": alternate({name: (own,) for name, own in arms.items()}, rounds, read),
        "train": alternate({name: (own, steps) for name, own in arms.items()}, rounds, train),
    }
    for arm, budget in itertools.product(ARMS, BUDGETS):
        print(json.dumps(summary(arm, budget, passes)))
        sys.stdout.flush()


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, CausalLMConfig, "demo")
