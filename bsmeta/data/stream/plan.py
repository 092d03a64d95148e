"""Stream positions, and which process reads which sequence: integer arithmetic only.

The data is cut into S logical streams, independent of the number of processes. A stream owns the
same documents in every epoch (`dealing`) and reads its shares in an order drawn for that epoch. Its
state is a `Position`: a few integers, from which the stream can be restored anywhere.

Sequence g of a run comes from stream g mod S of its source, so that a stream always has the same
reader (`Division`). A mixture has shares p_i / D of its sources in lowest terms: a period of D
sequences has p_i of source i. After any n sequences there have been between floor(n p_i / D) and
ceil(n p_i / D) of them, so every prefix of a run is within one sequence of its shares: the j-th
sequence of a source has a window of places, and serving the source whose window ends first meets
all windows (Baruah et al. 1996, "Proportionate progress: a notion of fairness in resource
allocation"). Where S and D have a common divisor, the streams of a source do not yield equally many
sequences, some even none: its documents are dealt to them in proportion (`portions`).
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bsmeta.config.data import DataConfig, parts_of
from bsmeta.core.errors import ConfigurationError

VERSION = 2
"""Version of saved positions. In version 1, streams owned whole shards, or alternating windows."""


class Position(NamedTuple):
    """The position of a stream: all that it needs to resume.

    Attributes:
        epoch: Number of complete passes of this stream over its shares.
        share: Index in this epoch's order of shares.
        window: Index of the current window in that share.
        sequence: Number of sequences of that window that were yielded.
        emitted: Number of sequences that the stream yielded since the beginning of the run.
        bad: Number of documents of this epoch skipped in the windows before the current one.
    """

    epoch: int = 0
    share: int = 0
    window: int = 0
    sequence: int = 0
    emitted: int = 0
    bad: int = 0

    def is_epoch_start(self) -> bool:
        """Whether nothing of the epoch was yielded yet."""
        return self.share == self.window == self.sequence == 0

    def state(self) -> dict[str, int]:
        """The position in its saved form."""
        return {"version": VERSION, **self._asdict()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Position:
        """Reads a saved position.

        Raises:
            ConfigurationError: If it has another version, or does not consist of exactly these
                non-negative integers.
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
        whole = all(type(value) is int and value >= 0 for value in state.values())
        if set(state) != expected or not whole:
            raise ConfigurationError(
                f"the saved position of a stream is {state}; expected the keys {sorted(expected)} "
                "with whole numbers; the checkpoint is of another version, or damaged"
            )
        return cls(**state)


@dataclass(frozen=True, slots=True)
class Phases:
    """Which phase of the metadata's schedule the sequences of a stream belong to.

    The number in the run of a stream's n-th sequence, and thus its step and its phase, are known
    before it is produced.

    Attributes:
        starts: Number of the first sequence of the run in each phase; the first is 0.
        order: The order of the sequences of the run.
    """

    starts: tuple[int, ...]
    order: SequenceOrder

    def of(self, stream: int, emitted: int) -> int:
        """The phase of a stream's next sequence after it has yielded `emitted`."""
        return bisect.bisect_right(self.starts, self.order.number(stream, emitted)) - 1

    def left(self, stream: int, emitted: int) -> int | None:
        """Number of sequences until the stream's next phase; None in the last phase."""
        phase = self.of(stream, emitted)
        if phase + 1 == len(self.starts):
            return None
        return self.order.before(stream, self.starts[phase + 1]) - emitted


@dataclass(frozen=True, slots=True)
class Division:
    """How the sequences of a run are divided among streams, ranks and loader processes.

    Sequence g of the run (step t's j-th, g = t * global batch + j) is the next one of stream
    g mod S, in a mixture of that of its source (`SequenceOrder`). Rank r takes the g = r (mod world
    size), in order, and its loader processes take turns at these. So every stream always has
    exactly one reader.
    """

    num_streams: int
    rank: int
    world_size: int
    workers: int

    def sequences(self, done: int, worker: int) -> range:
        """Numbers g of a loader process's sequences after the first `done` sequences of the run."""
        first = done + (self.rank - done) % self.world_size
        endless = 1 << 62
        return range(first + worker * self.world_size, endless, self.world_size * self.workers)


def division(
    num_streams: int,
    *,
    rank: int,
    world_size: int,
    num_workers: int,
    global_batch_size: int,
    micro_batch_size: int,
) -> Division:
    """The division of a run.

    Raises:
        ConfigurationError: Listing every setting that violates a divisibility constraint.
    """
    workers = max(num_workers, 1)
    problems = []
    if num_streams < 1 or num_streams % (world_size * workers):
        problems.append(
            f"data_config.num_streams={num_streams} is not a multiple of the processes times their "
            f"loader workers: {world_size} x {workers} (data_config.num_workers) = "
            f"{world_size * workers}; change num_streams (on a resumed run: num_workers)"
        )
    if global_batch_size < 1 or global_batch_size % world_size:
        problems.append(
            f"the global batch of {global_batch_size} sequences is not a multiple of the "
            f"{world_size} processes"
        )
    elif micro_batch_size < 1 or (global_batch_size // world_size) % micro_batch_size:
        problems.append(
            f"a process's part of the global batch, {global_batch_size} / {world_size} = "
            f"{global_batch_size // world_size} sequences, is not a multiple of "
            f"data_config.per_device_train_batch_size={micro_batch_size}"
        )
    if problems:
        raise ConfigurationError("\n".join(problems))
    return Division(num_streams, rank, world_size, workers)


def sequences_done(positions: dict[int, Position], order: SequenceOrder) -> int:
    """The number of sequences a run has consumed, from the positions of all its streams.

    Raises:
        ConfigurationError: If the positions do not correspond to a whole number of steps.
    """
    emitted = [positions[stream].emitted if stream in positions else 0 for stream in order.streams]
    done = sum(emitted)
    expected = [order.before(stream, done) for stream in order.streams]
    if emitted != expected or set(positions) - set(order.streams):
        raise ConfigurationError(
            f"the saved data state is incomplete: its streams have yielded {emitted} sequences, "
            "which no run of whole steps does; it was not merged over all processes, or is damaged"
        )
    return done


class SequenceOrder:
    """The streams from which the sequences of a run come in turn.

    The streams of all sources are numbered through: stream k of source i is i * S + k.

    Args:
        weights: The weight of each source; one for a run without a mixture.
        num_streams: S, the streams of each source.
    """

    def __init__(self, weights: Sequence[float], num_streams: int) -> None:
        self._sources = period_of(tuple(parts_of(weights)))
        self._num_streams = num_streams
        self._is_mixture = len(weights) > 1
        self._period = math.lcm(len(self._sources), num_streams)
        self._known: dict[int, np.ndarray] = {}
        self.streams = range(len(weights) * num_streams)

    def stream(self, number: int) -> int:
        """The stream of a sequence of the run."""
        stream = number % self._num_streams
        if self._is_mixture:
            stream += int(self._sources[number % len(self._sources)]) * self._num_streams
        return stream

    def number(self, stream: int, index: int) -> int:
        """The number in the run of a stream's sequence `index`."""
        places = self._places(stream)
        periods, index = divmod(index, len(places))
        return periods * self._period + int(places[index])

    def before(self, stream: int, number: int) -> int:
        """How many sequences of a stream come before a sequence of the run."""
        places = self._places(stream)
        periods, place = divmod(number, self._period)
        return periods * len(places) + int(np.searchsorted(places, place))

    def portions(self, source: int) -> list[int]:
        """How many sequences each stream of a source yields in a period of the streams."""
        first = source * self._num_streams
        return [len(self._places(first + place)) for place in range(self._num_streams)]

    def _places(self, stream: int) -> np.ndarray:
        if stream not in self._known:
            self._known[stream] = self._places_of(stream)
        return self._known[stream]

    def _places_of(self, stream: int) -> np.ndarray:
        """The numbers below lcm(D, S) of a stream's sequences, increasing (int64).

        Place n of a period is that of the sequences n + t D, which come from stream k of their
        source where n + t D = k (mod S): never, or for one t below S / gcd(D, S).
        """
        source, residue = divmod(stream, self._num_streams)
        size = len(self._sources)
        divisor = math.gcd(size, self._num_streams)
        turns = self._num_streams // divisor
        places = np.flatnonzero(self._sources == source)
        places = places[(places - residue) % divisor == 0]
        inverse = pow(size // divisor, -1, turns)
        times = (residue - places) // divisor * inverse % turns
        return np.sort(places + times * size)


def sequence_order(config: DataConfig) -> SequenceOrder:
    """The order of the sequences of a run."""
    return SequenceOrder([source.weight for source in config.sources] or [1.0], config.num_streams)


@lru_cache(maxsize=4)
def period_of(parts: tuple[int, ...]) -> np.ndarray:
    """The source of each sequence of a period (uint16[D])."""
    size = sum(parts)
    waiting = [(0, source) for source in range(len(parts))]  # window begins, source
    open_windows: list[tuple[int, int]] = []  # window ends, source
    served = [0] * len(parts)
    chosen = np.zeros(size, np.uint16)
    for place in range(size):
        while waiting and waiting[0][0] <= place:
            _, source = heapq.heappop(waiting)
            end = -(-(served[source] + 1) * size // parts[source])
            heapq.heappush(open_windows, (end, source))
        _, source = heapq.heappop(open_windows)
        chosen[place] = source
        served[source] += 1
        if served[source] < parts[source]:
            heapq.heappush(waiting, (served[source] * size // parts[source], source))
    return chosen
