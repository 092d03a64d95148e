"""Compares the time to the first batch of a resumed stream with that of a fresh start.

    python experiments/benchmarks/resume.py --config-name v2 \
        data_config.train_file='shards/*.jsonl.gz' raw_mb=700 repeats=3

writes one large `.jsonl.gz` to a temporary folder (the pages of the training shards, repeated) and
reads it as one stream in this process. It compares the times from a new `TrainStream` to its first
micro-batch: `fresh_ms` from the beginning, `resumed_ms` inside a window at 10, 50 and 90% of the
shard, and at 50% of it in the tenth epoch. Each builds one window, so the overhead of a resumed run
is the time to find its window. `without_index_ms` is the same without access points, as for a run
that stopped before they were built. Prints one JSON line.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from common import best_ms, large_shard, own_arguments, sample_pages

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.lines import IndexCache
from bsmeta.data.stream.plan import Position
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.data.text.tokenizer import load_tokenizer

OWN_KEYS = {"raw_mb": "700", "repeats": "3"}
PLACES = {"10%": (0, 0.1), "50%": (0, 0.5), "90%": (0, 0.9), "50% of epoch 10": (9, 0.5)}


class Starts:
    """Starts a stream repeatedly.

    Args:
        config: The configuration of the run.
        data: The data configuration of the run: one shard, one stream.
    """

    def __init__(self, config: CausalLMConfig, data: DataConfig) -> None:
        self._arguments: dict[str, Any] = {
            "tokenizer": load_tokenizer(config),
            "seed": config.seed,
            "rank": 0,
            "world_size": 1,
            "global_batch_size": data.per_device_train_batch_size,
        }
        self.fingerprint = TrainStream(data, **self._arguments).fingerprint

    def first_batch(self, data: DataConfig, position: Position | None = None) -> None:
        """Create a stream at a position (None: the beginning) and take one batch."""
        state = None
        if position is not None:
            state = {"fingerprint": self.fingerprint, "streams": {0: position.state()}}
        next(iter(TrainStream(data, **self._arguments, state=state)))


def measure(config: CausalLMConfig, raw_mb: float, repeats: int, folder: Path) -> dict[str, Any]:
    """Time a fresh start and resumed starts."""
    path, count = large_shard(folder, sample_pages(config), raw_mb)
    data = dataclasses.replace(
        config.data_config, train_file=str(path), num_streams=1, cache_dir=str(folder / "cache")
    )
    bare = dataclasses.replace(data, cache_dir=str(folder / "empty"))
    IndexCache(Cache(data.cache_dir)).build(str(path))
    starts = Starts(config, data)
    windows = -(-count // data.window_documents)
    # With a single stream, the number of sequences already yielded can be any.
    positions = {
        place: Position(epoch=epoch, window=int((windows - 1) * part), sequence=1, emitted=1)
        for place, (epoch, part) in PLACES.items()
    }
    starts.first_batch(data)  # the first start in a process also imports modules and warms up
    last = positions["90%"]
    return {
        "raw_mb": raw_mb,
        "windows": windows,
        "fresh_ms": best_ms(partial(starts.first_batch, data), repeats),
        "resumed_ms": {
            place: best_ms(partial(starts.first_batch, data, position), repeats)
            for place, position in positions.items()
        },
        # Only once: reading requests the index, so it exists afterwards.
        "without_index_ms": {"90%": best_ms(partial(starts.first_batch, bare, last), 1)},
    }


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the result."""
    with tempfile.TemporaryDirectory() as folder:
        result = measure(config, float(OWN["raw_mb"]), int(OWN["repeats"]), Path(folder))
    print(json.dumps(result))


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, CausalLMConfig, "v2")
