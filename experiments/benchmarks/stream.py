"""How fast documents become batches: tokens per CPU second of the whole stream.

    python experiments/benchmarks/stream.py --config-name v2 \
        data_config.train_file='shards/*.jsonl.gz' tokenizer_backend=auto seconds=20

takes every key that training takes, reads what rank 0 of one process would train on, and prints
one JSON line: `tokens` (that are not padding), `cpu_s` (of all threads and loader processes),
`wall_s`, `documents`, `fill` (share of the sequences that is not padding), `rss_mb` (memory of this
process and its loaders at the end). With `plain=true` it instead runs the same texts through a bare
loop over the tokenizer, one text at a time, with nothing before or behind it: the yardstick for the
machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bsmeta.config.compose import run_entry_point
from bsmeta.config.schema import TrainConfig
from bsmeta.data.lines import LineReader
from bsmeta.data.shards import list_shards
from bsmeta.data.stream import TrainStream
from bsmeta.metadata.records import DocumentDecoder
from bsmeta.metadata.rendering import Renderer

OWN_KEYS = {"tokenizer_backend": "auto", "seconds": "20", "plain": "false"}


def own_arguments() -> dict[str, str]:
    """Takes this script's own keys off the command line; the rest is for Hydra."""
    pairs = [argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument]
    found = {name: value for name, value in pairs if name in OWN_KEYS}
    sys.argv[1:] = [one for one in sys.argv[1:] if one.split("=", 1)[0] not in OWN_KEYS]
    return OWN_KEYS | found


def cpu_seconds() -> float:
    """CPU time of this process and its children, all threads."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def resident_mb() -> float:
    """Memory of this process and its children."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(process.memory_info().rss for process in processes) / 2**20


def measure_stream(
    config: TrainConfig, tokenizer: PreTrainedTokenizerBase, seconds: float
) -> dict[str, Any]:
    """Takes micro-batches for so many seconds of wall-clock time."""
    data = config.data_config
    stream = TrainStream(
        data,
        tokenizer,
        seed=config.seed,
        rank=0,
        world_size=1,
        global_batch_size=data.per_device_train_batch_size,
    )
    tokens = documents = places = 0
    wall, cpu = time.perf_counter(), cpu_seconds()
    for batch in stream:
        tokens += batch.tokens
        documents += int(batch.counts["documents"])
        places += batch.tensors["input_ids"].numel()
        if time.perf_counter() - wall > seconds:
            break
    return {
        "tokens": tokens,
        "cpu_s": round(cpu_seconds() - cpu, 3),
        "wall_s": round(time.perf_counter() - wall, 3),
        "documents": documents,
        "fill": round(tokens / places, 4),
        "rss_mb": round(resident_mb(), 1),
    }


def measure_plain(
    config: TrainConfig, tokenizer: PreTrainedTokenizerBase, seconds: float
) -> dict[str, Any]:
    """Encodes the plain texts one after the other; reading them does not count."""
    decoder = DocumentDecoder(config.data_config.metadata_config)
    tokens = documents = 0
    cpu_s = wall_s = 0.0
    for text in texts(config, decoder):
        wall, cpu = time.perf_counter(), time.process_time()
        tokens += len(tokenizer.backend_tokenizer.encode(text).ids)
        cpu_s += time.process_time() - cpu
        wall_s += time.perf_counter() - wall
        documents += 1
        if wall_s > seconds:
            break
    return {
        "tokens": tokens,
        "cpu_s": round(cpu_s, 3),
        "wall_s": round(wall_s, 3),
        "documents": documents,
        "fill": 1.0,
        "rss_mb": round(resident_mb(), 1),
    }


def texts(config: TrainConfig, decoder: DocumentDecoder) -> Iterator[str]:
    """The texts of the training shards, again and again."""
    while True:
        for shard in list_shards(config.data_config):
            reader = LineReader(shard.path)
            while lines := reader.read(reader.line, 256):
                yield from (decoder.decode(line).text for line in lines)
            reader.close()


def main(config: TrainConfig) -> None:
    """Measures and prints."""
    tokenizer = AutoTokenizer.from_pretrained(config.tokenizer_name or config.model_name)
    special = Renderer(config.data_config.metadata_config).special_tokens()
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    measure = measure_plain if OWN["plain"] == "true" else measure_stream
    print(json.dumps(measure(config, tokenizer, float(OWN["seconds"]))))


if __name__ == "__main__":
    OWN = own_arguments()
    sys.argv.append(f"data_config.tokenizer_backend={OWN['tokenizer_backend']}")
    run_entry_point(main, TrainConfig, "v2")
