"""Measures the speed of the data stream in tokens per CPU second, from documents to batches.

    python experiments/benchmarks/stream.py --config-name v2 \
        data_config.train_file='shards/*.jsonl.gz' seconds=20 rounds=5

accepts every training key and prints a JSON line for each backend of the tokenizer: with
`data_config.tokenizer_backend=auto`, the default, for all that can run it, which take turns,
otherwise for the configured one. The metrics are medians of the rounds: `tokens` (without padding),
`cpu_s` (of all threads and loader processes), `wall_s`, `documents`, `fill` (share of the sequences
that is not padding), `rss_mb` (memory of this process and its loaders at the end).

A window of documents is built at once and yielded batch by batch. So that the work measured matches
the batches counted, there is one stream per loader process, and the clock runs from the beginning
of one window to the beginning of another.

Before and after, for a quarter of the time each, a plain loop tokenizes the same texts one at a
time and does nothing else, as a baseline for the machine. `plain` is its speed in tokens per CPU
second, `stream` that of the stream, `times_plain` their ratio. With `plain=true` only the plain
loop runs. `stream_peers.py` compares the stream with pipelines of other libraries.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from common import cpu_seconds, own_arguments, resident_mb
from transformers import PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.data.batch import StepData
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import list_shards
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.data.text.tokenizer import (
    BACKENDS,
    UnavailableBackendError,
    compute_byte_lengths,
    load_tokenizer,
)
from bsmeta.metadata.decoding import make_decoder

PLAIN_TEXTS = 1000
OWN_KEYS = {"seconds": "20", "rounds": "1", "plain": "false"}


class Meter:
    """Counts tokens, documents and positions, and the time since the meter was created."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()
        self._tokens = self._documents = self._places = 0

    def add(self, tokens: int, documents: int, places: int) -> None:
        """Add to the counts; `places` is the number of positions, tokens and padding."""
        self._tokens += tokens
        self._documents += documents
        self._places += places

    def seconds(self) -> float:
        """Wall-clock time since the meter was created."""
        return time.perf_counter() - self._wall

    def result(self) -> dict[str, Any]:
        """The metrics so far."""
        return {
            "tokens": self._tokens,
            "cpu_s": round(cpu_seconds() - self._cpu, 3),
            "wall_s": round(self.seconds(), 3),
            "documents": self._documents,
            "fill": round(self._tokens / self._places, 4),
            "rss_mb": round(resident_mb(), 1),
        }


def measure_stream(
    config: CausalLMConfig, tokenizer: PreTrainedTokenizerBase, seconds: float
) -> dict[str, Any]:
    """Read micro-batches for at least `seconds`, from the start of a window to that of another."""
    data = replace(config.data_config, num_streams=max(config.data_config.num_workers, 1))
    stream = TrainStream(
        data,
        tokenizer,
        seed=config.seed,
        rank=0,
        world_size=1,
        global_batch_size=data.per_device_train_batch_size,
    )
    steps = iter(stream)
    window = window_of(next(steps))
    meter = Meter()
    for step in steps:
        (batch,) = step.micro_batches
        places = batch.tensors["input_ids"].numel()
        meter.add(batch.tokens, int(batch.counts["documents"]), places)
        before, window = window, window_of(step)
        if window != before and meter.seconds() >= seconds:
            break
    return meter.result()


def window_of(step: StepData) -> tuple[int, ...]:
    """The window that stream 0 is in after a step; () before stream 0 was read."""
    state = step.state["streams"].get(0)
    return (state["epoch"], state["share"], state["window"]) if state else ()


def measure(
    config: CausalLMConfig, tokenizer: PreTrainedTokenizerBase, seconds: float
) -> dict[str, Any]:
    """Measure the stream, between two runs of the plain loop."""
    loops = [measure_plain(config, tokenizer, seconds / 4)]
    result = measure_stream(config, tokenizer, seconds)
    loops.append(measure_plain(config, tokenizer, seconds / 4))
    stream = result["tokens"] / result["cpu_s"]
    plain = sum(one["tokens"] for one in loops) / sum(one["cpu_s"] for one in loops)
    return result | {
        "stream": round(stream),
        "plain": round(plain),
        "times_plain": round(stream / plain, 2),
    }


def measure_plain(
    config: CausalLMConfig, tokenizer: PreTrainedTokenizerBase, seconds: float
) -> dict[str, Any]:
    """Measure the encoding of texts one after the other; reading them is not measured."""
    plain_texts = list(itertools.islice(texts(config), PLAIN_TEXTS))
    meter = Meter()
    for text in itertools.cycle(plain_texts):
        tokens = len(tokenizer.backend_tokenizer.encode(text).ids)
        meter.add(tokens, 1, tokens)
        if meter.seconds() >= seconds:  # after one text at least, however busy the machine is
            break
    return meter.result()


def texts(config: CausalLMConfig) -> Iterator[str]:
    """Yield the texts of the training shards."""
    decoder = make_decoder(config.data_config.metadata_config, config.data_config.columns)
    for shard in list_shards(config.data_config):
        reader = open_shard(shard.path)
        while lines := reader.read(reader.line, 256):
            yield from (decoder.decode(line).text for line in lines)
        reader.close()


def backends_to_measure(config: CausalLMConfig, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The configured backend; of `auto`, all that can run the tokenizer."""
    configured = config.data_config.tokenizer_backend
    if configured != "auto":
        return [configured]
    if compute_byte_lengths(tokenizer.backend_tokenizer) is None:
        return ["hf"]
    names = []
    for name, make_backend in BACKENDS.items():
        try:
            make_backend(tokenizer.backend_tokenizer)
        except UnavailableBackendError:
            continue
        names.append(name)
    return names


def measure_backends(config: CausalLMConfig, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Measure the stream with each backend in turns."""
    tokenizer = load_tokenizer(config)
    results: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for name in backends_to_measure(config, tokenizer):
            data = replace(config.data_config, tokenizer_backend=name)
            result = measure(replace(config, data_config=data), tokenizer, seconds)
            results.setdefault(name, []).append(result)
    return [{"tokenizer_backend": name} | medians(rows) for name, rows in results.items()]


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each metric."""
    return {name: statistics.median(row[name] for row in results) for name in results[0]}


def main(config: CausalLMConfig) -> None:
    """Run the benchmark and print the results."""
    seconds = float(OWN["seconds"])
    if OWN["plain"] == "true":
        print(json.dumps(measure_plain(config, load_tokenizer(config), seconds)))
        return
    for result in measure_backends(config, seconds, int(OWN["rounds"])):
        print(json.dumps(result))


if __name__ == "__main__":
    OWN = own_arguments(OWN_KEYS)
    run_entry_point(main, CausalLMConfig, "v2")
