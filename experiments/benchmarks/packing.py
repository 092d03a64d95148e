"""Compares packing methods by the fill of sequences and by the number of documents split.

    python experiments/benchmarks/packing.py --config-name v2 \
        data_config.train_file='shards/*.jsonl.gz' documents=4096

builds the chunks of the first `documents` documents as training does (metadata, tokens, cuts at
`max_seq_len`) and packs their lengths with three methods: `pad` gives each chunk its own sequence;
`concatenate` joins all chunks of a window and cuts every `max_seq_len` tokens; `best_fit` is the
method of training, over windows of several sizes. For each method it reports `fill` (the share of
positions that are not padding), `split` (the share of documents that would fit into a sequence but
are split over two) and `us` (microseconds of packing per document). Prints one JSON line.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator

import numpy as np
from common import own_arguments

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import list_shards
from bsmeta.data.stream.window import Window
from bsmeta.data.stream.window_maker import WindowMaker
from bsmeta.data.text.chunks import pack_best_fit, pack_separately
from bsmeta.data.text.tokenizer import load_tokenizer

OWN_KEYS = {"documents": "4096"}
WINDOWS = (64, 256, 512, 1024, 4096)

Cuts = list[list[int]]
"""Lengths of the chunks of each document."""


def cut_documents(config: CausalLMConfig) -> Iterator[list[int]]:
    """Yield the chunk lengths of each document of the training shards."""
    data = config.data_config
    maker = WindowMaker(data, load_tokenizer(config), config.seed)
    for shard in list_shards(data):
        reader = open_shard(shard.path)
        while lines := reader.read(reader.line, 64):
            window = Window(
                0, shard, range(reader.line - len(lines), reader.line), lines, reader.damage
            )
            for one in maker.prepare_documents(window)[0]:
                yield [len(chunk) for chunk in one.chunks]
        reader.close()


def pad(cuts: Cuts, capacity: int) -> tuple[int, int]:
    """Number of sequences, and of documents that fit but are split (none: they are one chunk)."""
    return len(pack_separately(list(itertools.chain.from_iterable(cuts)), capacity)), 0


def concatenate(cuts: Cuts, capacity: int) -> tuple[int, int]:
    """The same for concatenated chunks; only the last sequence is not full."""
    lengths = np.array([sum(chunks) for chunks in cuts])
    ends = np.cumsum(lengths)
    split = (lengths <= capacity) & ((ends - lengths) // capacity != (ends - 1) // capacity)
    return -(-int(ends[-1]) // capacity), int(split.sum())


def fit(cuts: Cuts, capacity: int) -> tuple[int, int]:
    """The same for best fit, which splits no chunk."""
    return len(pack_best_fit(list(itertools.chain.from_iterable(cuts)), capacity)), 0


WAYS = {"pad": pad, "concatenate": concatenate, "best_fit": fit}


def packed(way: str, cuts: Cuts, window: int, capacity: int) -> dict[str, float]:
    """Pack window by window with a method; returns its metrics."""
    begin, sequences, split = time.perf_counter(), 0, 0
    for first in range(0, len(cuts), window):
        more, torn = WAYS[way](cuts[first : first + window], capacity)
        sequences, split = sequences + more, split + torn
    seconds = time.perf_counter() - begin
    tokens = sum(itertools.chain.from_iterable(cuts))
    return {
        "fill": round(tokens / (sequences * capacity), 4),
        "split": round(split / len(cuts), 4),
        "us": round(seconds / len(cuts) * 1e6, 2),
    }


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the result."""
    capacity = config.data_config.metadata_config.max_seq_len
    cuts = list(itertools.islice(cut_documents(config), int(OWN["documents"])))
    result = {
        "documents": len(cuts),
        "max_seq_len": capacity,
        "pad": packed("pad", cuts, len(cuts), capacity),
        "concatenate": packed("concatenate", cuts, len(cuts), capacity),
        "best_fit": {
            str(window): packed("best_fit", cuts, window, capacity)
            for window in WINDOWS
            if window <= len(cuts)
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, CausalLMConfig, "v2")
