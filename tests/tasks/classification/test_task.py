"""The steps of all ranks over a real database do not depend on the numbers of ranks and workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from bsmeta.data.batch import MicroBatch
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.examples import Chunk, Examples, open_examples
from bsmeta.tasks.classification.task import TextClassifier, build_micro_batch
from tests.tasks.classification.helpers import bert_tokenizer, data_config, write_leanings

BATCH = 16

TOKENIZER = bert_tokenizer()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    folder = tmp_path_factory.mktemp("table")
    return open_examples(data_config(write_leanings(folder, rows=90)), TOKENIZER)


def task_of(examples: Examples, folder: Path, **more: Any) -> TextClassifier:
    """A task on the table, with a micro-batch of `BATCH` chunks unless another is named."""
    data = data_config(examples.database, **{"per_device_train_batch_size": BATCH, **more})
    return TextClassifier(ClassificationConfig(data_config=data, model_name=str(folder)))


def names_of(batch: MicroBatch) -> list[str]:
    """The row and the ids of each chunk of a micro-batch; what only fills it has no document."""
    columns = (batch.tensors[name] for name in ("input_ids", "attention_mask"))
    return [
        f"{name} {ids[mask > 0].tolist()}"
        for name, ids, mask in zip(batch.documents, *columns, strict=False)
    ]


def global_steps(
    examples: Examples, folder: Path, world_size: int, workers: int, accumulation: int, steps: int,
    state: dict[str, Any] | None = None,
) -> tuple[list[list[str]], dict[str, Any]]:  # fmt: skip
    """The chunks of each step over all ranks, sorted, and the state after the last."""
    rows = BATCH // world_size // accumulation
    task = task_of(examples, folder, per_device_train_batch_size=rows, num_workers=workers)
    config = replace(task.config, gradient_accumulation_steps=accumulation)
    task = TextClassifier(config)
    ranks = [task.train_stream(rank, world_size, state) for rank in range(world_size)]
    data = [list(islice(iter(rank), steps)) for rank in ranks]
    found = [
        sorted(name for rank in parts for batch in rank.micro_batches for name in names_of(batch))
        for parts in zip(*data, strict=True)
    ]
    state = ranks[0].merge([rank[-1].state for rank in data])
    return found, {**state, "fingerprint": ranks[0].fingerprint}


def test_an_epoch_has_every_chunk_once_and_its_last_step_the_rest(
    examples: Examples, encoder: Path
) -> None:
    chunks = examples.read(examples.list_chunks("train"))
    names = [f"{examples.database.name}:{chunk.source} {chunk.ids}" for chunk in chunks]
    steps = task_of(examples, encoder).steps_per_epoch(1)
    found, _ = global_steps(examples, encoder, 1, 0, 1, 2 * steps)
    sizes = [BATCH] * (steps - 1) + [len(chunks) - BATCH * (steps - 1)]
    assert 0 < sizes[-1] < BATCH
    assert [len(step) for step in found] == 2 * sizes
    assert Counter(chain(*found[:steps])) == Counter(names)
    assert Counter(chain(*found)) == Counter(2 * names)
    assert found[:steps] != found[steps:]


def test_all_chunks_of_a_text_are_trained_on_with_its_label(examples: Examples) -> None:
    labels = {row: label for row, _, label in examples.read_texts("train")}
    for chunk in examples.read(examples.list_chunks("train")):
        assert chunk.label == labels[chunk.source]
        assert 3 <= len(chunk.ids) <= 16


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_steps_are_the_same_for_every_launch(
    examples: Examples, encoder: Path, world_size: int, workers: int
) -> None:
    steps = 2 * task_of(examples, encoder).steps_per_epoch(1) + 1
    expected, _ = global_steps(examples, encoder, 1, 0, 1, steps)
    for accumulation in (1, 2):
        found, state = global_steps(examples, encoder, world_size, workers, accumulation, steps)
        assert found == expected
        assert state["steps"] == steps


def test_a_resume_at_any_step_has_the_steps_that_remain(examples: Examples, encoder: Path) -> None:
    steps = 2 * task_of(examples, encoder).steps_per_epoch(1)
    expected, _ = global_steps(examples, encoder, 1, 0, 1, steps)
    for done in range(1, steps):
        _, state = global_steps(examples, encoder, 2, 0, 1, done)
        found, _ = global_steps(examples, encoder, 4, 0, 1, steps - done, state)
        assert found == expected[done:]


def test_a_stream_is_of_its_data(examples: Examples, encoder: Path) -> None:
    stream = task_of(examples, encoder).train_stream(0, 1, None)
    assert stream.fingerprint["data_config.max_length"] == 16
    assert len(stream.fingerprint["content of the CSV file"]) == 16


def test_a_micro_batch_carries_the_weight_of_its_labels() -> None:
    chunks = [Chunk([2, 7, 8, 9, 3], 1, 4, 0, "abc"), Chunk([2, 7, 3], 2, 9, 1, "a")]
    batch = build_micro_batch(chunks, bert_tokenizer(), [1.0, 4.0, 0.5], "leanings.csv")
    assert batch.tensors["input_ids"].tolist() == [[2, 7, 8, 9, 3], [2, 7, 3, 0, 0]]
    assert batch.tensors["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch.tensors["labels"].tolist() == [1, 2]
    assert batch.tensors["weights"].tolist() == [4.0, 0.5]
    assert (batch.weight, batch.tokens, batch.padding) == (4.5, 8, 2)
    assert batch.documents == ["leanings.csv:4", "leanings.csv:9"]
    assert batch.counts == {"chunks": 2.0, "weight": 4.5}
