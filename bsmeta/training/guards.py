"""Guards against non-finite steps, loss spikes and evaluations that no longer improve.

They only use values that are equal on all ranks, so every rank makes the same decision.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from bsmeta.core.errors import TrainingError
from bsmeta.data.batch import MicroBatch
from bsmeta.training.task import Metric


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
