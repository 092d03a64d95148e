"""Random draws that are identified by what they are for, and fast one at a time."""

from __future__ import annotations

import numpy as np

from bsmeta.data.seeds import derive

_BLOCK = 64


class Draws:
    """The draws about one sample in one epoch.

    They come from the raw words of PCG64, whose stream NumPy guarantees to be stable, unlike the
    methods of `Generator`; so noise is the same with every version of NumPy.

    Args:
        parts: What identifies the sample: (seed, epoch, id).
    """

    def __init__(self, *parts: int | str) -> None:
        self._words = np.random.PCG64(derive("spelling", *parts))
        self._block: list[float] = []

    def uniforms(self, count: int) -> np.ndarray:
        """Uniform numbers in [0, 1): float64 [count]."""
        return (self._words.random_raw(count) >> np.uint64(11)) * 2.0**-53

    def uniform(self) -> float:
        """A uniform number in [0, 1)."""
        if not self._block:
            self._block = self.uniforms(_BLOCK).tolist()
        return self._block.pop()

    def below(self, count: int) -> int:
        """One of 0, ..., count - 1."""
        return int(self.uniform() * count)

    def geometric(self, probability: float) -> int:
        """The number of trials until the first success."""
        trials = 1
        while self.uniform() >= probability:
            trials += 1
        return trials
