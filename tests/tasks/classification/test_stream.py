"""The steps of all ranks over a real database do not depend on the numbers of ranks and workers."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from bsmeta.data.batch import MicroBatch
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.examples import Chunk, Examples, open_examples
from bsmeta.tasks.classification.task import order_of, train_stream
from tests.tasks.classification.helpers import bert_tokenizer, data_config, write_leanings

BATCH = 16
TOKENIZER = bert_tokenizer()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    folder = tmp_path_factory.mktemp("table")
    return open_examples(data_config(write_leanings(folder, rows=90)), TOKENIZER)


def collate(chunks: list[Chunk]) -> MicroBatch:
    tokens = sum(len(chunk.ids) for chunk in chunks)
    return MicroBatch(
        tensors={"label": torch.tensor([chunk.label for chunk in chunks])},
        weight=float(len(chunks)),
        tokens=tokens,
        documents=[f"{chunk.source}.{chunk.number} {chunk.ids}" for chunk in chunks],
    )


def global_steps(
    examples: Examples, world_size: int, workers: int, accumulation: int, steps: int,
    state: dict[str, Any] | None = None,
) -> tuple[list[list[str]], dict[str, Any]]:  # fmt: skip
    """The chunks of each step over all ranks, sorted, and the state after the last."""
    config = ClassificationConfig(
        data_config=data_config(
            examples.database,
            per_device_train_batch_size=BATCH // world_size // accumulation,
            num_workers=workers,
        ),
        gradient_accumulation_steps=accumulation,
    )
    ranks = [
        train_stream(config, examples, collate, rank=rank, world_size=world_size, state=state)
        for rank in range(world_size)
    ]
    data = [list(islice(iter(rank), steps)) for rank in ranks]
    found = [
        sorted(name for rank in parts for batch in rank.micro_batches for name in batch.documents)
        for parts in zip(*data, strict=True)
    ]
    state = ranks[0].merge([rank[-1].state for rank in data])
    return found, {**state, "fingerprint": ranks[0].fingerprint}


def steps_per_epoch(examples: Examples) -> int:
    config = ClassificationConfig(data_config=data_config(examples.database))
    return order_of(config, examples, world_size=1).steps_per_epoch


def test_an_epoch_has_every_chunk_once_and_its_last_step_the_rest(examples: Examples) -> None:
    chunks = examples.read(examples.chunks("train"))
    names = [name for chunk in chunks for name in collate([chunk]).documents]
    steps = steps_per_epoch(examples)
    found, _ = global_steps(examples, 1, 0, 1, 2 * steps)
    sizes = [BATCH] * (steps - 1) + [len(chunks) - BATCH * (steps - 1)]
    assert 0 < sizes[-1] < BATCH
    assert [len(step) for step in found] == 2 * sizes
    assert Counter(chain(*found[:steps])) == Counter(names)
    assert Counter(chain(*found)) == Counter(2 * names)
    assert found[:steps] != found[steps:]


def test_all_chunks_of_a_text_are_trained_on_with_its_label(examples: Examples) -> None:
    labels = {row: label for row, _, label in examples.texts("train")}
    for chunk in examples.read(examples.chunks("train")):
        assert chunk.label == labels[chunk.source]
        assert 3 <= len(chunk.ids) <= 16


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_steps_are_the_same_for_every_launch(
    examples: Examples, world_size: int, workers: int
) -> None:
    steps = 2 * steps_per_epoch(examples) + 1
    expected, _ = global_steps(examples, 1, 0, 1, steps)
    for accumulation in (1, 2):
        found, state = global_steps(examples, world_size, workers, accumulation, steps)
        assert found == expected
        assert state["steps"] == steps


def test_a_resume_at_any_step_has_the_steps_that_remain(examples: Examples) -> None:
    steps = 2 * steps_per_epoch(examples)
    expected, _ = global_steps(examples, 1, 0, 1, steps)
    for done in range(1, steps):
        _, state = global_steps(examples, 2, 0, 1, done)
        found, _ = global_steps(examples, 4, 0, 1, steps - done, state)
        assert found == expected[done:]


def test_a_stream_is_of_its_data(examples: Examples, tmp_path: Path) -> None:
    config = ClassificationConfig(data_config=data_config(examples.database))
    stream = train_stream(config, examples, collate, rank=0, world_size=1, state=None)
    assert stream.fingerprint["data_config.max_length"] == 16
    assert len(stream.fingerprint["content of the CSV file"]) == 16
