"""The sequences of a rank in the order of the run, as micro-batches, through loader processes.

Each loader process reads some of the rank's streams and hands over blocks of sequences; the i-th
sequence of the rank comes from process i mod N. A block is one message, whatever it holds, which is
why it is not a single sequence. A torch DataLoader asks its processes in turn and so keeps the
order by itself; the state of what was consumed travels with the sequences.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bsmeta.config.errors import UserError
from bsmeta.data.packed import PackedSequence, SequenceNotes

DTYPES = {"input_ids": torch.int64, "position_ids": torch.int64}
"""What the model wants otherwise than it is stored."""


@dataclass(slots=True)
class MicroBatch:
    """What one rank feeds to the model at once: b sequences of L tokens.

    Attributes:
        tensors: input_ids and position_ids (int64), loss_mask (bool), kinds (uint8) and
            document_types (int32), each [b, L]; see `PackedSequence`.
        weight: Number of targets.
        tokens: Number of tokens that are not padding.
        documents: Names of the documents with a piece in it.
        states: For each stream in it, its position behind its last sequence.
        counts: Sums for the log; the same names in every batch.
    """

    tensors: dict[str, torch.Tensor]
    weight: float
    tokens: int
    documents: list[str]
    states: dict[int, dict[str, int]]
    counts: dict[str, float]


@dataclass(slots=True)
class Block:
    """Sequences of one loader process: their arrays stacked to [sequences, L], and their notes."""

    tensors: dict[str, torch.Tensor]
    notes: list[SequenceNotes]


class SequenceBlocks(IterableDataset):
    """Blocks of `size` sequences of one loader process; endless.

    Args:
        sequences: Makes the sequences of loader process w.
        size: Sequences in a block.
    """

    def __init__(self, sequences: Callable[[int], Iterator[PackedSequence]], size: int) -> None:
        self._sequences = sequences
        self._size = size

    def __iter__(self) -> Iterator[Block | UserError]:
        worker = get_worker_info()
        sequences = self._sequences(worker.id if worker else 0)
        while True:
            try:
                yield stacked(list(itertools.islice(sequences, self._size)))
            except UserError as error:
                yield error  # raised in the trainer's process, where no stack trace buries it
                return


def stacked(sequences: list[PackedSequence]) -> Block:
    """One block of sequences of one length."""
    names = sequences[0].arrays
    tensors = {
        name: torch.from_numpy(np.stack([one.arrays[name] for one in sequences])) for name in names
    }
    return Block(tensors, [one.notes for one in sequences])


def micro_batches(
    sequences: Callable[[int], Iterator[PackedSequence]], size: int, num_workers: int
) -> Iterator[MicroBatch]:
    """Micro-batches of `size` sequences; endless.

    Args:
        sequences: Makes the sequences of loader process w; together, one of each in turn, they
            are the rank's sequences in order.
        size: Sequences in a micro-batch.
        num_workers: Loader processes; 0 makes everything in this one.

    Raises:
        UserError: What a loader process raised.
    """
    loader = DataLoader(
        SequenceBlocks(sequences, size),
        batch_size=None,
        num_workers=num_workers,
        worker_init_fn=_set_up_worker,
    )
    blocks = iter(loader)
    try:
        while True:
            in_turn = list(itertools.islice(blocks, max(num_workers, 1)))
            for block in in_turn:
                if isinstance(block, UserError):
                    raise block
            yield from merged(in_turn, size)
    finally:
        # At once: kept alive by the error's traceback, the iterator would be collected as part of
        # a cycle, its queues first, and then wait 10 s in vain for each of its processes.
        del blocks


def merged(blocks: list[Block], size: int) -> Iterator[MicroBatch]:
    """Micro-batches of blocks of the same length, taking a sequence of each block in turn."""
    pin = torch.cuda.is_available()
    notes = list(
        itertools.chain.from_iterable(zip(*(block.notes for block in blocks), strict=True))
    )
    tensors = {}
    for name in blocks[0].tensors:
        whole = torch.stack([block.tensors[name] for block in blocks], dim=1).flatten(0, 1)
        whole = whole.to(DTYPES.get(name, whole.dtype))
        tensors[name] = whole.pin_memory() if pin else whole
    for first in range(0, len(notes), size):
        part = slice(first, first + size)
        yield micro_batch({name: whole[part] for name, whole in tensors.items()}, notes[part])


def micro_batch(tensors: dict[str, torch.Tensor], notes: list[SequenceNotes]) -> MicroBatch:
    """The micro-batch of some sequences."""
    counts: Counter[str] = Counter()
    for one in notes:
        counts.update(one.counts)
    documents = dict.fromkeys(name for one in notes for name in one.documents)
    return MicroBatch(
        tensors=tensors,
        weight=float(tensors["loss_mask"].sum()),
        tokens=sum(one.tokens for one in notes),
        documents=list(documents),
        states={one.stream: one.state for one in notes},
        counts={name: float(count) for name, count in counts.items()},
    )


def _set_up_worker(_: int) -> None:
    """A loader process leaves stopping to the trainer, which must first save what it has.

    Schedulers signal every process of a job, so signals of others are passed over (and the handlers
    inherited from the trainer do not run); a SIGTERM of the trainer itself ends the process.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_the_trainer, daemon=True).start()


def _end_with_the_trainer() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
