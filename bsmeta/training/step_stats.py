"""Statistics of a step: summed over all ranks in one all-reduce, and read later.

Statistics are a flat tensor only inside the all-reduce. Only `ReducedStats.read` waits for the
device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from bsmeta.data.batch import StepData
from bsmeta.training.device_copy import copy_to
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import Loss


@dataclass(frozen=True)
class DataStats:
    """Sums over the micro-batches of a step, on one rank or on all; see `MicroBatch`."""

    targets: float = 0.0
    tokens: float = 0.0
    padding: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, data: StepData) -> DataStats:
        """Sums the data of a step on this rank."""
        batches = data.micro_batches
        count_names = batches[0].counts if batches else ()
        counts = {}
        for name in count_names:
            counts[name] = float(sum(batch.counts[name] for batch in batches))

        return cls(
            targets=float(sum(batch.weight for batch in batches)),
            tokens=float(sum(batch.tokens for batch in batches)),
            padding=float(sum(batch.padding for batch in batches)),
            counts=counts,
        )


class _PackedScalars(NamedTuple):
    """The first values of a packed `StepStats`, in this order; the counts follow."""

    stop: float
    save_failed: float
    out_of_data: float
    next_targets: float
    next_tokens: float
    next_padding: float


_NUM_SCALARS = len(_PackedScalars._fields)
_NEXT_TARGETS = _PackedScalars._fields.index("next_targets")


@dataclass(frozen=True)
class StepStats:
    """Statistics of a step: the contribution of one rank to the all-reduce, or its result.

    Attributes:
        next_data: Statistics of the next step's data; zeros after the last step.
        stop: Number of ranks that were asked to stop.
        save_failed: Number of ranks whose checkpoint writer has failed.
        out_of_data: Number of ranks whose next data cannot be read.
        loss: Mean over the targets of the global batch, in nats.
        parts: Weighted mean of each named part of the loss whose weight is not 0.
        grad_norm: Norm of the gradient of the global batch; None if the engine reports none.
    """

    next_data: DataStats
    stop: float
    save_failed: float = 0.0
    out_of_data: float = 0.0
    loss: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    grad_norm: float | None = None

    def pack(self) -> list[float]:
        """Flattens the values that the host knows; loss and gradient are still on the device."""
        scalars = _PackedScalars(
            stop=self.stop,
            save_failed=self.save_failed,
            out_of_data=self.out_of_data,
            next_targets=self.next_data.targets,
            next_tokens=self.next_data.tokens,
            next_padding=self.next_data.padding,
        )
        return [*scalars, *self.next_data.counts.values()]

    @classmethod
    def unpack(cls, values: Sequence[float], count_names: Sequence[str]) -> StepStats:
        """Restores packed values, perhaps summed over ranks, given the names of their counts."""
        scalars = _PackedScalars(*values[:_NUM_SCALARS])
        data = DataStats(
            targets=scalars.next_targets,
            tokens=scalars.next_tokens,
            padding=scalars.next_padding,
            counts=dict(zip(count_names, values[_NUM_SCALARS:], strict=True)),
        )
        return cls(
            data,
            stop=scalars.stop,
            save_failed=scalars.save_failed,
            out_of_data=scalars.out_of_data,
        )

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm are finite."""
        return math.isfinite(self.loss) and self.has_finite_norm

    @property
    def has_finite_norm(self) -> bool:
        """Whether the gradient norm is finite, or not reported.

        DeepSpeed returns -1 or infinity for a norm that is NaN.
        """
        if self.grad_norm is None:
            return True
        return math.isfinite(self.grad_norm) and self.grad_norm >= 0


class _PartSum(NamedTuple):
    """Sum of a named part of the loss, and the weight that its mean divides by."""

    total: float
    weight: float


@dataclass(frozen=True)
class LossSums:
    """Sums of the losses and of their named parts, over micro-batches and ranks."""

    loss: float
    parts: dict[str, _PartSum]

    @staticmethod
    def pack(losses: Sequence[Loss]) -> torch.Tensor:
        """Sums the losses of micro-batches on the device: float64[1 + 2 * parts], detached."""
        return torch.stack([_flatten_loss(loss) for loss in losses]).sum(0)

    @classmethod
    def unpack(cls, values: Sequence[float], part_names: Sequence[str]) -> LossSums:
        """Restores packed values, perhaps summed over ranks, given the names of the parts."""
        loss, *part_values = values
        totals = part_values[::2]
        weights = part_values[1::2]
        parts = {}
        for name, total, weight in zip(part_names, totals, weights, strict=True):
            parts[name] = _PartSum(total, weight)
        return cls(loss, parts)

    def compute_part_means(self) -> dict[str, float]:
        """Returns the weighted mean of each part whose weight is not 0."""
        return {name: part.total / part.weight for name, part in self.parts.items() if part.weight}


def _flatten_loss(loss: Loss) -> torch.Tensor:
    """Returns the loss, then sum and weight of each part: float64[1 + 2 * parts], detached."""
    values = [loss.sum]
    for total, weight in loss.parts.values():
        values += [total, weight]
    return torch.stack([value.detach().double() for value in values])


class ReducedStats:
    """A step's statistics, summed over all ranks; on the device until they are read.

    In the tensor, `StepStats.pack` is followed by `LossSums.pack`, if there are losses, and by the
    gradient norm, if it is on the device. The norm is appended after the all-reduce, because it is
    already the norm of the global batch.
    """

    def __init__(
        self,
        processes: Processes,
        rank_stats: StepStats,
        losses: Sequence[Loss] = (),
        norm: torch.Tensor | float | None = None,
        *,
        scales_loss: bool = False,
    ) -> None:
        """Starts the all-reduce; every rank calls it with the same names of counts and parts.

        Args:
            rank_stats: This rank's statistics that are known on the host.
            losses: Losses of this rank's micro-batches, on the device; none before the first step.
            norm: The norm of the gradient of the global batch, on the device or on the host.
            scales_loss: Whether there is a loss scaler, which itself skips gradients that are not
                finite.
        """
        self._norm = norm
        self._scales_loss = scales_loss
        self._count_names = list(rank_stats.next_data.counts)
        self._part_names = list(losses[0].parts) if losses else []
        self._has_losses = bool(losses)

        packed = rank_stats.pack()
        self._num_packed = len(packed)
        values = copy_to(processes.device, torch.tensor(packed, dtype=torch.float64))
        if losses:
            values = torch.cat([values, LossSums.pack(losses)])
        values = processes.sum(values)
        if isinstance(norm, torch.Tensor):  # after the sum: it is the global norm on every rank
            values = torch.cat([values, norm.detach().double().reshape(1)])

        self._values = values
        self._host_values, self._copied = _start_copy_to_host(values)

    @property
    def next_targets(self) -> torch.Tensor:
        """Number of targets of the next step over all ranks: a float64 scalar on the device."""
        return self._values[_NEXT_TARGETS]

    @property
    def loss(self) -> torch.Tensor:
        """Sum of the step's losses over all ranks: a float64 scalar on the device."""
        return self._values[self._num_packed]

    def read(self, targets: float = 0.0) -> StepStats:
        """Waits for the device, and returns the statistics of all ranks.

        Args:
            targets: Number of targets of the global batch, which the loss is divided by.
        """
        if self._copied is not None:
            self._copied.synchronize()
        values = self._host_values.tolist()
        norm = values.pop() if isinstance(self._norm, torch.Tensor) else self._norm

        stats = StepStats.unpack(values[: self._num_packed], self._count_names)
        stats = replace(stats, grad_norm=norm)
        if self._has_losses:
            sums = LossSums.unpack(values[self._num_packed :], self._part_names)
            stats = replace(
                stats, loss=sums.loss / max(targets, 1.0), parts=sums.compute_part_means()
            )

        if self._scales_loss and not stats.has_finite_norm:
            # fp16: the scale was too high; the scaler skips the step and lowers it
            return replace(stats, grad_norm=None)
        return stats


def _start_copy_to_host(values: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """Starts to copy values from a GPU; also returns the event after the copy (None on a CPU)."""
    if values.device.type != "cuda":
        return values, None
    host_values = torch.empty_like(values, device="cpu", pin_memory=True)
    host_values.copy_(values, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return host_values, copied


@dataclass(frozen=True)
class StepResult:
    """A step that the device has completed or is still computing.

    Attributes:
        step: Step number, from 1.
        data_wait_s: Seconds that the loop waited for the step's data.
        losses: Sum of losses of each of this rank's micro-batches, on the device.
        weights_changed: Whether the engine changed the weights regardless of non-finite values.
    """

    step: int
    data: StepData
    data_wait_s: float
    learning_rate: float
    losses: list[torch.Tensor]
    reduced: ReducedStats
    weights_changed: bool
