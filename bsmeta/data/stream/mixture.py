"""Which source, and which stream of it, each sequence of a run comes from: integer arithmetic only.

With shares p_i / D in lowest terms, a period of D sequences has p_i of source i. After any n
sequences there have been between floor(n p_i / D) and ceil(n p_i / D) of them, so every prefix of a
run is within one sequence of its shares: the j-th sequence of a source has a window of places, and
serving the source whose window ends first meets all windows (Baruah et al. 1996, "Proportionate
progress: a notion of fairness in resource allocation").

Sequence g comes from stream g mod S of its source, so that a stream always has the same reader
(`plan.Division`). Where S and D have a common divisor, the streams of a source do not yield equally
many sequences, some even none: its documents are dealt to them in proportion (`portions`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from bsmeta.config.data import DataConfig, parts_of


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
