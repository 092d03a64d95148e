"""Measures the memory of a data loader, and whether it grows from epoch to epoch.

    python experiments/benchmarks/memory.py --config-name v2 \
        data_config.train_file='shards/*.jsonl.gz' data_config.tokenizer_backend=auto epochs=3

reads all training shards as one stream in this process, and measures its memory (resident, with
all libraries): `imports_mb` before the stream is created, `first_window_mb` after the first window,
`epochs_mb` at the end of each epoch, and the maximum, `peak_mb`. Prints one JSON line.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
from typing import Any

from common import own_arguments, resident_mb

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.data.text.tokenizer import load_tokenizer

OWN_KEYS = {"epochs": "3"}


def peak_mb() -> float:
    """Peak memory of this process in MB (Linux reports it in KB, macOS in bytes)."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def measure(config: CausalLMConfig, epochs: int) -> dict[str, Any]:
    """Read the given number of epochs of a stream; returns the measurements."""
    data = dataclasses.replace(config.data_config, num_streams=1, num_workers=0)
    tokenizer = load_tokenizer(config)
    result: dict[str, Any] = {"imports_mb": round(resident_mb(), 1), "documents": 0}
    stream = TrainStream(
        data,
        tokenizer,
        seed=config.seed,
        rank=0,
        world_size=1,
        global_batch_size=data.per_device_train_batch_size,
        max_train_steps=config.max_train_steps,
    )
    ends: list[float] = []
    for step in stream:
        (batch,) = step.micro_batches
        result["documents"] += int(batch.counts["documents"])
        result.setdefault("first_window_mb", round(resident_mb(), 1))
        if step.state["streams"][0]["epoch"] > len(ends):
            ends.append(round(resident_mb(), 1))
            if len(ends) == epochs:
                break
    return result | {"epochs_mb": ends, "peak_mb": round(peak_mb(), 1)}


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the result."""
    print(json.dumps(measure(config, int(OWN["epochs"]))))


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, CausalLMConfig, "v2")
