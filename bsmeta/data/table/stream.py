"""The steps of one rank over a table: its micro-batches, from the start or from a saved state.

The rows of a step are divided among processes and micro-batches within the step, so its global
batch does not depend on them. The state is the number of steps done.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from bsmeta.config.differences import differing
from bsmeta.config.errors import ConfigurationError, UserError
from bsmeta.data.batch import MicroBatch, StepData
from bsmeta.data.loader import set_up_worker
from bsmeta.data.table.order import EpochOrder, StepOrder

Collate = Callable[[np.ndarray, int], MicroBatch]
"""Builds a micro-batch from some rows (at least one) in an epoch."""


class TableStream:
    """This rank's steps in the order of the run; endless, epoch after epoch.

    Args:
        order: Which rows make up a step.
        collate: Builds a micro-batch; called in the loader workers.
        rank: This process.
        world_size: Number of processes.
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
        changed = "\n".join(differing("", saved, fingerprint, "in the checkpoint"))
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
        rows = self._rows(epoch).step(index)
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

    def _rows(self, epoch: int) -> EpochOrder:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._order.epoch(epoch))
        return self._epoch[1]
