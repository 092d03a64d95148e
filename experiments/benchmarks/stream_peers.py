r"""Compares the speed of the stream with pipelines of other libraries, on the same shards.

    python experiments/benchmarks/stream_peers.py --config-name v2 \
        data_config.train_file='shards/*.jsonl.gz' rounds=5 data_config.tokenizer_backend=auto

accepts every training key. Each pipeline (see `stream_arms`) has a process of its own and reads all
shards once a round; they take turns, and the first round is a warm-up. Prints one JSON line for
each peer, with medians over the rounds:

    peer                 datasets: streaming, `map` and packing; tf.data: a padded row per chunk
    ours, theirs         tokens without padding per second of CPU time, of all threads
    ratio                ours / theirs in the same round
    our_fill, their_fill share of the positions that are not padding

`datasets` is compared with our stream without metadata (it reads the texts alone), tf.data with the
stream as configured (both train on the same text).
"""

from __future__ import annotations

import json
import statistics

from common import own_arguments
from stream_arms import ARMS, Passes, alternate, speeds

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point

OWN_KEYS = {"rounds": "5"}
PAIRS = {"datasets": "ours_text", "tf.data": "ours"}


def compare(passes: Passes, peer: str) -> dict[str, float | str]:
    """The metrics of a peer beside ours."""
    ours, theirs = speeds(passes, PAIRS[peer]), speeds(passes, peer)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "peer": peer,
        "ratio": round(statistics.median(ratios), 2),
        "ours": round(statistics.median(ours)),
        "theirs": round(statistics.median(theirs)),
        "our_fill": fill(passes, PAIRS[peer]),
        "their_fill": fill(passes, peer),
        "our_tokens": int(passes[PAIRS[peer]][0]["tokens"]),
        "their_tokens": int(passes[peer][0]["tokens"]),
        "rounds": len(ratios),
    }


def fill(passes: Passes, name: str) -> float:
    """Share of the positions that are not padding."""
    found = passes[name][0]
    return round(found["tokens"] / found["positions"], 4)


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the result."""
    passes = alternate({arm: (arm, config) for arm in ARMS}, int(OWN["rounds"]))
    for peer in PAIRS:
        backend = config.data_config.tokenizer_backend
        print(json.dumps(compare(passes, peer) | {"tokenizer_backend": backend}))


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, CausalLMConfig, "v2")
