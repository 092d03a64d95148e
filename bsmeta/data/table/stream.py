"""The steps of one rank over the rows of a table, from the start or from a saved state.

Which rows make up a step depends only on (seed, epoch), not on the processes: step t has the same
rows for every world size, number of loader workers and split into micro-batches, and every row is
in exactly one step of an epoch. The rows of a step are divided among processes and micro-batches
within the step. The state is the number of steps done.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from bsmeta.core.errors import ConfigurationError, UserError, differing
from bsmeta.data import derive, permutation
from bsmeta.data.batch import MicroBatch, StepData, set_up_worker

Collate = Callable[[np.ndarray, int], MicroBatch]
"""Builds a micro-batch from some rows (at least one) in an epoch."""


@dataclass(frozen=True)
class EpochOrder(Sequence[np.ndarray]):
    """The rows of each step of an epoch.

    There is no array for each step until it is requested: a large table has millions of steps.

    Attributes:
        rows: The rows in the order of the epoch, int64[number of rows].
        bounds: Where the parts of `rows` begin, and where the last one ends, int64[steps + 1].
        turn: The part that each step has, int64[steps].
    """

    rows: np.ndarray
    bounds: np.ndarray
    turn: Sequence[int] | np.ndarray

    def __len__(self) -> int:
        return len(self.turn)

    def __getitem__(self, step: Any) -> Any:
        part = self.turn[step]
        return self.rows[self.bounds[part] : self.bounds[part + 1]]


class StepOrder(ABC):
    """Cuts every epoch into steps.

    Attributes:
        steps_per_epoch: Number of steps, the same for every epoch.
        shares: The number that processes x accumulation must divide; None: no constraint.
    """

    steps_per_epoch: int
    shares: int | None = None

    @abstractmethod
    def epoch(self, epoch: int) -> EpochOrder:
        """The steps of an epoch (counted from 0)."""


class FixedSize(StepOrder):
    """Steps of `batch_size` rows; the last step of an epoch has the remaining rows.

    Raises:
        ConfigurationError: If there are no rows, or the batch size is not positive.
    """

    def __init__(self, num_rows: int, batch_size: int, seed: int) -> None:
        if num_rows < 1 or batch_size < 1:
            raise ConfigurationError(
                f"{num_rows} rows in steps of {batch_size}: both must be at least 1"
            )
        self._num_rows = num_rows
        self._batch_size = batch_size
        self._seed = seed
        self._bounds = np.append(np.arange(0, num_rows, batch_size), num_rows)
        self.steps_per_epoch = len(self._bounds) - 1

    def epoch(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._shuffled(epoch), self._bounds, range(self.steps_per_epoch))

    def _shuffled(self, epoch: int) -> np.ndarray:
        return permutation(self._num_rows, derive(self._seed, "rows", epoch))


class SimilarLengths(FixedSize):
    """Steps of `batch_size` rows of similar length, which need little padding.

    An epoch's rows are shuffled; those of every `SORTED_STEPS` steps are sorted by length and cut
    into steps, which are shuffled. One step of an epoch has the remaining rows.

    Args:
        lengths: Tokens of each row, int[number of rows].
    """

    SORTED_STEPS = 50

    def __init__(self, lengths: np.ndarray, batch_size: int, seed: int) -> None:
        super().__init__(len(lengths), batch_size, seed)
        self._lengths = np.asarray(lengths)

    def epoch(self, epoch: int) -> EpochOrder:
        shuffled = self._shuffled(epoch)
        part = np.arange(len(shuffled)) // (self.SORTED_STEPS * self._batch_size)
        rows = shuffled[np.lexsort((self._lengths[shuffled], part))]
        turn = permutation(self.steps_per_epoch, derive(self._seed, "steps", epoch))
        return EpochOrder(rows, self._bounds, turn)


class TokenBudget(StepOrder):
    """Steps of rows of similar length whose padded tokens fill a budget over all processes.

    An epoch's rows are shuffled, ordered by bucket (`length // span`), from long to short, and cut
    into steps, which are shuffled. A step takes rows until its budget is full, with each row padded
    to the longest of the bucket in which the step begins. The budget is cut into `shares` equal
    parts, so that no process exceeds its part, for any number of processes that divides `shares`.
    Where a bucket ends, the step continues with the next; one step of an epoch has the remaining
    rows.

    Args:
        lengths: Tokens of each row, int[number of rows].
        budget: Padded tokens of a step over all processes.
        span: Width of a bucket, in tokens.
        shares: Parts of the budget; processes x accumulation must divide it.

    Raises:
        ConfigurationError: If a row does not fit into its part of the budget.
    """

    def __init__(self, lengths: np.ndarray, budget: int, span: int, shares: int, seed: int) -> None:
        if len(lengths) == 0:
            raise ConfigurationError("a token budget for no rows: the table is empty")
        self.shares = shares
        self._seed = seed
        buckets = -(np.asarray(lengths) // span)
        numbers, place, counts = np.unique(buckets, return_inverse=True, return_counts=True)
        longest = np.zeros(len(numbers), np.int64)
        np.maximum.at(longest, place, lengths)
        if longest[0] * shares > budget:
            raise ConfigurationError(
                f"the longest example has {longest[0]:,} tokens and does not fit into its part "
                f"of the budget: batch_max_length={budget:,} over batch_shares={shares} leaves "
                f"{budget // shares:,} tokens; expected batch_max_length of at least "
                f"{longest[0] * shares:,}, fewer shares, or shorter examples"
            )
        self._place = place.astype(np.int32)  # the number of each row's bucket, the longest first
        sizes = shares * (budget // shares // np.maximum(longest, 1))
        self._bounds = np.minimum(_bounds(counts.tolist(), sizes.tolist()), len(lengths))
        self.steps_per_epoch = len(self._bounds) - 1

    def epoch(self, epoch: int) -> EpochOrder:
        shuffled = permutation(len(self._place), derive(self._seed, "rows", epoch))
        rows = shuffled[np.argsort(self._place[shuffled], kind="stable")]
        turn = permutation(self.steps_per_epoch, derive(self._seed, "steps", epoch))
        return EpochOrder(rows, self._bounds, turn)


def _bounds(counts: list[int], sizes: list[int]) -> np.ndarray:
    """Where steps begin in rows that are ordered by bucket: int64[steps + 1].

    Args:
        sizes: Rows of a step that begins in each bucket.
    """
    steps: list[np.ndarray] = []
    taken = 0  # rows of this bucket that the last step before it has
    for count, size in zip(counts, sizes, strict=True):
        remaining = count - taken
        own = max(-(-remaining // size), 0)
        steps.append(np.full(own, size))
        taken = own * size - remaining
    return np.concatenate([[0], np.cumsum(np.concatenate(steps))])


class TableStream:
    """This rank's steps in the order of the run; endless, epoch after epoch.

    Args:
        collate: Builds a micro-batch; called in the loader workers.
        accumulation: Micro-batches per step, the same for each process and step.
        num_workers: Number of loader processes; 0 does all work in this process.
        fingerprint: What must be equal for a saved state to be usable.
        state: `{"steps": n, "fingerprint": ...}` as saved with a checkpoint; None starts from the
            beginning.

    Raises:
        ConfigurationError: If processes x accumulation do not divide the order's shares, or the
            state belongs to other rows.
    """

    def __init__(
        self,
        order: StepOrder,
        collate: Collate,
        *,
        rank: int,
        world_size: int,
        accumulation: int,
        num_workers: int,
        fingerprint: dict[str, Any],
        state: dict[str, Any] | None = None,
    ) -> None:
        parts = world_size * accumulation
        if order.shares is not None and order.shares % parts:
            raise ConfigurationError(
                f"batch_shares={order.shares} is not a multiple of processes x "
                f"gradient_accumulation_steps = {world_size} x {accumulation} = {parts}"
            )
        saved = fingerprint if state is None else state["fingerprint"]
        changed = "\n".join(differing(saved, fingerprint, "in the checkpoint"))
        if changed:
            raise ConfigurationError(
                "the checkpoint is of a run on other rows, which cannot be continued exactly; "
                f"restore these, or start a new run:\n{changed}"
            )
        self.fingerprint = fingerprint
        self._steps = _Steps(order, collate, rank, world_size, accumulation)
        self._num_workers = num_workers
        self._done = 0 if state is None else int(state["steps"])

    @property
    def state(self) -> dict[str, Any]:
        """The state before the first step."""
        return {"steps": self._done}

    def __iter__(self) -> Iterator[StepData]:
        """The steps from the state on.

        Raises:
            UserError: Raised while building a batch, in any process.
        """
        loader = DataLoader(
            self._steps,
            sampler=itertools.count(self._done),
            batch_size=None,
            num_workers=self._num_workers,
            worker_init_fn=set_up_worker,
            generator=torch.Generator(),  # the global generator is used by dropout
        )
        for number, batches in enumerate(loader, start=self._done + 1):
            if isinstance(batches, UserError):
                raise batches
            yield StepData(batches, {"steps": number})

    @staticmethod
    def merge(states: list[dict[str, Any]]) -> dict[str, Any]:
        """The state of the run from those of all ranks, which are at the same step."""
        assert all(state == states[0] for state in states), f"ranks disagree: {states}"
        return states[0]


class _Steps(Dataset):
    """Step t of the run as this rank's micro-batches."""

    def __init__(
        self, order: StepOrder, collate: Collate, rank: int, world_size: int, accumulation: int
    ) -> None:
        self._order = order
        self._collate = collate
        self._parts = world_size * accumulation
        self._own = range(rank, self._parts, world_size)
        self._epoch: tuple[int, EpochOrder] | None = None

    def __getitem__(self, step: int) -> list[MicroBatch] | UserError:
        epoch, index = divmod(step, self._order.steps_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._order.epoch(epoch))
        rows = self._epoch[1][index]
        dealt = np.array_split(rows, self._parts)
        try:
            return [self._micro_batch(dealt[part], rows, epoch) for part in self._own]
        except UserError as error:
            return error  # raised in the trainer's process, without a worker's stack trace

    def _micro_batch(self, own: np.ndarray, rows: np.ndarray, epoch: int) -> MicroBatch:
        if len(own):
            return self._collate(own, epoch)
        # Fewer rows than micro-batches: every process must still take part in the step.
        filler = self._collate(rows[:1], epoch)
        size = filler.tokens + filler.padding
        counts = dict.fromkeys(filler.counts, 0.0)
        return replace(filler, weight=0.0, tokens=0, padding=size, documents=[], counts=counts)
