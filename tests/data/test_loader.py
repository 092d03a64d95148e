"""Sequences into blocks and micro-batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader

from bsmeta.data.batch import set_up_worker
from bsmeta.data.stream.plan import Position
from bsmeta.data.stream.train_stream import (
    CONTAINERS,
    SequenceBlocks,
    merge_blocks,
    stack_sequences,
)
from bsmeta.data.text.chunks import PackedSequence
from bsmeta.training.distributed import GarbageCollection


def sequence(first: int, *lengths: int, types: list[int]) -> PackedSequence:
    """A sequence of chunks of these lengths whose ids count from `first` on."""
    size = sum(lengths)
    return PackedSequence(
        ids=np.arange(first, first + size, dtype=np.int32),
        token_types=np.ones(size, np.uint8),
        loss_mask=np.ones(size, np.bool_),
        lengths=np.array(lengths),
        types=np.array(types, np.int32),
        documents=(f"a:{first}",),
        counts=np.array([1.0]),
        stream=0,
        position_after=Position(sequence=first),
    )


def test_positions_begin_anew_in_each_chunk_and_in_the_padding() -> None:
    block = stack_sequences(
        [sequence(10, 2, 1, types=[1, 2]), sequence(20, 3, types=[4])], 5, pad=7
    )
    found = {name: tensor.tolist() for name, tensor in block.tensors.items()}
    assert found["input_ids"] == [[10, 11, 12, 7, 7], [20, 21, 22, 7, 7]]
    assert found["position_ids"] == [[0, 1, 0, 0, 1], [0, 1, 2, 0, 1]]
    assert found["document_types"] == [[1, 1, 2, 0, 0], [4, 4, 4, 0, 0]]
    assert found["loss_mask"] == [[True, True, True, False, False]] * 2
    assert block.tensors["position_ids"].dtype == torch.int32


def test_positions_run_through_a_sequence_whose_documents_see_each_other() -> None:
    sequences = [sequence(10, 2, 1, types=[1, 2]), sequence(20, 3, types=[4])]
    block = stack_sequences(sequences, 5, pad=7, joined=True)
    assert block.tensors["position_ids"].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert block.tensors["document_types"].tolist() == [[1, 1, 2, 0, 0], [4, 4, 4, 0, 0]]


def test_blocks_of_several_processes_are_merged_in_turn() -> None:
    blocks = [
        stack_sequences(
            [sequence(first, 1, types=[0]), sequence(first + 1, 1, types=[0])], 1, pad=0
        )
        for first in (10, 20)
    ]
    for some, expected in ((blocks, [[10, 20], [11, 21]]), (blocks[:1], [[10, 11]])):
        batches = [batch for batch, _ in merge_blocks(some, 2, ["documents"])]
        assert [batch.tensors["input_ids"][:, 0].tolist() for batch in batches] == expected
        assert all(batch.tensors["input_ids"].dtype == torch.int64 for batch in batches)
        assert [batch.documents for batch in batches] == [[f"a:{n}" for n in e] for e in expected]
        assert [batch.weight for batch in batches] == [2.0] * len(batches)


def test_what_was_there_before_the_loader_is_not_looked_through_again() -> None:
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)  # as in a process that has had no loader
    blocks = SequenceBlocks(lambda _: iter([sequence(0, 1, types=[0])]), size=1, length=1, pad=0)
    next(iter(blocks))
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    next(iter(blocks))
    assert gc.get_freeze_count() <= frozen


def collecting(_: int) -> Iterator[PackedSequence]:
    """Sequences that begin with the state of the garbage collector in this process."""
    while True:
        yield sequence(gc.isenabled(), 1, types=[gc.get_threshold()[0]])


def test_a_process_forked_while_the_trainer_collects_no_garbage_collects_its_own() -> None:
    with GarbageCollection():
        blocks = SequenceBlocks(collecting, size=1, length=1, pad=0)
        loader = DataLoader(blocks, batch_size=None, num_workers=1, worker_init_fn=set_up_worker)
        block = next(iter(loader))
        assert not gc.isenabled()
    assert block.tensors["input_ids"].tolist() == [[True]]
    assert block.tensors["document_types"].tolist() == [[CONTAINERS]]
