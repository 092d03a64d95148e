"""What a stream yields, and the loader processes that produce it for sequences of documents.

A `Stream` yields the steps of one rank: micro-batches, and the data state after them. It is the
contract between all streams and the training loop, which share nothing else.

Each loader process reads some of the rank's logical streams and yields blocks of sequences; the
i-th sequence of the rank comes from process i mod N. Each block is one message between processes; a
block of several sequences saves messages. A torch DataLoader polls its processes in turn and thus
keeps the order; the state after each sequence travels with it.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bsmeta.core.errors import UserError
from bsmeta.data.stream.packing import PackedSequence
from bsmeta.data.stream.plan import Position

DTYPES = {"input_ids": torch.int64, "position_ids": torch.int64}
"""Inputs that the model needs in another dtype than the stored one."""

WIDTH_STEP = 64
"""Rows of varying length are padded to a multiple of this, so that there are few shapes."""

_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that the kernel sends when the parent exits

CONTAINERS = 50_000
"""New objects that set off a garbage collection; a window of documents has tens of thousands."""


@dataclass(slots=True)
class MicroBatch:
    """The input of one forward pass on one rank.

    Attributes:
        tensors: Inputs of `Task.loss`, on the host; the trainer moves them to the device.
        weight: Number of targets: the loss of a step is its summed loss over its summed weight.
            A micro-batch of weight 0 contributes neither loss nor gradient.
        tokens: Number of tokens that are not padding.
        padding: Number of tokens that are padding.
        documents: Names of the documents (or source rows) that contribute to it.
        targets: A hash of what it is trained to predict, where the order of that is known; runs on
            the same text have the same.
        counts: Additional sums for the log; the same names in every micro-batch of a run.
    """

    tensors: dict[str, torch.Tensor]
    weight: float
    tokens: int
    padding: int = 0
    documents: list[str] = field(default_factory=list)
    targets: str = ""
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepData:
    """One step of one rank.

    Attributes:
        micro_batches: The same number in every step and on every rank
            (`gradient_accumulation_steps`); the number of rows in them may vary.
        state: The position of this rank's part of the stream after the step; JSON-serializable.
        phase: Number of the data phase that the step belongs to, from 0; sums of
            `MicroBatch.counts` are reported per phase.
    """

    micro_batches: list[MicroBatch]
    state: dict[str, Any]
    phase: int = 0


class Stream(Protocol):
    """A resumable, endless source of this rank's steps."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The facts that must be equal for a state to be usable (shards, tokenizer, …)."""

    @property
    def state(self) -> dict[str, Any]:
        """This rank's state before its first step."""

    def __iter__(self) -> Iterator[StepData]:
        """The steps that follow the state."""

    def merge(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge the states of all ranks after a step into a run state usable by any world size."""


Positioned = tuple[MicroBatch, list[tuple[int, Position]]]


"""A micro-batch, and the position after each of its sequences in its stream, in their order."""


class Notes(NamedTuple):
    """The facts about a sequence besides its tokens."""

    tokens: int
    documents: tuple[str, ...]
    stream: int
    position_after: Position


@dataclass(slots=True)
class Block:
    """Sequences of one loader process.

    Attributes:
        tensors: Inputs of the model, each [sequences, L]; in a mixture also `sources`, the index
            of each sequence's source.
        counts: float64[sequences, counts].
        notes: One per sequence.
    """

    tensors: dict[str, torch.Tensor]
    counts: np.ndarray
    notes: list[Notes]


class SequenceBlocks(IterableDataset):
    """Blocks of sequences of one loader process; endless.

    Args:
        sequences: Yields the sequences of loader process w.
        length: Tokens of a padded sequence.
        joined: Whether positions run through a sequence (`cross_document_attention`) instead of
            restarting with each chunk.
        num_streams: Streams of each source, in a mixture; None without one.
    """

    def __init__(
        self,
        sequences: Callable[[int], Iterator[PackedSequence]],
        *,
        size: int,
        length: int,
        pad: int,
        joined: bool = False,
        num_streams: int | None = None,
    ) -> None:
        self._num_streams = num_streams
        self._sequences = sequences
        self._joined = joined
        self._size = size
        self._length = length
        self._pad = pad

    def __iter__(self) -> Iterator[Block | UserError]:
        worker = get_worker_info()
        if worker or not gc.get_freeze_count():  # a worker inherits what the trainer has frozen
            # Existing objects (mostly of libraries) are long-lived: scanning all of them in every
            # full collection would take a tenth of the time.
            gc.collect()
            gc.freeze()
            # Nothing here leaves cycles, but a window's documents would set off many collections.
            gc.set_threshold(CONTAINERS)
        sequences = self._sequences(worker.id if worker else 0)
        while True:
            try:
                block = list(itertools.islice(sequences, self._size))
            except UserError as error:
                yield error  # raised in the trainer's process, without a worker's stack trace
                return
            stack = stacked(block, self._length, self._pad, joined=self._joined)
            if self._num_streams is not None:
                sources = [place.stream // self._num_streams for place in block]
                stack.tensors["sources"] = torch.tensor(sources)
            yield stack


def stacked(
    sequences: list[PackedSequence], length: int, pad: int, *, joined: bool = False
) -> Block:
    """A block of sequences, padded to one length; the padding is a separate chunk.

    Attention follows the positions: it restarts where they do (`models.layers`). They restart
    with each chunk, or only with each sequence if `joined`.
    """
    shape = (len(sequences), length)
    ids, token_types = np.full(shape, pad, np.int32), np.zeros(shape, np.uint8)
    loss_mask = np.zeros(shape, np.bool_)
    lengths: list[int] = []
    types: list[int] = []
    for row, sequence in enumerate(sequences):
        tokens = len(sequence.ids)
        ids[row, :tokens] = sequence.ids
        token_types[row, :tokens] = sequence.token_types
        loss_mask[row, :tokens] = sequence.loss_mask
        lengths += [*sequence.lengths.tolist(), length - tokens]
        types += [*sequence.types.tolist(), 0]
    chunk_lengths = np.array(lengths)
    alike = np.full(len(sequences), length) if joined else chunk_lengths
    begins = alike.cumsum(dtype=np.int32) - alike.astype(np.int32)
    positions = np.arange(ids.size, dtype=np.int32) - begins.repeat(alike)
    arrays = {
        "input_ids": ids,
        "position_ids": positions.reshape(shape),
        "loss_mask": loss_mask,
        "token_types": token_types,
        "document_types": np.array(types, np.int32).repeat(chunk_lengths).reshape(shape),
    }
    return Block(
        tensors={name: torch.from_numpy(array) for name, array in arrays.items()},
        counts=np.concatenate([sequence.counts for sequence in sequences]).reshape(
            len(sequences), -1
        ),
        notes=[
            Notes(len(sequence.ids), sequence.documents, sequence.stream, sequence.position_after)
            for sequence in sequences
        ],
    )


def steps(
    blocks: SequenceBlocks,
    size: int,
    accumulation: int,
    num_workers: int,
    names: list[str],
    *,
    narrow: bool = False,
) -> Iterator[tuple[list[MicroBatch], dict[int, Position]]]:
    """The micro-batches of each step, and the position of each of their streams after the step.

    Args:
        blocks: The blocks of each loader process; taking a sequence of each in turn yields the
            rank's sequences in order.
        size: Sequences in a micro-batch and in a block.
        num_workers: Number of loader processes; 0 does all work in this process.
        narrow: Whether a micro-batch is only as wide as its longest sequence requires.
    """
    iterator: Iterator[Block | UserError] = iter(blocks)
    if num_workers:
        loader = DataLoader(
            blocks,
            batch_size=None,
            num_workers=num_workers,
            worker_init_fn=set_up_worker,
            # It draws a seed for its processes: not from the dropout generator, whose state a
            # resumed run has just restored.
            generator=torch.Generator(),
        )
        iterator = iter(loader)
    try:
        batches = _micro_batches(iterator, size, max(num_workers, 1), names, narrow)
        while step := list(itertools.islice(batches, accumulation)):
            positions = {stream: position for _, part in step for stream, position in part}
            yield [batch for batch, _ in step], positions
    finally:
        # Shut down now: the iterator would wait 5 s for each process that is itself waiting for
        # data. Kept alive by the error's traceback, it would be collected as part of a cycle,
        # its queues first, and then wait 10 s in vain for each process.
        for process in getattr(iterator, "_workers", ()):
            process.terminate()
        del iterator


def _micro_batches(
    blocks: Iterator[Block | UserError], size: int, workers: int, names: list[str], narrow: bool
) -> Iterator[Positioned]:
    while True:
        in_turn = []
        for block in itertools.islice(blocks, workers):
            if isinstance(block, UserError):
                raise block
            in_turn.append(block)
        yield from merged(in_turn, size, names, narrow)


def merged(
    blocks: list[Block], size: int, names: list[str], narrow: bool = False
) -> Iterator[Positioned]:
    """Micro-batches of blocks of the same length, taking a sequence of each block in turn."""
    in_turn = zip(*(block.notes for block in blocks), strict=True)
    notes = list(itertools.chain.from_iterable(in_turn))
    counts = np.stack([block.counts for block in blocks], axis=1).reshape(len(notes), -1)
    tensors = {}
    for name in blocks[0].tensors:
        parts = [block.tensors[name] for block in blocks]
        tensors[name] = parts[0] if len(parts) == 1 else torch.stack(parts, dim=1).flatten(0, 1)
    for first in range(0, len(notes), size):
        part = slice(first, first + size)
        lengths = [note.tokens for note in notes[part]]
        width = -(-max(lengths) // WIDTH_STEP) * WIDTH_STEP if narrow else None
        own = {name: _part_of(name, whole, part, width) for name, whole in tensors.items()}
        is_target = own["loss_mask"].numpy()
        batch = MicroBatch(
            tensors=own,
            weight=float(np.count_nonzero(is_target)),
            tokens=sum(lengths),
            padding=own["input_ids"].numel() - sum(lengths),
            documents=list(dict.fromkeys(name for note in notes[part] for name in note.documents)),
            targets=targets_digest(own),
            counts=dict(zip(names, counts[part].sum(axis=0).tolist(), strict=True)),
        )
        yield batch, [(note.stream, note.position_after) for note in notes[part]]


def _part_of(name: str, whole: torch.Tensor, part: slice, width: int | None) -> torch.Tensor:
    """Some rows of an input of the model, up to a width, in the form in which they are used."""
    own = whole[part]
    if width is not None and own.dim() > 1:
        own = own[:, :width].contiguous()
    if name in DTYPES:
        own = own.to(DTYPES[name])
    return own.pin_memory() if torch.cuda.is_available() else own


def targets_digest(tensors: dict[str, torch.Tensor]) -> str:
    """Hash (xxh3, hexadecimal) of the text tokens that a micro-batch has a loss on, in order."""
    wanted = tensors["loss_mask"].numpy() & (tensors["token_types"].numpy() == 0)
    return xxhash.xxh3_64_hexdigest(tensors["input_ids"].numpy()[wanted].astype("<i4").tobytes())


def set_up_worker(_: int) -> None:
    """Sets up garbage collection and signals in a loader process.

    Stopping is left to the trainer, which must save first: schedulers signal every process of a
    job, so signals from other processes are ignored (and the handlers inherited from the trainer
    do not run); a SIGTERM from the trainer ends the process. So
    does the trainer's exit, which a process waiting for data would not notice for minutes.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    gc.enable()  # the trainer may have disabled it for its loop
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # Blocked, it stays pending for the thread below. Ignored, because a thread of a library that
    # does not block it would otherwise take it and end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_trainer, daemon=True).start()


def _end_with_the_trainer() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
