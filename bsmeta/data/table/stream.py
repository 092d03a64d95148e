"""Streams the steps of one rank over the rows of a table, from the start or from a saved state.

The rows of a step do not depend on the processes: step t has the same rows for every world size,
number of loader workers and number of micro-batches. Every row is in exactly one step of an epoch.
Within a step, the rows are divided among processes and micro-batches. The state is the number of
completed steps.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from bsmeta.core.errors import ConfigurationError, UserError, describe_differences
from bsmeta.core.rounding import divide_up
from bsmeta.data import derive_seed, permute
from bsmeta.data.batch import MicroBatch, StepData, set_up_worker
from bsmeta.data.loader import make_loader

Collate = Callable[[np.ndarray, int], MicroBatch]
"""Builds a micro-batch from the indices of its rows (at least one) and the epoch."""


@dataclass(frozen=True)
class EpochOrder(Sequence[np.ndarray]):
    """The rows of each step of an epoch.

    The array of a step is created only when it is requested, because a large table has millions of
    steps.

    Attributes:
        rows: Indices of the rows in the order of the epoch, int64[rows].
        bounds: Start of each slice of `rows`, then the end of the last, int64[steps + 1].
        slices: Index of the slice of each step, int64[steps].
    """

    rows: np.ndarray
    bounds: np.ndarray
    slices: Sequence[int] | np.ndarray

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, step: Any) -> Any:
        slice_index = self.slices[step]
        return self.rows[self.bounds[slice_index] : self.bounds[slice_index + 1]]


class StepOrder(ABC):
    """Divides every epoch into steps.

    Attributes:
        steps_per_epoch: Number of steps, the same for every epoch.
        shares: Number of parts of the token budget of a step, which must be a multiple of processes
            x accumulation; None without a budget.
    """

    steps_per_epoch: int
    shares: int | None = None

    @abstractmethod
    def order_epoch(self, epoch: int) -> EpochOrder:
        """Returns the rows of each step of an epoch (counted from 0)."""


class FixedSizeSteps(StepOrder):
    """Divides an epoch into steps of `batch_size` rows; the last step has the remaining rows.

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

    def order_epoch(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._shuffle(epoch), self._bounds, range(self.steps_per_epoch))

    def _shuffle(self, epoch: int) -> np.ndarray:
        """Returns the indices of all rows in the random order of an epoch (int64[rows])."""
        return permute(self._num_rows, derive_seed(self._seed, "rows", epoch))


class SimilarLengthSteps(FixedSizeSteps):
    """Divides an epoch into steps of `batch_size` rows of similar length, to reduce padding.

    The rows of an epoch are shuffled and divided into groups of `STEPS_PER_GROUP` steps. Each group
    is sorted by length and cut into steps; then the steps are shuffled. One step of an epoch has
    the remaining rows.

    Args:
        lengths: Number of tokens of each row, int[rows].
    """

    STEPS_PER_GROUP = 50

    def __init__(self, lengths: np.ndarray, batch_size: int, seed: int) -> None:
        super().__init__(len(lengths), batch_size, seed)
        self._lengths = np.asarray(lengths)

    def order_epoch(self, epoch: int) -> EpochOrder:
        shuffled = self._shuffle(epoch)
        groups = np.arange(len(shuffled)) // (self.STEPS_PER_GROUP * self._batch_size)
        rows = shuffled[np.lexsort((self._lengths[shuffled], groups))]
        slices = permute(self.steps_per_epoch, derive_seed(self._seed, "steps", epoch))
        return EpochOrder(rows, self._bounds, slices)


class TokenBudgetSteps(StepOrder):
    """Divides an epoch into steps of rows of similar length whose padded tokens fill a budget.

    The rows of an epoch are shuffled, ordered by bucket (`length // span`) from long to short, and
    cut into steps; then the steps are shuffled. A step contains the number of rows that fit if all
    have the length of the longest row of the bucket in which the step begins; at the end of a
    bucket, it continues with the next bucket. One step of an epoch has the remaining rows.

    The budget is for all processes together. It consists of `shares` equal parts, so that no
    process exceeds its part, for any number of processes that divides `shares`.

    Args:
        lengths: Number of tokens of each row, int[rows].
        budget: Maximum number of padded tokens of a step over all processes.
        span: Width of a bucket in tokens.
        shares: Number of parts of the budget; a multiple of processes x accumulation.

    Raises:
        ConfigurationError: If a row does not fit into its part of the budget.
    """

    def __init__(self, lengths: np.ndarray, budget: int, span: int, shares: int, seed: int) -> None:
        if len(lengths) == 0:
            raise ConfigurationError("the table has no rows to train on; expected at least one")
        self.shares = shares
        self._seed = seed

        # Number the buckets from long to short, without gaps.
        negative_buckets = -(np.asarray(lengths) // span)
        distinct, buckets, counts = np.unique(
            negative_buckets, return_inverse=True, return_counts=True
        )
        max_lengths = np.zeros(len(distinct), np.int64)  # of each bucket
        np.maximum.at(max_lengths, buckets, lengths)
        if max_lengths[0] * shares > budget:
            raise ConfigurationError(
                f"the longest example has {max_lengths[0]:,} tokens and does not fit into its part "
                f"of the budget: batch_max_length={budget:,} over batch_shares={shares} leaves "
                f"{budget // shares:,} tokens; expected batch_max_length of at least "
                f"{max_lengths[0] * shares:,}, fewer shares, or shorter examples"
            )

        self._buckets = buckets.astype(np.int32)  # of each row
        step_sizes = shares * (budget // shares // np.maximum(max_lengths, 1))
        bounds = _find_bounds(counts.tolist(), step_sizes.tolist())
        self._bounds = np.minimum(bounds, len(lengths))
        self.steps_per_epoch = len(self._bounds) - 1

    def order_epoch(self, epoch: int) -> EpochOrder:
        shuffled = permute(len(self._buckets), derive_seed(self._seed, "rows", epoch))
        rows = shuffled[np.argsort(self._buckets[shuffled], kind="stable")]
        slices = permute(self.steps_per_epoch, derive_seed(self._seed, "steps", epoch))
        return EpochOrder(rows, self._bounds, slices)


def _find_bounds(counts: list[int], step_sizes: list[int]) -> np.ndarray:
    """Returns the bounds of the steps over rows that are ordered by bucket, int64[steps + 1].

    The last step may extend beyond the last row.

    Args:
        counts: Number of rows in each bucket.
        step_sizes: Number of rows of a step that begins in each bucket.
    """
    sizes: list[np.ndarray] = []
    num_taken = 0  # rows of the bucket in a step that begins in an earlier bucket
    for count, step_size in zip(counts, step_sizes, strict=True):
        num_remaining = count - num_taken
        num_steps = max(divide_up(num_remaining, step_size), 0)
        sizes.append(np.full(num_steps, step_size))
        num_taken = num_steps * step_size - num_remaining
    return np.concatenate([[0], np.cumsum(np.concatenate(sizes))])


class TableStream:
    """The endless steps of this rank in the order of the run, epoch after epoch.

    Args:
        order: The steps of each epoch.
        collate: Builds a micro-batch; called in the loader processes.
        accumulation: Number of micro-batches per step and process.
        num_workers: Number of loader processes; 0 does all work in this process.
        fingerprint: Everything about the rows that must be unchanged to resume from a saved state.
        state: `{"steps": n, "fingerprint": ...}` as saved with a checkpoint; None starts from the
            beginning.

    Raises:
        ConfigurationError: If the shares of the order are not a multiple of processes x
            accumulation, or the state belongs to other rows.
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
        micro_batches = world_size * accumulation
        if order.shares is not None and order.shares % micro_batches:
            raise ConfigurationError(
                f"batch_shares={order.shares} is not a multiple of processes x "
                f"gradient_accumulation_steps = {world_size} x {accumulation} = {micro_batches}; "
                "change batch_shares or gradient_accumulation_steps"
            )

        saved = fingerprint if state is None else state["fingerprint"]
        differences = "\n".join(describe_differences(saved, fingerprint, "in the checkpoint"))
        if differences:
            raise ConfigurationError(
                "the checkpoint is from a run on other rows, so the run cannot be continued "
                f"exactly; restore the rows, or start a new run:\n{differences}"
            )

        self.fingerprint = fingerprint
        self._steps = _StepDataset(order, collate, rank, world_size, accumulation)
        self._num_workers = num_workers
        self._completed_steps = 0 if state is None else int(state["steps"])

    @property
    def state(self) -> dict[str, Any]:
        """The state before the first step."""
        return {"steps": self._completed_steps}

    def __iter__(self) -> Iterator[StepData]:
        """Yields the steps after the restored state.

        Raises:
            UserError: If `collate` raises one, in any process.
        """
        loader = make_loader(
            self._steps,
            self._num_workers,
            sampler=itertools.count(self._completed_steps),
            worker_init_fn=set_up_worker,
            generator=torch.Generator(),  # the loader must not advance the dropout generator
        )
        for completed_steps, micro_batches in enumerate(loader, start=self._completed_steps + 1):
            if isinstance(micro_batches, UserError):
                raise micro_batches
            yield StepData(micro_batches, {"steps": completed_steps})

    @staticmethod
    def merge(states: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns the state of the run from the states of all ranks, which must be equal."""
        assert all(state == states[0] for state in states), f"ranks disagree: {states}"
        return states[0]


class _StepDataset(Dataset):
    """A dataset whose item t is the list of this rank's micro-batches in step t of the run."""

    def __init__(
        self,
        order: StepOrder,
        collate: Collate,
        rank: int,
        world_size: int,
        accumulation: int,
    ) -> None:
        self._order = order
        self._collate = collate
        self._num_micro_batches = world_size * accumulation  # per step, over all ranks
        self._rank_micro_batches = range(rank, self._num_micro_batches, world_size)
        self._epoch = -1  # the epoch of `_epoch_order`; -1 for none
        self._epoch_order: EpochOrder

    def __getitem__(self, step: int) -> list[MicroBatch] | UserError:
        epoch, step_of_epoch = divmod(step, self._order.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch_order = self._order.order_epoch(epoch)
            self._epoch = epoch

        rows = self._epoch_order[step_of_epoch]
        rows_by_micro_batch = np.array_split(rows, self._num_micro_batches)
        try:
            return [
                self._build_micro_batch(rows_by_micro_batch[index], rows, epoch)
                for index in self._rank_micro_batches
            ]
        except UserError as error:
            return error  # raised in the trainer's process, without a worker's stack trace

    def _build_micro_batch(self, rows: np.ndarray, step_rows: np.ndarray, epoch: int) -> MicroBatch:
        """Builds a micro-batch; one of weight 0 if it has no rows.

        Args:
            rows: Indices of its rows; empty if the step has fewer rows than micro-batches.
            step_rows: Indices of the rows of the step.
        """
        if len(rows):
            return self._collate(rows, epoch)

        # Every process must take part in the step, so it processes a row without weight.
        filler = self._collate(step_rows[:1], epoch)
        return replace(
            filler,
            weight=0.0,
            tokens=0,
            padding=filler.tokens + filler.padding,
            documents=[],
            counts=dict.fromkeys(filler.counts, 0.0),
        )
