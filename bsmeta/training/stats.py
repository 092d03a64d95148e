"""Statistics of a step: what each rank contributes to the all-reduce, and the guards that read the
sums.

A rank's statistics are a dataclass; they are a flat tensor only inside the all-reduce. They stay on
the device until they are read. Reading waits for the device, so the loop starts the copy at once
and reads it later, while the device is busy with the next step.

The guards act on non-finite steps, loss spikes and evaluations that no longer improve. They only
use values that are equal on all ranks, so every rank makes the same decision.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bsmeta.core.errors import TrainingError
from bsmeta.data.batch import MicroBatch, StepData
from bsmeta.training.distributed import Processes
from bsmeta.training.task import Loss, Metric


def is_finite(loss: float, norm: float | None) -> bool:
    """Whether a step's loss, and its gradient norm if there is one, are finite.

    DeepSpeed returns -1 or infinity for a norm that is NaN.
    """
    return math.isfinite(loss) and (norm is None or (math.isfinite(norm) and norm >= 0))


class NonFiniteGuard:
    """Handles steps whose loss or gradient is not finite.

    Args:
        action: `stop`, or `skip`: leave the weights unchanged and continue with the next step.
        limit: The maximum number of consecutive skips; one more stops the run.
        folder: The run folder; each rank writes `nonfinite-step{n}-rank{r}.json` there.

    Attributes:
        consecutive: Steps skipped since the last finite one; saved with a checkpoint.
    """

    def __init__(self, action: str, limit: int, folder: Path, rank: int) -> None:
        self._action = action
        self._limit = limit
        self._folder = folder
        self._rank = rank
        self.consecutive = 0

    def passed(self) -> None:
        """Records a finite step."""
        self.consecutive = 0

    def failed(
        self,
        step: int,
        loss: float,
        norm: float | None,
        batches: Sequence[MicroBatch],
        losses: Sequence[torch.Tensor],
        *,
        weights_changed: bool,
    ) -> dict[str, Any]:
        """Writes the step's documents to a file, then stops the run or skips the step.

        Args:
            weights_changed: Whether the engine has changed the weights: then the step can no
                longer be skipped.

        Returns:
            The event for the log, if the step is skipped.

        Raises:
            TrainingError: If the run must stop.
        """
        self.consecutive += 1
        file = self._folder / f"nonfinite-step{step}-rank{self._rank}.json"
        parts = [
            {"loss_sum": repr(float(value)), "documents": list(batch.documents)}
            for batch, value in zip(batches, losses, strict=True)
        ]
        report = {"step": step, "rank": self._rank, "loss": repr(loss), "grad_norm": repr(norm)}
        with suppress(FileNotFoundError):  # the run folder was deleted, and rank 0 rebuilds it
            file.write_text(json.dumps({**report, "micro_batches": parts}, indent=1) + "\n")
        found = (
            f"step {step}: loss {loss}, gradient norm {norm}. The documents of the step are in "
            f"{self._folder}/nonfinite-step{step}-rank*.json; no checkpoint of it was written"
        )
        if self._action == "stop" or weights_changed:
            raise TrainingError(
                f"{found}. Resume with a lower learning_rate, or with on_nonfinite=skip"
            )
        if self.consecutive > self._limit:
            raise TrainingError(
                f"{found}. There were {self.consecutive} such steps in a row, and "
                f"max_consecutive_skips={self._limit}"
            )
        return {"loss": repr(loss), "grad_norm": repr(norm), "consecutive": self.consecutive}


class SpikeGuard:
    """Detects losses far above those of the last steps, and limits how often a run rolls back.

    Every rank sees the same losses and so detects the same spikes; so does a resumed run, because
    the losses are saved with a checkpoint.

    Args:
        deviations: Standard deviations above the mean at which a loss counts as a spike; 0: never.
        window: Number of past losses to compare with; no spike is detected until the window is
            full.
        limit: How often the run may roll back to the same checkpoint.
    """

    def __init__(self, deviations: float, window: int, limit: int) -> None:
        self._deviations = deviations
        self._limit = limit
        self._losses: deque[float] = deque(maxlen=window)
        self._rollbacks: dict[int, int] = {}

    def is_spike(self, loss: float) -> bool:
        """Whether the loss is a spike; if not, adds it to the window for later comparisons."""
        if self._deviations > 0 and len(self._losses) == self._losses.maxlen:
            spread = self._deviations * statistics.pstdev(self._losses)
            if loss > statistics.fmean(self._losses) + spread:
                return True
        self.accept(loss)
        return False

    def accept(self, loss: float) -> None:
        """Adds a loss to the window: also a spike that the run continues with."""
        self._losses.append(loss)

    def rolled_back(self, step: int) -> None:
        """Counts a rollback to the checkpoint of `step`.

        Raises:
            TrainingError: If the limit is exceeded.
        """
        self._rollbacks[step] = self._rollbacks.get(step, 0) + 1
        if self._rollbacks[step] > self._limit:
            raise TrainingError(
                f"the loss spiked again after {self._limit} rollbacks (max_rollbacks) to step "
                f"{step}; resume with a lower learning_rate, or raise loss_spike_deviations"
            )

    def state(self) -> list[float]:
        """The past losses in the window, for a checkpoint."""
        return list(self._losses)

    def restore(self, state: list[Any]) -> None:
        """Restores the losses from a checkpoint."""
        self._losses.clear()
        self._losses.extend(float(loss) for loss in state)


class EarlyStopping:
    """Ends a run whose evaluations have stopped improving.

    Args:
        name: The metric that is compared, in its own direction (`Metric.better`).
        patience: Consecutive evaluations without a better value than the best after which the run
            ends; None: never.

    Attributes:
        is_due: Whether the run should end now.
    """

    def __init__(self, name: str | None, patience: int | None) -> None:
        self._name = name
        self._patience = patience
        self._best: float | None = None  # negated if higher values are better
        self._without = 0

    @property
    def is_due(self) -> bool:
        return self._patience is not None and self._without >= self._patience

    def record(self, metrics: Sequence[Metric]) -> None:
        """Records an evaluation; a value that is not a number counts as no improvement."""
        values = [metric for metric in metrics if metric.name == self._name]
        if not values:
            return
        metric = values[0]
        cost = -metric.value if metric.better == "max" else metric.value
        if not math.isnan(cost) and (self._best is None or cost < self._best):
            self._best, self._without = cost, 0
        else:
            self._without += 1

    def state(self) -> dict[str, Any]:
        """The best value and the evaluations since, for a checkpoint."""
        return {"best": self._best, "without": self._without}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        self._best, self._without = state["best"], int(state["without"])


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
        counts: dict[str, float] = {}
        for batch in batches:
            for name, count in batch.counts.items():
                counts[name] = counts.get(name, 0.0) + count
        return cls(
            targets=float(sum(batch.weight for batch in batches)),
            tokens=float(sum(batch.tokens for batch in batches)),
            padding=float(sum(batch.padding for batch in batches)),
            counts=counts,
        )


@dataclass(frozen=True)
class StepStats:
    """Per-step statistics: what a rank contributes to the all-reduce, then their sums over ranks.

    Attributes:
        next_data: Statistics of the next step's data; zeros after the last step.
        stop: Number of ranks that were asked to stop.
        save_failed: Number of ranks whose checkpoint writer has failed.
        out_of_data: Number of ranks whose next data cannot be read.
        loss: Sum of the losses of the step's targets, in nats.
        parts: Sum and weight of each named part of the loss.
        grad_norm: Norm of the gradient of the global batch, equal on all ranks and not summed; None
            if the engine reports none.
    """

    next_data: DataStats
    stop: float
    save_failed: float = 0.0
    out_of_data: float = 0.0
    loss: float = 0.0
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)
    grad_norm: float | None = None


class ReducedStats:
    """A step's statistics, summed over all ranks; on the device until they are read."""

    def __init__(
        self,
        processes: Processes,
        own: StepStats,
        losses: list[Loss],
        norm: torch.Tensor | float | None,
    ) -> None:
        """Starts the all-reduce; every rank calls it with the same names of counts and parts.

        Args:
            own: This rank's statistics that are known on the host.
            losses: Losses of this rank's micro-batches, on the device; none before the first step.
            norm: The gradient's norm, on the device or on the host.
        """
        self._norm = norm
        self._count_names = list(own.next_data.counts)
        self._part_names = list(losses[0].parts) if losses else []
        data = own.next_data
        host = [own.stop, own.save_failed, own.out_of_data]
        host += [data.targets, data.tokens, data.padding]
        host += data.counts.values()
        values = torch.tensor(host, dtype=torch.float64).to(processes.device, non_blocking=True)
        self._num_host = len(host)
        if losses:
            values = torch.cat([values, torch.stack([_flat(loss) for loss in losses]).sum(0)])
        self._values = processes.sum(values)
        if isinstance(norm, torch.Tensor):
            self._values = torch.cat([self._values, norm.detach().double().reshape(1)])
        self._host = self._values
        self._copied: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
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

    def read(self) -> StepStats:
        """Returns the sums on the host; waits for the device."""
        if self._copied is not None:
            self._copied.synchronize()
        values = self._host.tolist()
        norm = values.pop() if isinstance(self._norm, torch.Tensor) else self._norm
        stop, save_failed, out_of_data, *sums = values[: self._num_host]
        targets, tokens, padding, *counts = sums
        named_counts = dict(zip(self._count_names, counts, strict=True))
        data = DataStats(targets, tokens, padding, named_counts)
        loss, *parts = values[self._num_host :] or [0.0]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        named_parts = dict(zip(self._part_names, pairs, strict=True))
        return StepStats(data, stop, save_failed, out_of_data, loss, named_parts, norm)


def _flat(loss: Loss) -> torch.Tensor:
    """A micro-batch's loss and parts: float64[1 + 2 * parts], detached."""
    parts = [value for pair in loss.parts.values() for value in pair]
    return torch.stack([value.detach().double() for value in (loss.sum, *parts)])


@dataclass(frozen=True)
class StepMetrics:
    """A completed step, read from the device.

    Attributes:
        loss: Mean over the targets of the global batch, in nats.
        parts: Weighted mean of each named part of the loss whose weight is not 0.
        grad_norm: Norm of the gradient of the global batch; None if the engine reports none.
        stats: Everything that was summed over the ranks.
    """

    loss: float
    parts: dict[str, float]
    grad_norm: float | None
    stats: StepStats

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are finite numbers."""
        return is_finite(self.loss, self.grad_norm)


@dataclass(frozen=True)
class StepResult:
    """A step that the device has completed or is still working on.

    Attributes:
        step: Its number, from 1.
        data_wait_s: Seconds that the loop waited for the step's data.
        learning_rate: The learning rate of the step.
        losses: Sum of losses of each of this rank's micro-batches, on the device.
        reduced: The statistics of all ranks.
        scaled: Whether there is a loss scaler, which itself skips gradients that are not finite.
        weights_changed: Whether the weights were changed even if the step is not finite.
    """

    step: int
    data: StepData
    data_wait_s: float
    learning_rate: float
    losses: list[torch.Tensor]
    reduced: ReducedStats
    scaled: bool
    weights_changed: bool

    def read(self, targets: float) -> StepMetrics:
        """Waits for the device; `targets` is the number of targets of the global batch."""
        stats = self.reduced.read()
        norm = stats.grad_norm
        if self.scaled and not is_finite(0.0, norm):
            norm = None  # fp16: the scale was too high; the scaler skips the step and lowers it
        parts = {name: total / weight for name, (total, weight) in stats.parts.items() if weight}
        return StepMetrics(stats.loss / max(targets, 1.0), parts, norm, stats)
