"""Small shards, a small tokenizer, and whole runs of the stream put together from their ranks."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.batch import MicroBatch, StepData
from bsmeta.data.stream.train_stream import TrainStream

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "12", "cafés", "😀"]


def bpe_tokenizer(texts: list[str], vocab_size: int = 320) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer with an EOS token, trained on `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of about 300 entries."""
    return bpe_tokenizer([" ".join(WORDS)] * 3)


def word_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """Returns a tokenizer with a token for each word, and for each word after a space."""
    return bpe_tokenizer([form for word in words for form in (word, f" {word}")] * 9, 1000)


def page(number: int, words: int) -> dict[str, Any]:
    """Returns a document whose text begins with its number, with a url, a title and html tags."""
    text = f"{number} " + " ".join(WORDS[(number + i) % len(WORDS)] for i in range(words))
    tags = [
        {
            "key": "html",
            "type": "local",
            "value": "b",
            "char_start_idx": start,
            "char_end_idx": min(start + 5, len(text)),
            "html_attrs": {"attrs": ["class"], "values": ["strong"]},
        }
        for start in range(0, len(text), 60)
    ]
    return {
        "text": text,
        "url": f"https://example.org/{number}",
        "metadata_url": [
            {"key": "url", "type": "global", "value": f"https://example.org/{number}"}
        ],
        "metadata_title": [{"key": "title", "type": "global", "value": f"Page {number}"}],
        "metadata_html": tags,
    }


def pages(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Returns documents of 1 to 40 words."""
    return [page(first + i, 1 + (first + i) * 7 % 40) for i in range(count)]


def write_shard(path: Path, documents: list[dict[str, Any]]) -> Path:
    """Writes a `.jsonl.gz` shard."""
    path.write_bytes(gzip.compress("".join(f"{json.dumps(d)}\n" for d in documents).encode()))
    return path


def write_shards(folder: Path, sizes: list[int]) -> Path:
    """Writes shards of the given numbers of documents, and returns their folder."""
    for number, size in enumerate(sizes):
        write_shard(folder / f"part-{number:02}.jsonl.gz", pages(size, first=1000 * number))
    return folder


def small_config(folder: Path, **changes: Any) -> DataConfig:
    """Returns a configuration for small shards; values may include metadata keys."""
    metadata: dict[str, Any] = {"metadata_list": ["html", "title", "url"], "max_seq_len": 64}
    metadata |= {name: changes.pop(name) for name in list(changes) if name in METADATA_KEYS}
    values: dict[str, Any] = {
        "train_file": str(folder),
        "num_streams": 8,
        "window_documents": 8,
        "per_device_train_batch_size": 2,
    }
    return DataConfig(**values | changes, metadata_config=MetadataConfig(**metadata))


METADATA_KEYS = set(MetadataConfig.__dataclass_fields__)


@dataclass
class Run:
    """Steps of a run over all its ranks.

    Attributes:
        steps: For each step its tensors [global batch, L], rows in the order of the run.
        documents: For each step its documents, sorted.
        state: State that the run would save after the last step.
    """

    steps: list[dict[str, torch.Tensor]]
    documents: list[list[str]]
    state: dict[str, Any]


def run(
    config: DataConfig,
    steps: int,
    *,
    batch: int = 8,
    world_size: int = 1,
    state: dict[str, Any] | None = None,
    seed: int = 1,
    total: int | None = None,
    decay_start: int | None = None,
    is_branch: bool = False,
) -> Run:
    """Takes some steps on every rank and joins the global batches.

    `total` is the number of steps of the metadata schedule, `decay_start` the step at which
    the learning rate begins to fall; `is_branch`: `state` is of a run that continues differently.
    """
    tokenizer = small_tokenizer()
    parts = []
    for rank in range(world_size):
        stream = TrainStream(
            config,
            tokenizer,
            seed=seed,
            rank=rank,
            world_size=world_size,
            global_batch_size=batch,
            max_train_steps=total,
            decay_start=decay_start,
            is_branch=is_branch,
            state=state,
        )
        parts.append(list(itertools.islice(iter(stream), steps)))
    merged = stream.merge([part[-1].state for part in parts])
    return Run(
        steps=[global_step(parts, step) for step in range(steps)],
        documents=[
            sorted({name for batch in of_step(parts, step) for name in batch.documents})
            for step in range(steps)
        ],
        # As a checkpoint holds it: through JSON.
        state=json.loads(json.dumps({"fingerprint": stream.fingerprint, **merged})),
    )


def of_step(parts: list[list[StepData]], step: int) -> list[MicroBatch]:
    """Returns the micro-batches of a step of all ranks."""
    return [batch for part in parts for batch in part[step].micro_batches]


def global_step(parts: list[list[StepData]], step: int) -> dict[str, torch.Tensor]:
    """Joins a step: sequence g is row g // W of rank g % W; narrow rows are padded with 0."""
    ranks = [of_step([part], step) for part in parts]
    width = max(
        batch.tensors["input_ids"].shape[1]
        for batches_of_rank in ranks
        for batch in batches_of_rank
    )

    def rows(batch: MicroBatch, name: str) -> torch.Tensor:
        tensor = batch.tensors[name]
        return tensor if tensor.dim() == 1 else functional.pad(tensor, (0, width - tensor.shape[1]))

    return {
        name: torch.stack(
            [
                torch.cat([rows(batch, name) for batch in batches_of_rank])
                for batches_of_rank in ranks
            ],
            dim=1,
        ).flatten(0, 1)
        for name in ranks[0][0].tensors
    }


@dataclass
class Taken:
    """A step of one micro-batch, and the position of each stream that was read in it."""

    tensors: dict[str, torch.Tensor]
    documents: list[str]
    counts: dict[str, float]
    tokens: int
    padding: int
    weight: float
    states: dict[int, dict[str, int]]


def taken(stream: TrainStream) -> Iterator[Taken]:
    """Yields the steps of a stream whose steps have one micro-batch."""
    before: dict[int, dict[str, int]] = {}
    for step in stream:
        (batch,) = step.micro_batches
        now = step.state["streams"]
        changed = {k: v for k, v in now.items() if before.get(k) != v}
        before = now
        yield Taken(
            batch.tensors, batch.documents, batch.counts, batch.tokens, batch.padding,
            batch.weight, changed,
        )  # fmt: skip


def batches(config: DataConfig, count: int) -> list[Taken]:
    """Returns the first steps of a stream with global batches of two."""
    stream = TrainStream(
        config, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
    )
    return list(itertools.islice(taken(stream), count))


def same(first: Run, second: Run) -> bool:
    """Whether two runs had the same global batches."""
    return first.documents == second.documents and all(
        torch.equal(a[name], b[name])
        for a, b in zip(first.steps, second.steps, strict=True)
        for name in {*a, *b}
    )
