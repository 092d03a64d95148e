"""Assigns documents to streams and sequences to processes, and defines the position of a stream.

All of this is integer arithmetic on the sizes of the shards: no file is opened.

The data is divided among S logical streams, independent of the number of processes. A stream owns
the same documents in every epoch, and reads its shares in an order drawn for that epoch. Its state
is a `Position`: a few integers from which any process can restore the stream.

Sequence g of a run comes from stream g mod S of its source, so a stream always has the same reader
(`Division`). A mixture gives source i the share p_i / D, in lowest terms: each period of D
sequences contains p_i sequences of source i. The first n sequences of the run contain
floor(n p_i / D) or ceil(n p_i / D) sequences of source i, so every prefix of a run is within one
sequence of the configured shares. The j-th sequence of a source has a window of positions in the
period; serving the source whose window ends first meets all windows (Baruah et al. 1996,
"Proportionate progress: a notion of fairness in resource allocation"). If S and D have a common
divisor, the streams of a source yield different numbers of sequences, possibly zero, and the
documents of the source are dealt to the streams in proportion (`count_portions`).

Documents are dealt evenly for any number of streams and shards (`deal_documents`). Whole shards
cannot be divided evenly among any number of streams, and the number of documents in a shard is
unknown until it has been read. So the bytes of all shards, laid end to end, are cut into parts of
equal length, one per stream. If a cut falls inside a shard, its documents are dealt to the streams
on both sides in proportion to their bytes, one run of documents at a time. The lines of any window
can then be computed from a stream's share. The cost is that each stream of a divided shard skips
the documents of the other streams, with access points if the shard has them.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bsmeta.config.data import DataConfig, compute_parts
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.rounding import divide_up
from bsmeta.data import derive_seed, permute
from bsmeta.data.io.shards import PARQUET, Shard

VERSION = 2
"""Version of saved positions. In version 1, streams owned whole shards or alternating windows."""

MIN_SLOTS = 64
"""Minimum number of slots per stream in a divided shard; a share is accurate to 1/MIN_SLOTS."""

RUNS_PER_STREAM = 64
"""Approximate number of runs of documents per stream in a divided shard. With longer runs, access
points can skip longer gaps; shorter runs are divided more evenly."""

DOCUMENT_BYTES = 8192
"""Approximate size of a compressed document (13,000 bytes in c4-en-html-with-metadata)."""

COMPRESSION_RATIO = 5
"""Assumed compression ratio: uncompressed size divided by compressed size."""

TOLERANCE = 32
"""A stream's size may deviate from its portion by 1/TOLERANCE if that avoids dividing a shard."""


class Position(NamedTuple):
    """The position of a stream: everything needed to resume it.

    Attributes:
        epoch: Number of complete passes of this stream over its shares.
        share: Index in this epoch's order of shares.
        window: Index of the current window in that share.
        sequence: Number of sequences of that window already yielded.
        emitted: Number of sequences that the stream has yielded since the beginning of the run.
        bad: Number of bad documents skipped in the earlier windows of this epoch.
    """

    epoch: int = 0
    share: int = 0
    window: int = 0
    sequence: int = 0
    emitted: int = 0
    bad: int = 0

    def is_epoch_start(self) -> bool:
        """Returns whether this is the beginning of an epoch."""
        return self.share == self.window == self.sequence == 0

    def state(self) -> dict[str, int]:
        """Returns the position in its saved form."""
        return {"version": VERSION, **self._asdict()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Position:
        """Reads a saved position.

        Raises:
            ConfigurationError: If it has another version or other fields, or a field is not a
                non-negative integer.
        """
        state = dict(state)
        version = state.pop("version", 1)
        if version != VERSION:
            raise ConfigurationError(
                f"the checkpoint's data state is of version {version}, expected {VERSION}: "
                "documents are now assigned to streams differently, so its positions refer to "
                "other documents; continue the run with the version of bsmeta that began it, or "
                "begin a new one from its weights (model_name=CHECKPOINT/model)"
            )
        expected = set(cls._fields)
        are_counts = all(type(value) is int and value >= 0 for value in state.values())
        if set(state) != expected or not are_counts:
            raise ConfigurationError(
                f"the saved position of a stream is {state}; expected the keys {sorted(expected)} "
                "with whole numbers; the checkpoint is of another version, or damaged"
            )

        return cls(**state)


@dataclass(frozen=True, slots=True)
class Phases:
    """Maps the sequences of a stream to the phases of the metadata schedule.

    The index in the run of a stream's n-th sequence, and thus the sequence's step and phase, is
    known before the sequence is built.

    Attributes:
        starts: For each phase, the index in the run of its first sequence; `starts[0]` is 0.
        order: The order of the sequences of the run.
    """

    starts: tuple[int, ...]
    order: SequenceOrder

    def find_phase(self, stream: int, emitted: int) -> int:
        """Returns the index of the phase of a stream's next sequence.

        Args:
            emitted: Number of sequences that the stream has yielded.
        """
        return bisect.bisect_right(self.starts, self.order.find_index(stream, emitted)) - 1

    def count_left(self, stream: int, emitted: int) -> int | None:
        """Counts the sequences that a stream has left in its current phase; None in the last phase.

        Args:
            emitted: Number of sequences that the stream has yielded.
        """
        phase = self.find_phase(stream, emitted)
        if phase + 1 == len(self.starts):
            return None

        return self.order.count_before(stream, self.starts[phase + 1]) - emitted


@dataclass(frozen=True, slots=True)
class Division:
    """Assigns the sequences of a run to ranks and loader processes.

    Sequence g of the run (the j-th of step t, g = t * global batch + j) is the next sequence of
    stream g mod S, in a mixture of stream g mod S of its source (`SequenceOrder`). Rank r takes all
    g = r (mod world size), in order, and its loader processes take turns. So every stream always
    has exactly one reader.

    Attributes:
        num_workers: Number of loader processes per rank.
    """

    rank: int
    world_size: int
    num_workers: int

    def iterate_sequence_indices(self, num_done: int, worker: int) -> range:
        """Returns the indices in the run of a loader process's sequences, as an endless range.

        Args:
            num_done: Total number of sequences that the run has already consumed.
            worker: Index of the loader process.
        """
        first = num_done + (self.rank - num_done) % self.world_size
        endless = 1 << 62
        step = self.world_size * self.num_workers
        return range(first + worker * self.world_size, endless, step)


def divide_sequences(
    config: DataConfig, rank: int, world_size: int, global_batch_size: int
) -> Division:
    """Divides the sequences of a run evenly among ranks and loader processes.

    Raises:
        ConfigurationError: If a number is not divisible; the message lists all problems.
    """
    num_workers = max(config.num_workers, 1)
    num_streams = config.num_streams
    micro_batch_size = config.per_device_train_batch_size
    rank_batch_size = global_batch_size // world_size

    problems = []
    if num_streams < 1 or num_streams % (world_size * num_workers):
        problems.append(
            f"data_config.num_streams={num_streams} is not a multiple of the processes times "
            f"their loader workers: {world_size} x {num_workers} (data_config.num_workers) = "
            f"{world_size * num_workers}; change num_streams (on a resumed run: num_workers)"
        )
    if global_batch_size < 1 or global_batch_size % world_size:
        problems.append(
            f"the global batch of {global_batch_size} sequences is not a multiple of the "
            f"{world_size} processes"
        )
    elif micro_batch_size < 1 or rank_batch_size % micro_batch_size:
        problems.append(
            f"a process's part of the global batch, {global_batch_size} / {world_size} = "
            f"{rank_batch_size} sequences, is not a multiple of "
            f"data_config.per_device_train_batch_size={micro_batch_size}"
        )
    if problems:
        raise ConfigurationError("\n".join(problems))

    return Division(rank, world_size, num_workers)


def count_sequences_done(positions: dict[int, Position], order: SequenceOrder) -> int:
    """Counts the sequences that a run has consumed, from the positions of all its streams.

    Args:
        positions: The position of each stream, by its number; a missing stream has yielded none.

    Raises:
        ConfigurationError: If the positions do not correspond to a whole number of steps.
    """
    emitted = [positions.get(stream, Position()).emitted for stream in order.streams]
    num_done = sum(emitted)

    expected = [order.count_before(stream, num_done) for stream in order.streams]
    if emitted != expected or set(positions) - set(order.streams):
        raise ConfigurationError(
            f"the saved data state is incomplete: its streams have yielded {emitted} sequences, "
            "which no run of whole steps does; it was not merged over all processes, or is damaged"
        )
    return num_done


class SequenceOrder:
    """Maps each sequence of a run to its stream and its index in the stream, and back.

    The streams of all sources are numbered consecutively: stream k of source i is i * S + k. The
    order repeats with a period of lcm(D, S) sequences.

    Args:
        weights: The weight of each source; a single weight for a run without a mixture.
        num_streams: S, the number of streams per source.

    Attributes:
        streams: The numbers of all streams.
    """

    def __init__(self, weights: Sequence[float], num_streams: int) -> None:
        self._period_sources = assign_period(tuple(compute_parts(weights)))
        self._num_streams = num_streams
        self._is_mixture = len(weights) > 1
        self._period = math.lcm(len(self._period_sources), num_streams)
        self._offsets = lru_cache(maxsize=None)(self._compute_offsets)
        self.streams = range(len(weights) * num_streams)

    def find_stream(self, index: int) -> int:
        """Returns the stream of a sequence, by the sequence's index in the run."""
        stream = index % self._num_streams
        if self._is_mixture:
            source = int(self._period_sources[index % len(self._period_sources)])
            stream += source * self._num_streams
        return stream

    def find_index(self, stream: int, index_in_stream: int) -> int:
        """Returns the index in the run of a sequence, by its index in its stream."""
        offsets = self._offsets(stream)
        periods, index_in_period = divmod(index_in_stream, len(offsets))
        return periods * self._period + int(offsets[index_in_period])

    def count_before(self, stream: int, index: int) -> int:
        """Counts the sequences of a stream that precede the run's sequence `index`."""
        offsets = self._offsets(stream)
        periods, remainder = divmod(index, self._period)
        return periods * len(offsets) + int(np.searchsorted(offsets, remainder))

    def count_portions(self, source: int) -> list[int]:
        """Counts the sequences that each stream of a source yields per period."""
        first = source * self._num_streams
        return [len(self._offsets(first + index)) for index in range(self._num_streams)]

    def _compute_offsets(self, stream: int) -> np.ndarray:
        """Computes the indices of a stream's sequences in the period, increasing (int64).

        Index n in the period of sources stands for the sequences n + t D. Such a sequence comes
        from stream k of its source if n + t D = k (mod S). This holds for no t, or for exactly one
        t below S / gcd(D, S).
        """
        source, residue = divmod(stream, self._num_streams)
        size = len(self._period_sources)
        divisor = math.gcd(size, self._num_streams)
        turns = self._num_streams // divisor

        indices = np.flatnonzero(self._period_sources == source)
        indices = indices[(indices - residue) % divisor == 0]

        inverse = pow(size // divisor, -1, turns)
        turn = (residue - indices) // divisor * inverse % turns
        return np.sort(indices + turn * size)


def order_sequences(config: DataConfig) -> SequenceOrder:
    """Returns the sequence order of a run."""
    weights = [source.weight for source in config.sources] or [1.0]
    return SequenceOrder(weights, config.num_streams)


@lru_cache(maxsize=4)
def assign_period(parts: tuple[int, ...]) -> np.ndarray:
    """Assigns a source to each sequence of a period (uint16[D]); see the module's docstring.

    Args:
        parts: p_i, the number of sequences of each source in a period; their sum is D.
    """
    size = sum(parts)
    num_served = [0] * len(parts)
    sources = np.zeros(size, np.uint16)

    # Each source has one window at a time: in the first heap as (first index, source) until it
    # opens, then in the second as (end index, source) until the source is served.
    waiting = [(0, source) for source in range(len(parts))]
    open_windows: list[tuple[int, int]] = []

    for index in range(size):
        while waiting and waiting[0][0] <= index:
            _, source = heapq.heappop(waiting)
            end = divide_up((num_served[source] + 1) * size, parts[source])
            heapq.heappush(open_windows, (end, source))

        _, source = heapq.heappop(open_windows)
        sources[index] = source

        num_served[source] += 1
        if num_served[source] < parts[source]:
            heapq.heappush(waiting, (num_served[source] * size // parts[source], source))
    return sources


@dataclass(frozen=True, slots=True)
class Share:
    """The documents of a shard that one stream owns; by default, all documents.

    Documents are grouped in runs of consecutive documents, and each stream owns a range of slots.
    Run r falls into slot r * step mod num_slots (`choose_step`). The fractions r * step / num_slots
    are spread evenly over 0 to 1 from the first run on, so any prefix of a shard is divided in
    about the same proportion, and no periodicity in the documents is aliased. The slots repeat
    after a cycle of `num_slots` runs.

    Attributes:
        first_slot: First slot of the stream.
        end_slot: End of the stream's slots, exclusive.
        num_slots: Number of slots, a power of two.
        run_length: Number of documents in a run.
    """

    shard: Shard
    first_slot: int = 0
    end_slot: int = 1
    num_slots: int = 1
    run_length: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether no other stream owns documents of the shard."""
        return self.end_slot - self.first_slot == self.num_slots

    def list_documents(self, window: int, count: int) -> Sequence[int]:
        """Returns the numbers in the shard of a window's documents, from 0 and increasing.

        Args:
            window: Index of the window in the share.
            count: Number of documents in a window.
        """
        first = window * count
        if self.is_whole:
            return range(first, first + count)

        run_indices, offsets = np.divmod(np.arange(first, first + count), self.run_length)
        stream_runs = find_runs(self.first_slot, self.end_slot, self.num_slots)
        cycles, indices_in_cycle = np.divmod(run_indices, len(stream_runs))
        shard_runs = cycles * self.num_slots + stream_runs[indices_in_cycle]
        return (shard_runs * self.run_length + offsets).tolist()

    def find_window(self, document: int, count: int) -> int:
        """Returns the index of the window with the stream's first document at or after `document`.

        Args:
            document: The number of a document in the shard.
            count: Number of documents in a window.
        """
        if self.is_whole:
            return document // count

        run, offset = divmod(document, self.run_length)
        cycle, run_in_cycle = divmod(run, self.num_slots)
        stream_runs = find_runs(self.first_slot, self.end_slot, self.num_slots)
        index = int(np.searchsorted(stream_runs, run_in_cycle))
        if index == len(stream_runs) or stream_runs[index] != run_in_cycle:
            offset = 0  # another stream owns the run; this stream's next run is read from its start
        index_in_stream = (cycle * len(stream_runs) + index) * self.run_length + offset
        return index_in_stream // count


@lru_cache(maxsize=1024)
def find_runs(first_slot: int, end_slot: int, num_slots: int) -> np.ndarray:
    """Returns the runs of a cycle whose slots are in a range, increasing (int64)."""
    slots = np.arange(num_slots) * choose_step(num_slots) % num_slots
    return np.flatnonzero((first_slot <= slots) & (slots < end_slot))


def choose_step(num_slots: int) -> int:
    """Returns the step in slots between consecutive runs: odd, near num_slots / golden ratio."""
    return int(num_slots * (5**0.5 - 1) / 2) | 1


def deal_documents(shards: Sequence[Shard], portions: Sequence[int]) -> list[list[Share]]:
    """Deals the documents of shards to streams; returns the shares of each stream.

    Args:
        shards: The shards in the order in which they are laid end to end.
        portions: The relative portion of each stream.
    """
    ends = list(itertools.accumulate(map(weigh_shard, shards)))
    cuts = find_cuts(ends, portions)
    num_slots = 1 << (MIN_SLOTS * len(portions) - 1).bit_length()

    shares: list[list[Share]] = [[] for _ in portions]
    for shard, start, end in zip(shards, [0, *ends], ends, strict=False):
        # The cuts inside the shard are cuts[first:last]. Cut n is the end of stream n.
        first = bisect.bisect_right(cuts, start)
        last = bisect.bisect_left(cuts, end)
        if first == last:
            shares[first].append(Share(shard))
            continue

        num_sharing = last - first + 1  # streams
        run_length = max(shard.size // (DOCUMENT_BYTES * RUNS_PER_STREAM * num_sharing), 1)
        cut_slots = [(cut - start) * num_slots // (end - start) for cut in cuts[first:last]]
        slot_ranges = itertools.pairwise([0, *cut_slots, num_slots])
        for stream, (first_slot, end_slot) in enumerate(slot_ranges, start=first):
            if first_slot < end_slot:
                share = Share(shard, first_slot, end_slot, num_slots, run_length)
                shares[stream].append(share)
    return shares


def weigh_shard(shard: Shard) -> int:
    """Returns the weight of a shard in the dealing of documents: its compressed size in bytes.

    The compressed size of an uncompressed shard is estimated.
    """
    is_compressed = shard.name.endswith((".gz", ".zst", PARQUET))
    return max(shard.size if is_compressed else shard.size // COMPRESSION_RATIO, 1)


def find_cuts(ends: Sequence[int], portions: Sequence[int]) -> list[int]:
    """Returns the end of every stream except the last, between shards where `TOLERANCE` permits.

    Args:
        ends: The cumulative weights of the shards, laid end to end.
        portions: The relative portion of each stream.
    """
    cuts: list[int] = []
    start = 0
    remaining_portions = sum(portions)
    for portion in portions[:-1]:
        due_weight = (ends[-1] - start) * portion // max(remaining_portions, 1)
        remaining_portions -= portion

        cut = start + due_weight
        index = bisect.bisect_left(ends, cut)
        nearest_end = min(ends[max(index - 1, 0) : index + 1], key=lambda end: abs(end - cut))
        if abs(nearest_end - cut) * TOLERANCE <= due_weight:
            cut = nearest_end

        cuts.append(cut)
        start = cut
    return cuts


def draw_order(shares: Sequence[Share], seed: int, epoch: int, stream: int) -> list[Share]:
    """Returns a stream's shares in the random order of an epoch.

    Args:
        seed: Seed of the run.
        stream: Number of the stream.
    """
    order = permute(len(shares), derive_seed(seed, "shares", epoch, stream))
    return [shares[index] for index in order]
