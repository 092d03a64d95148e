"""Samples → pairs of a text and its correction, with noise, and the steps of a rank.

The errors of a sample follow from the seed, the epoch and the sample, not from the process or the
batch that it is in: they are the same after a resume and for any number of processes, and others in
every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bsmeta.core.progress import reporting
from bsmeta.tasks.spelling.characters import CharacterNoise
from bsmeta.tasks.spelling.config import DetectionConfig, SpellingConfig
from bsmeta.tasks.spelling.misspellings import load_misspellings
from bsmeta.tasks.spelling.noise import Noise
from bsmeta.tasks.spelling.samples import Sample
from bsmeta.tasks.spelling.table import Table, is_small

VALIDATION = -1
"""The epoch of the validation, whose noise is always the same."""


@dataclass(frozen=True)
class Pair:
    """A text and its correction, in words.

    Attributes:
        source: The words as they are read.
        correct: The corrected words; the same number, unless the data set says otherwise.
        name: Where it is from, for `log_documents`.
    """

    source: list[str]
    correct: list[str]
    name: str


class Pairs:
    """The pairs of a run, by the number of the sample.

    Args:
        table: The samples.
        noise: The errors of samples without a target.
        seed: Seed of the run.
    """

    def __init__(self, table: Table, noise: Noise, seed: int) -> None:
        self.table = table
        self.noise = noise
        self._seed = seed

    def read(self, numbers: np.ndarray, epoch: int) -> list[Pair]:
        """The pairs of some samples in an epoch (`VALIDATION` for held-out ones)."""
        samples = reporting(self.table.read(numbers))
        return [
            self._pair(sample, number, epoch)
            for sample, number in zip(samples, numbers.tolist(), strict=True)
        ]

    def _pair(self, sample: Sample, number: int, epoch: int) -> Pair:
        correct = sample.correct.split()
        if sample.target is not None:
            return Pair(sample.source.split(), correct, sample.name)
        source = self.noise.corrupt(
            sample.correct, seed=self._seed, epoch=epoch, sample=number
        ).split()
        return Pair(source, correct, sample.name)


def make_noise(config: SpellingConfig) -> Noise:
    """The errors of a run; detection needs a label for each word, so their number is kept."""
    noise = config.noise
    known = {} if noise.method == "artificial" else load_misspellings(noise.misspellings)
    return Noise(
        method=noise.method,  # type: ignore[arg-type]
        misspellings=known,
        characters=CharacterNoise.estimate(known) if noise.learned_characters else None,
        word_probability=noise.word_probability,
        artificial_share=noise.artificial_share,
        edit_probability=noise.edit_probability,
        letters=noise.letters,
        lost_case=noise.lost_case,
        accent_share=noise.accent_share,
        slip_share=noise.slip_share,
        slip_probability=noise.slip_probability,
        clean_share=noise.clean_share,
        keep_word_count=isinstance(config, DetectionConfig) or is_small(config),
    )


def fitting(pair: Pair, fits: Callable[[Sequence[str], int], bool], room: int) -> Pair:
    """The pair without those of its last errors for which a batch has no room.

    If errors merge or split words, it is the pair without any error.

    Args:
        pair: A pair whose correct text fits.
        fits: Whether a text fits into a number of tokens.
        room: The tokens that the batch has room for.
    """
    if fits(pair.source, room):
        return pair
    if len(pair.source) != len(pair.correct):
        return replace(pair, source=pair.correct)
    source = list(pair.source)
    for place in reversed(range(len(source))):
        source[place] = pair.correct[place]
        if fits(source, room):
            break
    return replace(pair, source=source)
