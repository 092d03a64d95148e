"""Divide the documents evenly among logical streams, for any number of streams and shards.

Whole shards cannot be divided evenly among any number of streams, and the number of documents in a
shard is unknown until it has been read. So the bytes of all shards, laid end to end, are cut into
parts of equal length, one per stream; where a cut falls inside a shard, its documents are dealt to
the streams on both sides in proportion to their bytes, one run of documents at a time. This is
arithmetic on the sizes of the shards: no file is opened, and the lines of any window follow
directly from a stream's share. The cost, for each shard that is cut, is that each stream skips the
documents of the others, using access points where a shard has them.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bsmeta.data.io.shards import PARQUET, Shard
from bsmeta.data.seeds import derive, permutation

SLOTS = 64
"""Minimum slots of a stream in a divided shard: a share is accurate to one part in this many."""

RUNS = 64
"""Approximate runs of documents per stream in a divided shard. Longer runs leave longer gaps, which
access points skip; shorter runs are divided more evenly."""

DOCUMENT = 8192
"""Approximate bytes of a compressed document; those of c4-en-html-with-metadata have 13,000."""

COMPRESSION = 5
"""Assumed compression ratio: how many times as large uncompressed shards are."""

TOLERANCE = 32
"""A stream may own one part in this many more or less than its due if that keeps a shard whole."""


@dataclass(frozen=True, slots=True)
class Share:
    """The documents of a shard that one stream owns; all of them by default.

    Documents are grouped in runs, and run r falls into slot r * step mod cycle (`step_of`). The
    fractions r * step / cycle are spread evenly over 0 to 1 from the first run on, so any prefix of
    a shard is divided in about the same proportion, and no periodicity in the documents is aliased.

    Attributes:
        low: First slot of the stream.
        high: The slot after its last one.
        cycle: Number of slots, a power of two.
        run: Documents in a run.
    """

    shard: Shard
    low: int = 0
    high: int = 1
    cycle: int = 1
    run: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether no other stream owns documents of the shard."""
        return self.high - self.low == self.cycle

    def documents(self, window: int, count: int) -> Sequence[int]:
        """The shard-level numbers of the documents of a window, increasing.

        Args:
            count: Documents of a window.
        """
        first = window * count
        if self.is_whole:
            return range(first, first + count)
        runs, inside = np.divmod(np.arange(first, first + count), self.run)
        own = own_runs(self.low, self.high, self.cycle)
        turns, places = np.divmod(runs, len(own))
        return ((turns * self.cycle + own[places]) * self.run + inside).tolist()

    def window_from(self, document: int, count: int) -> int:
        """The window that contains the stream's first document at or after a number.

        Args:
            count: Documents of a window.
        """
        if self.is_whole:
            return document // count
        run, inside = divmod(document, self.run)
        turn, slot = divmod(run, self.cycle)
        own = own_runs(self.low, self.high, self.cycle)
        place = int(np.searchsorted(own, slot))
        if place == len(own) or own[place] != slot:  # a run of another stream
            inside = 0
        return ((turn * len(own) + place) * self.run + inside) // count


@lru_cache(maxsize=1024)
def own_runs(low: int, high: int, cycle: int) -> np.ndarray:
    """Which of `cycle` runs fall into the slots `low` to before `high`, increasing (int64)."""
    slots = np.arange(cycle) * step_of(cycle) % cycle
    return np.flatnonzero((low <= slots) & (slots < high))


def step_of(cycle: int) -> int:
    """The slot step between consecutive runs: near the golden section, and odd."""
    return int(cycle * (5**0.5 - 1) / 2) | 1


def deal(shards: Sequence[Shard], portions: Sequence[int]) -> list[list[Share]]:
    """The shares of each stream.

    Args:
        shards: The shards, in the order in which they are laid end to end.
        portions: The portion of each stream, relative to the others'.
    """
    ends = [*itertools.accumulate(map(weight, shards))]
    cuts = cuts_of(ends, portions)
    cycle = 1 << (SLOTS * len(portions) - 1).bit_length()
    shares: list[list[Share]] = [[] for _ in portions]
    for shard, begin, end in zip(shards, [0, *ends], ends, strict=False):
        first = bisect.bisect_right(cuts, begin)
        last = bisect.bisect_left(cuts, end)
        if first == last:
            shares[first].append(Share(shard))
            continue
        run = max(shard.size // (DOCUMENT * RUNS * (last - first + 1)), 1)
        inside = [(cut - begin) * cycle // (end - begin) for cut in cuts[first:last]]
        bounds = itertools.pairwise([0, *inside, cycle])
        for stream, (low, high) in enumerate(bounds, start=first):
            if low < high:
                shares[stream].append(Share(shard, low, high, cycle, run))
    return shares


def weight(shard: Shard) -> int:
    """The weight of a shard when documents are divided: its bytes, as if it were compressed."""
    compressed = shard.name.endswith((".gz", ".zst", PARQUET))
    return max(shard.size if compressed else shard.size // COMPRESSION, 1)


def cuts_of(ends: Sequence[int], portions: Sequence[int]) -> list[int]:
    """The ends of all streams but the last: by their portions, inside a shard only if necessary.

    Args:
        ends: Where each shard ends when they are laid end to end.
        portions: The portion of each stream, relative to the others'.
    """
    cuts: list[int] = []
    begin, left = 0, sum(portions)
    for portion in portions[:-1]:
        due = (ends[-1] - begin) * portion // max(left, 1)
        left -= portion
        cut = begin + due
        place = bisect.bisect_left(ends, cut)
        nearest = min(ends[max(place - 1, 0) : place + 1], key=lambda end: abs(end - cut))
        if abs(nearest - cut) * TOLERANCE <= due:
            cut = nearest
        cuts.append(cut)
        begin = cut
    return cuts


def order_of(shares: Sequence[Share], seed: int, epoch: int, stream: int) -> list[Share]:
    """The order in which a stream reads its shares in one epoch."""
    order = permutation(len(shares), derive(seed, "shares", epoch, stream))
    return [shares[index] for index in order]
