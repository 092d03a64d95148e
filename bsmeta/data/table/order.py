"""Which rows make up each step of an epoch: integer arithmetic, without reading rows.

The order depends only on (seed, epoch), not on the processes: step t has the same rows for every
world size, number of loader workers and split into micro-batches. Every row is in exactly one
step of an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bsmeta.config.errors import ConfigurationError
from bsmeta.data.seeds import derive, permutation


@dataclass(frozen=True)
class EpochOrder:
    """The steps of one epoch.

    Attributes:
        rows: int64[number of rows], the rows in their order.
        bounds: int64[steps + 1]; step i of the epoch is `rows[bounds[i]:bounds[i + 1]]`.
    """

    rows: np.ndarray
    bounds: np.ndarray

    def step(self, index: int) -> np.ndarray:
        """The rows of one step of the epoch."""
        return self.rows[self.bounds[index] : self.bounds[index + 1]]


class StepOrder(Protocol):
    """Cuts every epoch into steps."""

    steps_per_epoch: int
    """Number of steps, the same for every epoch."""

    shares: int | None
    """The number that processes x accumulation must divide; None: no constraint."""

    def epoch(self, epoch: int) -> EpochOrder:
        """The steps of an epoch (counted from 0)."""


class FixedSize:
    """Steps of `batch_size` rows; the last step of an epoch has the remaining rows.

    Raises:
        ConfigurationError: If there are no rows, or the batch size is not positive.
    """

    shares: int | None = None

    def __init__(self, num_rows: int, batch_size: int, seed: int) -> None:
        if num_rows < 1 or batch_size < 1:
            raise ConfigurationError(
                f"{num_rows} rows in steps of {batch_size}: both must be at least 1"
            )
        self._num_rows = num_rows
        self._batch_size = batch_size
        self._seed = seed
        self.steps_per_epoch = -(-num_rows // batch_size)

    def epoch(self, epoch: int) -> EpochOrder:
        rows = permutation(self._num_rows, derive(self._seed, "rows", epoch))
        bounds = np.arange(self.steps_per_epoch + 1) * self._batch_size
        return EpochOrder(rows, np.minimum(bounds, self._num_rows))


class SimilarLengths(FixedSize):
    """Steps of `batch_size` rows of similar length, which need little padding.

    An epoch's rows are shuffled; those of every `SORTED_STEPS` steps are sorted by length and cut
    into steps, which are shuffled. One step of an epoch has the remaining rows.

    Args:
        lengths: Tokens of each row, int[number of rows].
        batch_size: Rows of a step.
        seed: Seed of the run.
    """

    SORTED_STEPS = 50

    def __init__(self, lengths: np.ndarray, batch_size: int, seed: int) -> None:
        super().__init__(len(lengths), batch_size, seed)
        self._lengths = np.asarray(lengths)

    def epoch(self, epoch: int) -> EpochOrder:
        shuffled = super().epoch(epoch).rows
        part = np.arange(len(shuffled)) // (self.SORTED_STEPS * self._batch_size)
        rows = shuffled[np.lexsort((self._lengths[shuffled], part))]
        turn = permutation(self.steps_per_epoch, derive(self._seed, "steps", epoch))
        steps = np.array_split(rows, np.arange(self._batch_size, len(rows), self._batch_size))
        chosen = [steps[number] for number in turn]
        bounds = np.cumsum([0, *map(len, chosen)])
        return EpochOrder(np.concatenate(chosen), bounds)


class TokenBudget:
    """Steps of rows of similar length whose padded tokens fit a budget over all processes.

    Rows are bucketed by `length // span`. A step has rows of one bucket: as many as fit when each
    is padded to the bucket's longest row and the budget is cut into `shares` equal parts, so that
    no process exceeds its part of the budget, for any number of processes that divides `shares`.

    Args:
        lengths: Tokens of each row, int[number of rows].
        budget: Padded tokens of a step over all processes.
        span: Width of a bucket, in tokens.
        shares: Parts of the budget; processes x accumulation must divide it.
        seed: Seed of the run.

    Raises:
        ConfigurationError: If a row does not fit into its part of the budget.
    """

    def __init__(self, lengths: np.ndarray, budget: int, span: int, shares: int, seed: int) -> None:
        if len(lengths) == 0:
            raise ConfigurationError("a token budget for no rows: the table is empty")
        self.shares: int | None = shares
        self._seed = seed
        self._buckets = np.asarray(lengths) // span
        numbers, place, counts = np.unique(self._buckets, return_inverse=True, return_counts=True)
        longest = np.zeros(len(numbers), np.int64)
        np.maximum.at(longest, place, lengths)
        if longest.max() * shares > budget:
            raise ConfigurationError(
                f"the longest example has {longest.max():,} tokens and does not fit into its part "
                f"of the budget: batch_max_length={budget:,} over batch_shares={shares} leaves "
                f"{budget // shares:,} tokens; expected batch_max_length of at least "
                f"{longest.max() * shares:,}, fewer shares, or shorter examples"
            )
        self._place = place
        self._rows_per_step = shares * (budget // shares // np.maximum(longest, 1))
        self._steps = -(-counts // self._rows_per_step)
        self._counts = counts
        self.steps_per_epoch = int(self._steps.sum())

    def epoch(self, epoch: int) -> EpochOrder:
        shuffled = permutation(len(self._place), derive(self._seed, "rows", epoch))
        by_bucket = shuffled[np.argsort(self._place[shuffled], kind="stable")]
        first_step = np.cumsum(self._steps) - self._steps
        first_row = np.cumsum(self._counts) - self._counts
        in_bucket = np.arange(len(by_bucket)) - np.repeat(first_row, self._counts)
        rows_per_step = np.repeat(self._rows_per_step, self._counts)
        step = np.repeat(first_step, self._counts) + in_bucket // rows_per_step
        turn = np.empty(self.steps_per_epoch, np.int64)
        seed = derive(self._seed, "steps", epoch)
        turn[permutation(self.steps_per_epoch, seed)] = np.arange(self.steps_per_epoch)
        sizes = np.bincount(turn[step], minlength=self.steps_per_epoch)
        rows = by_bucket[np.argsort(turn[step], kind="stable")]
        return EpochOrder(rows, np.concatenate([[0], np.cumsum(sizes)]))
