"""The statistics of a step: summed over all ranks in one all-reduce, and read later.

A rank's statistics are a flat tensor only inside the all-reduce. Nothing waits for the device but
`ReducedStats.read`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from bsmeta.data.batch import StepData
from bsmeta.training.device_copy import copy_to
from bsmeta.training.processes import Processes
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
        batches = data.micro_batches
        names = batches[0].counts if batches else ()
        return cls(
            targets=float(sum(batch.weight for batch in batches)),
            tokens=float(sum(batch.tokens for batch in batches)),
            padding=float(sum(batch.padding for batch in batches)),
            counts={name: float(sum(batch.counts[name] for batch in batches)) for name in names},
        )


@dataclass(frozen=True)
class StepStats:
    """Per-step statistics: what a rank contributes to the all-reduce, then those of all ranks.

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

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are finite numbers.

        DeepSpeed returns -1 or infinity for a norm that is NaN.
        """
        norm = self.grad_norm
        return math.isfinite(self.loss) and (norm is None or (math.isfinite(norm) and norm >= 0))


class ReducedStats:
    """A step's statistics, summed over all ranks; on the device until they are read."""

    def __init__(
        self, processes: Processes, own: StepStats, losses: Sequence[Loss] = (),
        norm: torch.Tensor | float | None = None, *, scaled: bool = False,
    ) -> None:  # fmt: skip
        """Starts the all-reduce; every rank calls it with the same names of counts and parts.

        Args:
            own: This rank's statistics that are known on the host.
            losses: Losses of this rank's micro-batches, on the device; none before the first step.
            norm: The norm of the gradient of the global batch, on the device or on the host.
            scaled: Whether there is a loss scaler, which itself skips gradients that are not
                finite.
        """
        self._norm = norm
        self._scaled = scaled
        self._count_names = list(own.next_data.counts)
        self._part_names = list(losses[0].parts) if losses else []
        data = own.next_data
        host = [own.stop, own.save_failed, own.out_of_data]
        host += [data.targets, data.tokens, data.padding, *data.counts.values()]
        self._num_host = len(host)
        values = copy_to(processes.device, torch.tensor(host, dtype=torch.float64))
        if losses:
            values = torch.cat([values, torch.stack([_flat(loss) for loss in losses]).sum(0)])
        values = processes.sum(values)
        if isinstance(norm, torch.Tensor):
            values = torch.cat([values, norm.detach().double().reshape(1)])
        self._values = self._host = values
        self._copied: torch.cuda.Event | None = None
        if values.device.type == "cuda":  # the copy starts at once
            self._host = torch.empty_like(values, device="cpu", pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    @property
    def next_targets(self) -> torch.Tensor:
        """Number of targets of the next step over all ranks: a float64 scalar on the device."""
        return self._values[3]

    @property
    def loss(self) -> torch.Tensor:
        """Sum of the step's losses over all ranks: a float64 scalar on the device."""
        return self._values[self._num_host]

    def read(self, targets: float = 0.0) -> StepStats:
        """Waits for the device; `targets` is the number of targets of the global batch."""
        if self._copied is not None:
            self._copied.synchronize()
        values = self._host.tolist()
        norm = values.pop() if isinstance(self._norm, torch.Tensor) else self._norm
        stop, save_failed, out_of_data, *sums = values[: self._num_host]
        next_targets, tokens, padding, *counted = sums
        counts = dict(zip(self._count_names, counted, strict=True))
        loss, *sums = values[self._num_host :] or [0.0]
        weighted = zip(self._part_names, sums[::2], sums[1::2], strict=True)
        parts = {name: total / weight for name, total, weight in weighted if weight}
        data = DataStats(next_targets, tokens, padding, counts)
        mean = loss / max(targets, 1.0)
        stats = StepStats(data, stop, save_failed, out_of_data, mean, parts, norm)
        if self._scaled and not replace(stats, loss=0.0).finite:
            # fp16: the scale was too high; the scaler skips the step and lowers it
            return replace(stats, grad_norm=None)
        return stats


def _flat(loss: Loss) -> torch.Tensor:
    """A micro-batch's loss and parts: float64[1 + 2 * parts], detached."""
    parts = [value for pair in loss.parts.values() for value in pair]
    return torch.stack([value.detach().double() for value in (loss.sum, *parts)])


@dataclass(frozen=True)
class StepResult:
    """A step that the device has completed or is still working on.

    Attributes:
        step: Its number, from 1.
        data_wait_s: Seconds that the loop waited for the step's data.
        losses: Sum of losses of each of this rank's micro-batches, on the device.
        weights_changed: Whether the weights were changed even if the step is not finite.
    """

    step: int
    data: StepData
    data_wait_s: float
    learning_rate: float
    losses: list[torch.Tensor]
    reduced: ReducedStats
    weights_changed: bool
