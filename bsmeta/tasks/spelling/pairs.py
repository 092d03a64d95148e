"""Samples → pairs of a text and its correction, with noise, and the steps of a rank.

The errors of a sample follow from the seed, the epoch and the sample, not from the process or the
batch that it is in: they are the same after a resume and for any number of processes, and others in
every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.spelling import LEAST_TOKENS, DetectionConfig, SpellingConfig
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import TableStream, TokenBudget
from bsmeta.tasks.spelling.characters import CharacterNoise
from bsmeta.tasks.spelling.misspellings import load_misspellings
from bsmeta.tasks.spelling.noise import Noise
from bsmeta.tasks.spelling.table import Sample, Table

MOST_SHARES = 64
VALIDATION = -1
"""The epoch of the validation, whose noise is always the same."""


@dataclass(frozen=True)
class Pair:
    """A text and its correction, in words.

    Attributes:
        source: The words as they are read.
        correct: The words as they should be; as many, unless the data set says otherwise.
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
        samples = self.table.read(numbers)
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
        clean_share=noise.clean_share,
        keep_word_count=isinstance(config, DetectionConfig),
    )


def fitting(pair: Pair, fits: Callable[[Sequence[str], int], bool], room: int) -> Pair:
    """The pair without those of its last errors for which a batch has no room.

    If errors merge or split words, it is the pair without any error.

    Args:
        pair: A pair whose correct text fits.
        fits: Whether a text has at most so many tokens.
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


def shares_of(config: SpellingConfig) -> int:
    """The parts into which every step can be divided."""
    if config.batch_shares is not None:
        return config.batch_shares
    return min(1 << ((config.batch_max_length // LEAST_TOKENS).bit_length() - 1), MOST_SHARES)


def budget_of(config: SpellingConfig, lengths: np.ndarray) -> TokenBudget:
    """The steps of every epoch.

    Args:
        config: The run.
        lengths: The most tokens that each training sample may have.

    Raises:
        ConfigurationError: If there is nothing to train on, or a sample is too long.
    """
    shares = shares_of(config)
    longest, room = int(lengths.max(initial=0)), config.batch_max_length // shares
    if longest > room:
        raise ConfigurationError(
            f"the longest sample may have {longest:,} tokens, but a part of a step has "
            f"{room:,}: batch_max_length={config.batch_max_length:,} in batch_shares={shares}; "
            f"expected batch_max_length of at least {longest * shares:,}, fewer batch_shares, or "
            f"a smaller max_characters (now {config.max_characters})",
            ["batch_max_length"],
        )
    return TokenBudget(lengths, config.batch_max_length, config.bucket_span, shares, config.seed)


def train_stream(
    config: SpellingConfig,
    pairs: Pairs,
    order: TokenBudget,
    collate: Callable[[list[Pair], np.ndarray], MicroBatch],
    *,
    rank: int,
    world_size: int,
    state: dict[str, Any] | None,
) -> TableStream:
    """This rank's steps, from a saved state or from the beginning.

    Args:
        config: The run.
        pairs: Its pairs.
        order: The steps, over the samples of the training split.
        collate: Builds a micro-batch of pairs and their places in the training split; called in
            the loader workers.
        rank: This process.
        world_size: Number of processes.
        state: As saved with a checkpoint; None starts from the beginning.

    Raises:
        ConfigurationError: If a process would have too few tokens, or the state is of other data.
    """
    numbers = pairs.table.numbers("train")
    parts = world_size * config.gradient_accumulation_steps
    if config.batch_max_length < LEAST_TOKENS * parts:
        raise ConfigurationError(
            f"batch_max_length={config.batch_max_length:,} over {world_size} processes x "
            f"gradient_accumulation_steps={config.gradient_accumulation_steps} leaves "
            f"{config.batch_max_length // parts} tokens each; expected at least {LEAST_TOKENS}: "
            f"batch_max_length={LEAST_TOKENS * parts}, or fewer processes",
            ["batch_max_length"],
        )

    def read(rows: np.ndarray, epoch: int) -> MicroBatch:
        return collate(pairs.read(numbers[rows], epoch), rows)

    return TableStream(
        order,
        read,
        rank=rank,
        world_size=world_size,
        accumulation=config.gradient_accumulation_steps,
        num_workers=config.num_workers,
        fingerprint={
            **pairs.table.key,
            "task": config.task,
            "noise": vars(config.noise),
            "misspellings": pairs.noise.misspellings_hash,
            "batch_max_length": config.batch_max_length,
            "bucket_span": config.bucket_span,
            "batch_shares": shares_of(config),
        },
        state=state,
    )
