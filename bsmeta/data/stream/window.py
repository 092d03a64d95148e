"""Windows: groups of documents of a shard that are turned into sequences together.

`corpora` reads a window, `window_maker` turns it into sequences. No state is carried from one
window to the next, and the sequences depend only on (seed, epoch, shard, document numbers), so a
window can be rebuilt at any time.
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
        epoch: The epoch in which the stream reads them.
        numbers: Numbers of the documents in the shard, from 0 and increasing.
        lines: The line of each document; shorter than `numbers` if the shard ends before the last.
        damage: Why the shard cannot be read after these lines; "" if it is not damaged.
    """

    epoch: int
    shard: Shard
    numbers: Sequence[int]
    lines: Sequence[Line]
    damage: str = ""

    def derive_seed(self, seed: int, purpose: str) -> int:
        """Derives a seed for random choices in this window.

        Args:
            seed: Seed of the run.
            purpose: Distinguishes this seed from others for the same window.
        """
        return derive_seed(seed, purpose, self.epoch, self.shard.name, self.numbers[0])


class PlacedWindow(NamedTuple):
    """A window and its position in the epoch.

    Attributes:
        share_index: Index of the share in the order of its epoch.
        window_index: Index of the window in its share.
    """

    share_index: int
    window_index: int
    window: Window
