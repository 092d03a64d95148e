"""The same global batches for every number of processes and loader workers, and every split.

Each combination begins a run, continues one begun by another, and continues that again: a
run of three legs, in the course of which every stream comes into its second epoch. The loader
workers are processes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from bsmeta.config.data import DataConfig
from bsmeta.data.stream.train_stream import TrainStream
from tests.data.helpers import (
    WORDS,
    Run,
    run,
    same,
    small_config,
    small_tokenizer,
    taken,
    write_shard,
)

STREAMS = BATCH = 32
SIZES = [300, 340, 320, 320, 310, 330, 288, 352]  # documents of each shard: 2,560
LEGS = (5, 3, 6)  # steps
STEPS = sum(LEGS)
COMBINATIONS = [
    (world_size, workers, micro_batch)
    for world_size, micro_batches in {
        1: (1, 8, 32),
        2: (1, 4, 16),
        4: (1, 2, 8),
        8: (1, 2, 4),
    }.items()
    for workers in (0, 2, 4)
    for micro_batch in micro_batches
]
QUICK = (0, 12, 18)
"""Combinations whose three legs have 1 to 8 processes and 0 to 4 loader workers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 1 to 12 words: each fits into a sequence, so that it must occur just once."""
    folder = tmp_path_factory.mktemp("shards")
    for number, size in enumerate(SIZES):
        documents = [document(1000 * number + i) for i in range(size)]
        write_shard(folder / f"part-{number:02}.jsonl.gz", documents)
    return folder


def document(number: int) -> dict[str, Any]:
    words = [WORDS[(number + i) % len(WORDS)] for i in range(1 + number * 7 % 12)]
    return {"text": " ".join(words), "title": f"Page {number}"}


def config(folder: Path, **changes: Any) -> DataConfig:
    values = {"num_streams": STREAMS, "window_documents": 16, "metadata_list": ["title"]}
    return small_config(folder, **values | {"max_seq_len": 128} | changes)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    """The reference run: one process without loader workers, never stopped."""
    return run(config(folder, per_device_train_batch_size=32), STEPS, batch=BATCH)


def join_legs(*legs: Run) -> Run:
    """Joins consecutive legs of a run into one run."""
    steps = [step for leg in legs for step in leg.steps]
    return Run(steps, [names for leg in legs for names in leg.documents], legs[-1].state)


def test_each_epoch_of_a_stream_has_every_document_once(folder: Path, whole: Run) -> None:
    """Counted sequence by sequence in the reference run."""
    stream = TrainStream(
        config(folder, per_device_train_batch_size=1),
        small_tokenizer(),
        seed=1,
        rank=0,
        world_size=1,
        global_batch_size=1,
    )
    epochs = dict.fromkeys(range(STREAMS), 0)
    seen: Counter[tuple[int, int, str]] = Counter()
    steps: list[set[str]] = [set() for _ in range(STEPS)]
    for number, batch in enumerate(itertools.islice(taken(stream), STEPS * BATCH)):
        ((owner, state),) = batch.states.items()
        epochs[owner] = state["epoch"]
        seen.update((owner, epochs[owner], name) for name in batch.documents)
        steps[number // BATCH].update(batch.documents)
    assert [sorted(names) for names in steps] == whole.documents
    assert set(seen.values()) == {1}
    assert set(epochs.values()) == {1}  # the whole first epoch, and a part of the second
    first = {name: owner for owner, epoch, name in seen if epoch == 0}
    assert len(first) == sum(SIZES) == sum(epoch == 0 for _, epoch, _ in seen)
    assert all(first[name] == owner for owner, epoch, name in seen if epoch == 1)


def make_param(number: int) -> ParameterSet:
    """Returns the parameter of a combination; those not in QUICK are marked slow."""
    marks = [] if number in QUICK else [pytest.mark.slow]
    return pytest.param(number, marks=marks, id="-".join(map(str, COMBINATIONS[number])))


@pytest.mark.long
@pytest.mark.parametrize("number", map(make_param, range(len(COMBINATIONS))))
def test_three_legs_of_other_sizes_equal_one_uninterrupted_run(
    folder: Path, whole: Run, number: int
) -> None:
    legs: list[Run] = []
    for leg, steps in enumerate(LEGS):
        world_size, workers, micro_batch = COMBINATIONS[(number + 5 * leg) % len(COMBINATIONS)]
        changes = {"num_workers": workers, "per_device_train_batch_size": micro_batch}
        state = legs[-1].state if legs else None
        part = run(
            config(folder, **changes), steps, batch=BATCH, world_size=world_size, state=state
        )
        legs.append(part)
    assert same(join_legs(*legs), whole)
    assert legs[-1].state == whole.state
