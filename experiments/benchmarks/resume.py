"""How long a resumed stream takes to its first batch, against a fresh start.

    python experiments/benchmarks/resume.py --config-name v2 \
        data_config.train_file='shards/*.jsonl.gz' raw_mb=700 repeats=3

makes one large `.jsonl.gz` in a temporary folder (the pages of the training shards again and again)
and reads it as one stream in this process. Compared are the times from a new `TrainStream` to its
first micro-batch: `fresh_ms` from the beginning, `resumed_ms` inside a window at 10, 50 and 90% of
the shard, and at 50% of it in the tenth epoch. Each of them makes one window, so what a resumed run
adds is finding its window. `without_index_ms` is the same without access points, as in a run that
is stopped before they are built. Prints one JSON line.
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
from bsmeta.config.compose import run_entry_point
from bsmeta.config.data import DataConfig
from bsmeta.data.cache import Cache
from bsmeta.data.index import IndexCache
from bsmeta.data.plan import Position
from bsmeta.data.stream import TrainStream
from bsmeta.data.tokenizer import load_tokenizer

OWN_KEYS = {"raw_mb": "700", "repeats": "3"}
PLACES = {"10%": (0, 0.1), "50%": (0, 0.5), "90%": (0, 0.9), "50% of epoch 10": (9, 0.5)}


class Starts:
    """Starts a stream again and again.

    Args:
        config: The run.
        data: The data of the run: one shard, one stream.
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
        """Makes a stream that stands at a position (None: the beginning) and takes one batch."""
        state = None
        if position is not None:
            state = {"fingerprint": self.fingerprint, "streams": {0: position.state()}}
        next(iter(TrainStream(data, **self._arguments, state=state)))


def measure(config: CausalLMConfig, raw_mb: float, repeats: int, folder: Path) -> dict[str, Any]:
    """A fresh start, and resumed ones."""
    path, count = large_shard(folder, sample_pages(config), raw_mb)
    data = dataclasses.replace(
        config.data_config, train_file=str(path), num_streams=1, cache_dir=str(folder / "cache")
    )
    bare = dataclasses.replace(data, cache_dir=str(folder / "empty"))
    IndexCache(Cache(data.cache_dir)).build(str(path))
    starts = Starts(config, data)
    windows = -(-count // data.window_documents)
    # One stream alone may have given out any number of sequences.
    positions = {
        place: Position(epoch=epoch, window=int((windows - 1) * part), sequence=1, emitted=1)
        for place, (epoch, part) in PLACES.items()
    }
    starts.first_batch(data)  # the first one of a process also imports and warms up
    last = positions["90%"]
    return {
        "raw_mb": raw_mb,
        "windows": windows,
        "fresh_ms": best_ms(partial(starts.first_batch, data), repeats),
        "resumed_ms": {
            place: best_ms(partial(starts.first_batch, data, position), repeats)
            for place, position in positions.items()
        },
        # Once: afterwards the index is there, because reading asks for it.
        "without_index_ms": {"90%": best_ms(partial(starts.first_batch, bare, last), 1)},
    }


def main(config: CausalLMConfig) -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as folder:
        result = measure(config, float(OWN["raw_mb"]), int(OWN["repeats"]), Path(folder))
    print(json.dumps(result))


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, CausalLMConfig, "v2")
