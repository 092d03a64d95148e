"""The training stream of one rank: its steps, from the start or from a saved state.

This is the last part of the data pipeline; the task passes the stream to the trainer. The trainer
merges the states of all ranks after a step, and saves the merged state with the fingerprint. A
stream that is restored from it, in a run of any world size and number of loader processes,
continues exactly the same sequence of global batches.

Each loader process reads some of the rank's logical streams, and sends blocks of several sequences,
to save messages. The i-th sequence of the rank comes from process i mod N, which preserves the
order because a torch DataLoader polls its processes in turn. Each sequence carries the state of its
stream after it.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig, check_data, compute_row_length
from bsmeta.core.errors import ConfigurationError, UserError, describe_differences
from bsmeta.core.rounding import round_up_to_multiple
from bsmeta.data.batch import MicroBatch, StepData, set_up_worker
from bsmeta.data.loader import make_loader
from bsmeta.data.stream.counts import list_count_names
from bsmeta.data.stream.fingerprint import complete_saved_fingerprint
from bsmeta.data.stream.live import LiveStreams, find_phases
from bsmeta.data.stream.plan import (
    Phases,
    Position,
    count_sequences_done,
    divide_sequences,
    order_sequences,
)
from bsmeta.data.stream.survey import Survey, survey_data
from bsmeta.data.text.chunks import PackedSequence

if TYPE_CHECKING:
    from bsmeta.data.prepare import PreparedStreams

logger = logging.getLogger(__name__)

SOURCE_COUNTS = ("source_sequences", "source_tokens", "source_epochs")
"""Names of the counts of each source in a mixture; epochs are averaged over its streams."""

MODEL_DTYPES = {"input_ids": torch.int64, "position_ids": torch.int64}
"""The dtypes of model inputs that are stored in a smaller dtype."""

WIDTH_STEP = 64
"""Rows of varying length are padded to a multiple of this length, to limit the number of shapes."""

COLLECTION_THRESHOLD = 50_000
"""Number of new objects that triggers a garbage collection; a window creates tens of thousands."""


class PositionedBatch(NamedTuple):
    """A micro-batch, and the positions of its streams after it.

    Attributes:
        positions: For each sequence in order, its stream and the position of the stream after it.
    """

    batch: MicroBatch
    positions: list[tuple[int, Position]]


class TrainStream:
    """The endless steps of this rank, in the order of the run.

    Args:
        tokenizer: A fast tokenizer with an EOS token and the special tokens of the metadata.
        seed: Seed of the run.
        global_batch_size: Number of sequences per step over all ranks.
        max_train_steps: Number of steps of the run, which the metadata schedule divides into
            shares; only needed with a schedule.
        decay_start: Number of steps before the decay of the learning rate, with which a phase may
            begin; None without a decay.
        is_branch: Whether the state may be from a run whose later phases differ.
        state: `{"fingerprint": ..., "streams": {number: position}}` as saved with a checkpoint;
            None starts from the beginning.
        survey: The survey that one process made for all; None surveys the data here.
        fixed_length: Whether all micro-batches must have the same shape; otherwise, rows of varying
            length (`row_budget=text`) are padded only to about the longest of their micro-batch.

    Raises:
        ConfigurationError: If a divisibility constraint is violated, a key has an unknown value,
            or the state belongs to other data.
        DataError: If shards are missing, or a stream would have no documents.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        seed: int,
        rank: int,
        world_size: int,
        global_batch_size: int,
        max_train_steps: int | None = None,
        decay_start: int | None = None,
        is_branch: bool = False,
        state: dict[str, Any] | None = None,
        survey: Survey | None = None,
        fixed_length: bool = False,
    ) -> None:
        check_data(config)
        self._config = config
        self._is_narrow = config.row_budget == BY_TEXT and not fixed_length
        self._global_batch_size = global_batch_size
        rank_batch_size = global_batch_size // world_size
        self._accumulation = rank_batch_size // config.per_device_train_batch_size
        self._division = divide_sequences(config, rank, world_size, global_batch_size)

        assert max_train_steps is not None or not config.metadata_config.schedule
        phases = find_phases(config, max_train_steps or 0, global_batch_size, decay_start)
        self._first_steps = [start // global_batch_size + 1 for start in phases.starts]

        survey = survey or survey_data(config)
        self._streams = _open_streams(config, tokenizer, seed, phases, survey)
        if rank == 0 and isinstance(self._streams, LiveStreams):
            self._streams.warn_of_slow_resumes()

        # Prepared sequences can be used with both kinds of attention, but a run uses only one.
        self.fingerprint = {
            **self._streams.fingerprint,
            "cross_document_attention": config.cross_document_attention,
        }
        self._pad_id = tokenizer.pad_token_id
        if self._pad_id is None:
            self._pad_id = tokenizer.eos_token_id

        self._positions: dict[int, Position] = {}
        self._order = order_sequences(config)
        if state is not None:
            self._restore_positions(state, is_branch=is_branch)
        self._num_done = count_sequences_done(self._positions, self._order)

    def _restore_positions(self, state: dict[str, Any], *, is_branch: bool) -> None:
        """Restores the positions of all streams, and checks that they refer to the run's data.

        Raises:
            ConfigurationError: If the state belongs to other data.
        """
        self._positions = {
            int(stream): Position.from_state(position)
            for stream, position in state["streams"].items()
        }
        saved = complete_saved_fingerprint(state["fingerprint"])
        current = self.fingerprint
        if is_branch:
            num_done = sum(position.emitted for position in self._positions.values())
            saved = _drop_later_phases(saved, num_done)
            current = _drop_later_phases(current, num_done)
        _check_fingerprint(saved, current, self._config.on_changed_data)

    @property
    def state(self) -> dict[str, Any]:
        """The state of this rank before its first step, when it has read no stream."""
        return {"streams": {}}

    def __iter__(self) -> Iterator[StepData]:
        """Yields the steps after the restored state."""
        config = self._config
        blocks = SequenceBlocks(
            self._iterate_worker_sequences,
            block_size=config.per_device_train_batch_size,
            row_length=compute_row_length(config),
            pad_id=self._pad_id,
            is_joined=config.cross_document_attention,
            num_streams=config.num_streams if config.sources else None,
        )
        count_names = list_count_names(config.metadata_config.metadata_list)
        for source in config.sources:
            count_names += [f"{count}/{source.name}" for count in SOURCE_COUNTS]

        steps = _iterate_steps(
            blocks, self._accumulation, config.num_workers, count_names, is_narrow=self._is_narrow
        )
        first_step = self._num_done // self._global_batch_size + 1
        streams: dict[int, dict[str, int]] = {}  # the saved positions of this rank's streams
        for step, (batches, positions) in enumerate(steps, first_step):
            streams |= {stream: position.state() for stream, position in positions.items()}
            phase = bisect.bisect_right(self._first_steps, step) - 1
            yield StepData(batches, {"streams": dict(streams)}, phase)

    def merge(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merges the states of all ranks into the state of the run: all streams' positions."""
        streams = {number: position.state() for number, position in self._positions.items()}
        for state in states:
            streams |= {int(number): position for number, position in state["streams"].items()}
        return {"streams": dict(sorted(streams.items()))}

    def _iterate_worker_sequences(self, worker: int) -> Iterator[PackedSequence]:
        """Yields the sequences of a loader process; opens each stream at its first turn."""
        open_streams: dict[int, Iterator[PackedSequence]] = {}
        open_stream = self._add_source_counts if self._config.sources else self.iterate_sequences
        for index in self._division.iterate_sequence_indices(self._num_done, worker):
            stream = self._order.find_stream(index)
            if stream not in open_streams:
                open_streams[stream] = open_stream(stream)
            yield next(open_streams[stream])

    def _add_source_counts(self, stream: int) -> Iterator[PackedSequence]:
        """Yields the sequences of a stream of a mixture, with the counts of their source added."""
        source, stream_of_source = divmod(stream, self._config.num_streams)
        portions = self._order.count_portions(source)
        document_share = portions[stream_of_source] / sum(portions)  # of the source's documents
        epoch = self._positions.get(stream, Position()).epoch
        for sequence in self.iterate_sequences(stream):
            num_new_epochs = sequence.position_after.epoch - epoch
            epoch = sequence.position_after.epoch
            counts_by_source = np.zeros((len(self._config.sources), len(SOURCE_COUNTS)))
            counts_by_source[source] = [  # in the order of SOURCE_COUNTS
                1.0,  # sequences
                len(sequence.ids),  # tokens
                num_new_epochs * document_share,  # epochs
            ]
            sequence.counts = np.concatenate((sequence.counts, counts_by_source.reshape(-1)))
            yield sequence

    def iterate_sequences(self, stream: int) -> Iterator[PackedSequence]:
        """Yields the packed sequences of a stream, beginning at its restored position."""
        return self._streams.iterate_sequences(stream, self._positions.get(stream, Position()))


def _open_streams(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    phases: Phases,
    survey: Survey,
) -> LiveStreams | PreparedStreams:
    """Opens the streams of a run: its prepared sequences if configured, otherwise its shards."""
    if config.prepared is None:
        return LiveStreams(config, tokenizer, seed, phases, survey)

    from bsmeta.data.prepare import PreparedStreams

    return PreparedStreams(config, tokenizer, seed, phases, survey)


def _drop_later_phases(fingerprint: dict[str, Any], num_done: int) -> dict[str, Any]:
    """Removes from a fingerprint the phases that begin after the first `num_done` sequences."""
    starts = [start for start in fingerprint["phase_starts"] if start < num_done]
    return {**fingerprint, "phase_starts": starts}


def _check_fingerprint(saved: dict[str, Any], current: dict[str, Any], on_changed: str) -> None:
    """Checks that a run continues with the data of its checkpoint.

    Args:
        saved: The fingerprint in the checkpoint.
        current: The fingerprint of the run.
        on_changed: If `warn`, differences are only logged.

    Raises:
        ConfigurationError: If the fingerprints differ, unless `on_changed` is `warn`.
    """
    differences = "\n".join(describe_differences(saved, current, "in the checkpoint"))
    if not differences:
        return

    if on_changed == "warn":
        logger.warning("the run's data differ from the checkpoint's:\n%s", differences)
        return

    raise ConfigurationError(
        "the checkpoint is from a run on other data, so the run cannot be continued exactly "
        f"(data_config.on_changed_data=warn continues nevertheless):\n{differences}"
    )


class SequenceInfo(NamedTuple):
    """The length, documents and stream of a sequence.

    Attributes:
        num_tokens: Number of tokens, without padding.
        documents: Names of the documents in the sequence.
        stream: Number of the stream.
        position_after: The position of the stream after the sequence.
    """

    num_tokens: int
    documents: tuple[str, ...]
    stream: int
    position_after: Position


@dataclass(slots=True)
class Block:
    """Consecutive sequences of one loader process, stacked.

    Attributes:
        tensors: Inputs of the model, each [sequences, row_length]; in a mixture also `sources`
            [sequences], the index of each sequence's source.
        counts: float64[sequences, counts].
        infos: One entry per sequence.
    """

    tensors: dict[str, torch.Tensor]
    counts: np.ndarray
    infos: list[SequenceInfo]


@dataclass(eq=False)
class SequenceBlocks(IterableDataset):
    """The endless blocks of sequences of one loader process.

    Attributes:
        iterate_sequences: Yields the sequences of the loader process with the given index.
        block_size: Number of sequences per block.
        row_length: Number of tokens of a padded sequence.
        pad_id: Id of the padding token.
        is_joined: Whether positions are continuous within a sequence (`cross_document_attention`)
            instead of restarting with each chunk.
        num_streams: Number of streams of each source in a mixture; None without a mixture.
    """

    iterate_sequences: Callable[[int], Iterator[PackedSequence]]
    block_size: int
    row_length: int
    pad_id: int
    is_joined: bool = False
    num_streams: int | None = None

    def __iter__(self) -> Iterator[Block | UserError]:
        """Yields the blocks, or the error that ends them."""
        worker = get_worker_info()
        _tune_garbage_collection(is_worker=worker is not None)

        sequences = self.iterate_sequences(worker.id if worker else 0)
        while True:
            try:
                block = list(itertools.islice(sequences, self.block_size))
            except UserError as error:
                yield error  # raised in the trainer's process, without a worker's stack trace
                return

            stacked = stack_sequences(block, self.row_length, self.pad_id, is_joined=self.is_joined)
            if self.num_streams is not None:
                sources = [sequence.stream // self.num_streams for sequence in block]
                stacked.tensors["sources"] = torch.tensor(sources)
            yield stacked


def _tune_garbage_collection(*, is_worker: bool) -> None:
    """Makes full garbage collections rare and cheap, once per process."""
    # A worker is always tuned, because it inherits the trainer's frozen objects.
    if not is_worker:
        is_tuned = gc.get_threshold()[0] == COLLECTION_THRESHOLD
        if is_tuned or gc.get_freeze_count():  # counting visits every object, so it comes last
            return

    # Existing objects (mostly of libraries) are long-lived: scanning them in every full collection
    # would take a tenth of the time.
    gc.collect()
    gc.freeze()
    # The data code creates no cycles, but a window's documents would trigger many collections.
    gc.set_threshold(COLLECTION_THRESHOLD)


def stack_sequences(
    sequences: list[PackedSequence], row_length: int, pad_id: int, *, is_joined: bool = False
) -> Block:
    """Pads sequences to a common length, and stacks them; the padding counts as a chunk.

    Attention restarts where the positions restart (`models.attention`): at each chunk or, if
    `is_joined`, only at each sequence.
    """
    shape = (len(sequences), row_length)
    ids = np.full(shape, pad_id, np.int32)
    token_types = np.zeros(shape, np.uint8)
    loss_mask = np.zeros(shape, np.bool_)
    lengths: list[int] = []
    types: list[int] = []
    for row, sequence in enumerate(sequences):
        num_tokens = len(sequence.ids)
        ids[row, :num_tokens] = sequence.ids
        token_types[row, :num_tokens] = sequence.token_types
        loss_mask[row, :num_tokens] = sequence.loss_mask
        lengths += [*sequence.lengths.tolist(), row_length - num_tokens]
        types += [*sequence.types.tolist(), 0]

    chunk_lengths = np.array(lengths)
    part_lengths = np.full(len(sequences), row_length) if is_joined else chunk_lengths
    positions = _number_positions(part_lengths)

    arrays = {
        "input_ids": ids,
        "position_ids": positions.reshape(shape),
        "loss_mask": loss_mask,
        "token_types": token_types,
        "document_types": np.array(types, np.int32).repeat(chunk_lengths).reshape(shape),
    }
    return Block(
        tensors={name: torch.from_numpy(array) for name, array in arrays.items()},
        counts=np.stack([sequence.counts for sequence in sequences]),
        infos=[
            SequenceInfo(
                len(sequence.ids), sequence.documents, sequence.stream, sequence.position_after
            )
            for sequence in sequences
        ],
    )


def _number_positions(part_lengths: np.ndarray) -> np.ndarray:
    """Numbers the tokens of each of several concatenated parts from 0 (int32)."""
    starts = part_lengths.cumsum(dtype=np.int32) - part_lengths.astype(np.int32)
    return np.arange(part_lengths.sum(), dtype=np.int32) - starts.repeat(part_lengths)


def _iterate_steps(
    blocks: SequenceBlocks,
    accumulation: int,
    num_workers: int,
    count_names: list[str],
    *,
    is_narrow: bool,
) -> Iterator[tuple[list[MicroBatch], dict[int, Position]]]:
    """Yields the micro-batches of each step, and the positions of their streams after the step.

    Args:
        blocks: The blocks of a loader process. The rank's sequences in order are one sequence of
            each process in turn.
        accumulation: Number of micro-batches per step.
        num_workers: Number of loader processes; 0 does all work in this process.
        is_narrow: Whether a micro-batch is only as wide as its longest sequence requires.
    """
    iterator: Iterator[Block | UserError] = iter(blocks)
    if num_workers:
        loader = make_loader(
            blocks,
            num_workers,
            worker_init_fn=set_up_worker,
            # The loader draws a seed for its processes. It must not draw it from the dropout
            # generator, whose state a resumed run has just restored.
            generator=torch.Generator(),
        )
        iterator = iter(loader)

    try:
        batches = _iterate_micro_batches(
            iterator, blocks.block_size, max(num_workers, 1), count_names, is_narrow=is_narrow
        )
        while step := list(itertools.islice(batches, accumulation)):
            positions: dict[int, Position] = {}
            for micro_batch in step:
                positions.update(micro_batch.positions)
            yield [micro_batch.batch for micro_batch in step], positions
    finally:
        # Terminate the processes now: the iterator would wait 5 s for each process that is itself
        # waiting for data. If an error's traceback kept the iterator alive, it would be collected
        # as part of a cycle, its queues first, and would wait 10 s in vain for each process.
        for process in getattr(iterator, "_workers", ()):
            process.terminate()
        del iterator


def _iterate_micro_batches(
    blocks: Iterator[Block | UserError],
    batch_size: int,
    num_processes: int,
    count_names: list[str],
    *,
    is_narrow: bool,
) -> Iterator[PositionedBatch]:
    """Yields endless micro-batches from blocks that the loader processes produce in turn.

    Raises:
        UserError: The error of a loader process.
    """
    while True:
        process_blocks: list[Block] = []  # one of each process
        for block in itertools.islice(blocks, num_processes):
            if isinstance(block, UserError):
                raise block
            process_blocks.append(block)
        yield from merge_blocks(process_blocks, batch_size, count_names, is_narrow=is_narrow)


def merge_blocks(
    blocks: list[Block], batch_size: int, count_names: list[str], *, is_narrow: bool = False
) -> Iterator[PositionedBatch]:
    """Yields micro-batches that take one sequence of each block in turn.

    Args:
        blocks: Blocks of the same size.
        batch_size: Number of sequences in a micro-batch.
        is_narrow: Whether a micro-batch is only as wide as its longest sequence requires.
    """
    merged = _interleave_blocks(blocks)
    for first in range(0, len(merged.infos), batch_size):
        rows = slice(first, first + batch_size)
        infos = merged.infos[rows]
        lengths = [info.num_tokens for info in infos]
        width = round_up_to_multiple(max(lengths), WIDTH_STEP) if is_narrow else None
        inputs = {
            name: _finish_rows(name, tensor[rows], width) for name, tensor in merged.tensors.items()
        }

        documents: dict[str, None] = {}  # a set in order
        for info in infos:
            documents |= dict.fromkeys(info.documents)

        batch = MicroBatch(
            tensors=inputs,
            weight=float(np.count_nonzero(inputs["loss_mask"].numpy())),
            tokens=sum(lengths),
            padding=inputs["input_ids"].numel() - sum(lengths),
            documents=list(documents),
            targets=_hash_text_targets(inputs),
            counts=dict(zip(count_names, merged.counts[rows].sum(axis=0).tolist(), strict=True)),
        )
        positions = [(info.stream, info.position_after) for info in infos]
        yield PositionedBatch(batch, positions)


def _interleave_blocks(blocks: list[Block]) -> Block:
    """Merges blocks of the same size into a block with one sequence of each in turn."""
    if len(blocks) == 1:
        return blocks[0]

    infos: list[SequenceInfo] = []
    for infos_in_turn in zip(*(block.infos for block in blocks), strict=True):
        infos += infos_in_turn
    counts = np.stack([block.counts for block in blocks], axis=1).reshape(len(infos), -1)
    tensors = {}
    for name in blocks[0].tensors:
        parts = [block.tensors[name] for block in blocks]
        tensors[name] = torch.stack(parts, dim=1).flatten(0, 1)
    return Block(tensors, counts, infos)


def _hash_text_targets(inputs: Mapping[str, torch.Tensor]) -> str:
    """Hashes the targets that are text tokens; machines of any byte order get the same hash."""
    is_text_target = inputs["loss_mask"].numpy() & (inputs["token_types"].numpy() == 0)
    text_targets = inputs["input_ids"].numpy()[is_text_target].astype("<i4")
    return xxhash.xxh3_64_hexdigest(text_targets.tobytes())


def _finish_rows(name: str, rows: torch.Tensor, width: int | None) -> torch.Tensor:
    """Prepares rows of a model input: truncates, casts and, for a GPU, pins them.

    Args:
        name: Name of the input.
        width: Maximum number of tokens; None truncates nothing.
    """
    if width is not None and rows.dim() > 1:
        rows = rows[:, :width].contiguous()
    if name in MODEL_DTYPES:
        rows = rows.to(MODEL_DTYPES[name])
    return rows.pin_memory() if torch.cuda.is_available() else rows
