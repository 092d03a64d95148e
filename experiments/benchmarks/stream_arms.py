"""Pipelines that `stream_peers` and `stream_formats` compare: each makes a pass over the shards.

The peers are written as their documentation and examples suggest, with the tokenizer of the
configuration as it is (`tokenizers`). What only ours does (masks, exact resuming, the same batches
for any number of processes) is not measured.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from common import cpu_seconds
from transformers import PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.io.remote.tensorflow_files import import_tensorflow
from bsmeta.data.io.shards import list_shards
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.data.text.tokenizer import load_tokenizer
from bsmeta.metadata.decoding import make_decoder
from bsmeta.metadata.rendering import Renderer
from bsmeta.metadata.sampling import TypeSampler

TEXTS_AT_ONCE = 1000  # the default of `map` in `datasets`, which the examples use
FILES, LINES, SHUFFLED = 4, 16, 1000  # files read in turns, lines of each, rows to draw from

Batches = Iterator[tuple[int, int]]
"""First (0, 0), when all is ready; then tokens (without padding) and positions of each batch."""


def ours(config: CausalLMConfig, tokenizer: PreTrainedTokenizerBase) -> Batches:
    """One epoch of the stream as it is configured."""
    data = dataclasses.replace(config.data_config, num_streams=1, num_workers=0)
    size = data.per_device_train_batch_size
    stream = TrainStream(
        data, tokenizer, seed=config.seed, rank=0, world_size=1, global_batch_size=size
    )
    yield 0, 0
    for step in stream:
        (batch,) = step.micro_batches
        yield batch.tokens, batch.tensors["input_ids"].numel()
        if step.state["streams"][0]["epoch"] > 0:
            return


def ours_text(config: CausalLMConfig, tokenizer: PreTrainedTokenizerBase) -> Batches:
    """The same without metadata."""
    length = config.data_config.metadata_config.max_seq_len
    metadata = MetadataConfig(metadata_list=[], max_seq_len=length)
    data = dataclasses.replace(config.data_config, metadata_config=metadata)
    return ours(dataclasses.replace(config, data_config=data), tokenizer)


def datasets_packed(config: CausalLMConfig, tokenizer: PreTrainedTokenizerBase) -> Batches:
    """The texts, streamed by `datasets`, tokenized and packed as in transformers' run_clm.py.

    Documents are concatenated and cut; what is left of each batch of documents is dropped.
    """
    from datasets import load_dataset
    from torch.utils.data import DataLoader
    from transformers import default_data_collator

    length = config.data_config.metadata_config.max_seq_len

    def tokenize(rows: dict[str, list[str]]) -> Any:
        return tokenizer([f"{text}{tokenizer.eos_token}" for text in rows["text"]])

    def group(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [token for row in lists for token in row] for name, lists in rows.items()}
        total = len(joined["input_ids"]) // length * length
        found = {
            name: [tokens[at : at + length] for at in range(0, total, length)]
            for name, tokens in joined.items()
        }
        return {**found, "labels": [row.copy() for row in found["input_ids"]]}

    paths = [str(shard.path) for shard in list_shards(config.data_config)]
    texts = load_dataset("json", data_files=paths, split="train", streaming=True)
    rows = texts.select_columns(["text"])
    rows = rows.map(tokenize, batched=True, batch_size=TEXTS_AT_ONCE, remove_columns=["text"])
    rows = rows.map(group, batched=True, batch_size=TEXTS_AT_ONCE)
    size = config.data_config.per_device_train_batch_size
    yield 0, 0
    for batch in DataLoader(rows, batch_size=size, collate_fn=default_data_collator):
        yield batch["input_ids"].numel(), batch["input_ids"].numel()


def tf_padded(config: CausalLMConfig, tokenizer: PreTrainedTokenizerBase) -> Batches:
    """Texts with metadata, encoded in a Python function of a tf.data pipeline, a row each.

    Lines are decoded, sampled and rendered by the code that the stream uses, so that only the
    pipeline around it differs. A document longer than a row continues in the next one.
    """
    tf = import_tensorflow()
    data = config.data_config
    length = data.metadata_config.max_seq_len
    decoder = make_decoder(data.metadata_config, data.columns)
    sampler = TypeSampler(data.metadata_config)
    renderer = Renderer(data.metadata_config)
    generator = random.Random(config.seed)

    def encode(line: bytes) -> np.ndarray:
        document = decoder.decode(line)
        found = renderer.render(document, sampler.draw(document, generator))
        ids = tokenizer(f"{found.prefix}{found.lead}{found.body}{found.suffix}")["input_ids"]
        ids.append(tokenizer.eos_token_id)
        rows = np.zeros((-(-len(ids) // length), 1 + length), np.int32)
        for row, at in zip(rows, range(0, len(ids), length), strict=True):
            chunk = ids[at : at + length]
            row[0] = len(chunk)
            row[1 : 1 + len(chunk)] = chunk
        return rows

    def rows_of(line: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(encode, [line], tf.int32), [None, 1 + length])

    def lines_of(path: Any) -> Any:
        return tf.data.TextLineDataset(path, compression_type="GZIP")

    paths = [str(shard.path) for shard in list_shards(data)]
    lines = tf.data.Dataset.from_tensor_slices(paths).interleave(
        lines_of, cycle_length=FILES, block_length=LINES, num_parallel_calls=tf.data.AUTOTUNE
    )
    rows = lines.map(rows_of, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    batches = rows.shuffle(SHUFFLED, seed=config.seed).batch(data.per_device_train_batch_size)
    yield 0, 0
    for batch in batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
        yield int(batch[:, 0].sum()), batch[:, 1:].size


ARMS = {"ours": ours, "ours_text": ours_text, "datasets": datasets_packed, "tf.data": tf_padded}


Passes = dict[str, list[dict[str, float]]]
"""Results of `one_pass` by the name of what was compared, one for each round."""


def alternate(
    arms: Mapping[str, tuple[Any, ...]],
    rounds: int,
    measure: Callable[..., dict[str, float]] | None = None,
) -> Passes:
    """Run pipelines in turns, each in a process of its own, in another order every round.

    Args:
        arms: The arguments of `measure` for each of what is compared.
        rounds: Rounds to measure, after one that is not.
        measure: What to run; None: `one_pass`.
    """
    context = multiprocessing.get_context("spawn")
    processes = {name: ProcessPoolExecutor(1, mp_context=context) for name in arms}
    passes: Passes = {name: [] for name in arms}
    order = list(arms)
    for number in range(rounds + 1):
        for name in order:
            found = processes[name].submit(measure or one_pass, *arms[name]).result()
            if number:
                passes[name].append(found)
        order = [*order[1:], order[0]]
    for process in processes.values():
        process.shutdown()
    return passes


def speeds(passes: Passes, name: str) -> list[float]:
    """Tokens per CPU second in each round."""
    return [found["tokens"] / found["cpu_s"] for found in passes[name]]


def one_pass(arm: str, config: CausalLMConfig) -> dict[str, float]:
    """Run a pipeline over all shards: its tokens, positions and CPU seconds of all threads."""
    batches = ARMS[arm](config, load_tokenizer(config))
    next(batches)
    begin = cpu_seconds()
    tokens, positions = map(sum, zip(*batches, strict=True))
    return {"tokens": tokens, "positions": positions, "cpu_s": cpu_seconds() - begin}
