"""One update of the weights: forward and backward passes over a global batch, and the step.

Its loss is the mean over the targets of the whole global batch, however that is split over ranks
and micro-batches: the sum of losses is divided by the number of targets of the *step*, which all
ranks add up before the first backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bsmeta.config.schema import TrainConfig
from bsmeta.tasks.base import MicroBatch, Task
from bsmeta.training.distributed import Accelerator, Processes
from bsmeta.training.engines import Engine
from bsmeta.training.nonfinite import is_finite
from bsmeta.training.optim import learning_rate, set_learning_rate
from bsmeta.training.sums import LossSums
from bsmeta.training.watchdog import Watchdog


@dataclass(frozen=True)
class Update:
    """What came of an update.

    Attributes:
        rate: Learning rate.
        loss: Mean over the targets of the global batch, in nats.
        parts: The same of each named part of the loss.
        norm: Norm of the gradient of the global batch; None where the engine tells none.
        finite: Whether loss and norm are numbers.
        changed: Whether the weights were changed.
        each: Sum of losses of each micro-batch of this rank.
    """

    rate: float
    loss: float
    parts: dict[str, float]
    norm: float | None
    finite: bool
    changed: bool
    each: Sequence[torch.Tensor]


class Updater:
    """Makes updates. All ranks call `run` together."""

    def __init__(
        self, config: TrainConfig, task: Task, accelerator: Accelerator, model: nn.Module,
        optimizer: Any, engine: Engine, watchdog: Watchdog,
    ) -> None:  # fmt: skip
        self._config = config
        self._task = task
        self._accelerator = accelerator
        self._processes = Processes.of(accelerator)
        self._model = model
        self._optimizer = optimizer
        self._engine = engine
        self._watchdog = watchdog

    def run(self, step: int, batches: Sequence[MicroBatch], targets: float) -> Update:
        """One update.

        Args:
            step: Its number, from 1.
            batches: This rank's micro-batches.
            targets: Targets of the global batch.
        """
        rate = learning_rate(self._config, step)
        set_learning_rate(self._optimizer.param_groups, rate)
        sums = self._forward_and_backward(step, batches, targets)
        norm = self._engine.clip(self._config.gradient_clipping or float("inf"))
        loss, parts = sums.means(self._processes, targets)
        finite = is_finite(loss, norm)
        changed = self._engine.step(finite)
        return Update(rate, loss, parts, norm, finite, changed, sums.each)

    def _forward_and_backward(
        self, step: int, batches: Sequence[MicroBatch], targets: float
    ) -> LossSums:
        """The gradient of the step, over all ranks; the sums of this rank's losses."""
        self._model.train()
        # Accelerate (or DeepSpeed) divides by the accumulation and averages over ranks: undo both.
        scale = self._processes.size * len(batches) / max(targets, 1.0)
        sums = LossSums()
        for batch in batches:
            with self._accelerator.accumulate(self._model):
                tensors = {
                    key: value.to(self._processes.device, non_blocking=True)
                    for key, value in batch.tensors.items()
                }
                self._watchdog.enter(f"step {step}: forward pass")
                with self._accelerator.autocast():
                    loss = self._task.loss(self._model, tensors)
                self._watchdog.enter(f"step {step}: backward pass")
                self._accelerator.backward(loss.sum * scale)
            sums.add(loss)
        return sums
