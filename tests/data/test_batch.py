"""Micro-batches, and the worker processes that prepare them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from torch.utils.data import DataLoader

from bsmeta.data.batch import set_up_worker
from bsmeta.data.stream.train_stream import (
    COLLECTION_THRESHOLD,
    SequenceBlocks,
)
from bsmeta.data.text.chunks import PackedSequence
from bsmeta.training.garbage import GarbageCollection
from tests.data.sequences import sequence


def collecting(_: int) -> Iterator[PackedSequence]:
    """Sequences that begin with the state of the garbage collector in this process."""
    while True:
        yield sequence(gc.isenabled(), 1, types=[gc.get_threshold()[0]])


def test_a_process_forked_while_garbage_collection_is_off_turns_it_on() -> None:
    with GarbageCollection():
        blocks = SequenceBlocks(collecting, block_size=1, row_length=1, pad_id=0)
        loader = DataLoader(blocks, batch_size=None, num_workers=1, worker_init_fn=set_up_worker)
        block = next(iter(loader))
        assert not gc.isenabled()
    assert block.tensors["input_ids"].tolist() == [[True]]
    assert block.tensors["document_types"].tolist() == [[COLLECTION_THRESHOLD]]
