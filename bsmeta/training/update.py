"""One update of the weights: forward and backward passes over a global batch, and the step.

Its loss is the mean over the targets of the whole global batch, however that is split over ranks
and micro-batches: the sum of losses is divided by the number of targets of the *step*. All ranks
have added those up before the first backward pass: with the losses of the step before, so that a
step needs one collective beside the gradient's.

Nothing here waits for the device: what is to be read comes back as `Update`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bsmeta.config.schema import TrainConfig
from bsmeta.tasks.base import Task
from bsmeta.training.distributed import Accelerator, Processes
from bsmeta.training.engines import Engine
from bsmeta.training.feed import StepData
from bsmeta.training.nonfinite import is_finite
from bsmeta.training.optim import learning_rate, set_learning_rate
from bsmeta.training.profiling import Profile
from bsmeta.training.sums import LossSums, Totals, add_up, means
from bsmeta.training.watchdog import Watchdog


@dataclass(frozen=True)
class Figures:
    """What came of an update, read from the device.

    Attributes:
        loss: Mean over the targets of the global batch, in nats.
        parts: The same of each named part of the loss.
        norm: Norm of the gradient of the global batch; None where the engine tells none.
        totals: Everything that was added up over the ranks with the losses.
    """

    loss: float
    parts: dict[str, float]
    norm: float | None
    totals: dict[str, float]

    @property
    def finite(self) -> bool:
        """Whether loss and norm are numbers."""
        return is_finite(self.loss, self.norm)


@dataclass(frozen=True)
class Update:
    """An update that was made, or is still being made on the device.

    Attributes:
        step: Its number, from 1.
        data: What it was made from.
        rate: Learning rate.
        each: Sum of losses of each micro-batch of this rank.
        totals: The sums over all ranks.
        norm: Of the gradient, where the engine tells it on the host.
        scaled: Under a loss scaler, which deals with gradients that are not finite itself.
        changed: Whether the weights were changed even if the step is not finite.
    """

    step: int
    data: StepData
    rate: float
    each: list[torch.Tensor]
    totals: Totals
    norm: float | None
    scaled: bool
    changed: bool

    def read(self, targets: float) -> Figures:
        """Waits for the device; `targets` is the number of targets of the global batch."""
        totals = self.totals.read()
        norm = totals.pop("norm", self.norm)
        if self.scaled and not is_finite(0.0, norm):
            norm = None  # fp16: the scale was too high; its scaler skips the step and lowers it
        loss, parts = means(totals, targets)
        return Figures(loss, parts, norm, totals)


class Updater:
    """Makes updates. All ranks call `run` together."""

    def __init__(
        self, config: TrainConfig, task: Task, accelerator: Accelerator, model: nn.Module,
        optimizer: Any, engine: Engine, watchdog: Watchdog, profile: Profile,
    ) -> None:  # fmt: skip
        self._config = config
        self._task = task
        self._accelerator = accelerator
        self._processes = Processes.of(accelerator)
        self._model = model
        self._optimizer = optimizer
        self._engine = engine
        self._watchdog = watchdog
        self._profile = profile

    def run(
        self,
        step: int,
        data: StepData,
        targets: torch.Tensor,
        count: Callable[[], Mapping[str, float]],
    ) -> Update:
        """One update.

        Args:
            step: Its number, from 1.
            data: This rank's micro-batches.
            targets: Targets of the global batch, a scalar on the device.
            count: Called while the device computes: what else to add up with the losses.
        """
        rate = learning_rate(self._config, step)
        set_learning_rate(self._optimizer.param_groups, rate)
        sums = self._forward_and_backward(step, data, targets)
        counted = count()
        with self._phase(step, "adding up over all ranks"):
            norm = self._engine.clip(self._config.gradient_clipping or float("inf"))
            on_device = norm if isinstance(norm, torch.Tensor) else None
            totals = add_up(self._processes, counted, sums, on_device)
        with self._phase(step, "optimizer"):
            finite = totals.on_device("loss").isfinite()
            if on_device is not None:
                finite = finite & on_device.isfinite()
            changed = self._engine.step(finite)
        told = None if isinstance(norm, torch.Tensor) else norm
        return Update(step, data, rate, sums.each, totals, told, self._engine.scaled, changed)

    def _forward_and_backward(self, step: int, data: StepData, targets: torch.Tensor) -> LossSums:
        """The gradient of the step, over all ranks; the sums of this rank's losses."""
        self._model.train()
        # Accelerate (or DeepSpeed) divides by the accumulation and averages over ranks: undo both.
        split = self._processes.size * len(data.batches)
        scale = (split / targets.clamp(min=1.0)).float()
        sums = LossSums()
        for tensors in data.tensors():
            with self._accelerator.accumulate(self._model):
                with self._phase(step, "forward pass"), self._accelerator.autocast():
                    loss = self._task.loss(self._model, tensors)
                with self._phase(step, "backward pass"):
                    self._accelerator.backward(loss.sum * scale)
            sums.add(loss)
        return sums

    def _phase(self, step: int, name: str) -> AbstractContextManager[Any]:
        """Tells the watchdog and the profile what the loop does."""
        self._watchdog.enter(f"step {step}: {name}")
        return self._profile.range(name)
