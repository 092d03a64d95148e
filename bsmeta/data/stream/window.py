"""A window: some documents of a shard that become sequences together.

`corpora` reads it, `window_maker` turns it into sequences. Nothing crosses a window, and the
sequences depend only on (seed, epoch, shard, document numbers), so that it can be rebuilt at any
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bsmeta.data import derive_seed
from bsmeta.data.io.shards import Shard
from bsmeta.metadata.records import Line


@dataclass(frozen=True, slots=True)
class Window:
    """Some documents of a shard that are turned into sequences together.

    Attributes:
        epoch: The epoch of the stream that reads them.
        numbers: Shard-level numbers of the documents that belong to it, increasing.
        lines: One document each, for the first of those numbers: fewer if the shard ends.
        damage: Why the shard cannot be read after these lines; empty if it can.
    """

    epoch: int
    shard: Shard
    numbers: Sequence[int]
    lines: Sequence[Line]
    damage: str = ""

    def derive_seed(self, seed: int, purpose: str) -> int:
        """Derives the seed of a choice about the whole window from the seed of the run."""
        return derive_seed(seed, purpose, self.epoch, self.shard.name, self.numbers[0])


class PlacedWindow(NamedTuple):
    """A window and its position in the epoch.

    Attributes:
        share: Index of the share in the order of its epoch.
        number: Index of the window in its share.
    """

    share: int
    number: int
    window: Window
