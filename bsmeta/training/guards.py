"""Guards of a run: non-finite steps, loss spikes, and evaluations that no longer improve.

The guards only use values that are equal on all ranks, so every rank makes the same decision. Their
state is saved with a checkpoint, so a resumed run makes the decisions of an uninterrupted one.

To add a guard: write its class with `state_dict` and `load_state_dict`, give its keys in
`trainer_state.json` a type in `GuardsState` (`checkpoints/trainer_state.py`), and make it a field
of `Guards`.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import TrainingError
from bsmeta.core.secrets import redact
from bsmeta.training.step_stats import StepResult, StepStats
from bsmeta.training.task import Metric


class Guard(Protocol):
    """A rule that watches the steps of a run, with a state that checkpoints save."""

    def state_dict(self) -> dict[str, Any]:
        """Returns this guard's keys of the trainer's state; JSON-serializable."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the guard from the whole state of a trainer."""


@dataclass
class NonFiniteGuard:
    """Handles steps whose loss or gradient is not finite.

    Attributes:
        action: `stop`, or `skip`: leave the weights unchanged and continue with the next step.
        limit: The maximum number of consecutive skips; one more stops the run.
        folder: The run folder; each rank writes `nonfinite-step{n}-rank{r}.json` there.
        consecutive: Number of steps skipped since the last finite one.
    """

    action: str
    limit: int
    folder: Path
    rank: int
    consecutive: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {"consecutive_skips": self.consecutive}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.consecutive = int(state["consecutive_skips"])

    def record_finite_step(self) -> None:
        """Resets the number of consecutive skips."""
        self.consecutive = 0

    def skip_or_stop(self, result: StepResult, stats: StepStats) -> dict[str, Any]:
        """Writes the documents of a non-finite step to a file, then skips it or stops the run.

        A step cannot be skipped if the engine has changed the weights already.

        Returns:
            The event for the log, if the step is skipped.

        Raises:
            TrainingError: If the run must stop.
        """
        self.consecutive += 1
        values = {"loss": repr(stats.loss), "grad_norm": repr(stats.grad_norm)}
        self._write_report(result, values)

        description = (
            f"step {result.step}: loss {stats.loss}, gradient norm {stats.grad_norm}. The "
            "documents of the step are in "
            f"{self.folder}/nonfinite-step{result.step}-rank*.json; no checkpoint of it was written"
        )
        if self.action == "stop" or result.weights_changed:
            raise TrainingError(
                f"{description}. Resume with a lower learning_rate, or with on_nonfinite=skip"
            )
        if self.consecutive > self.limit:
            raise TrainingError(
                f"{description}. There were {self.consecutive} such steps in a row, and "
                f"max_consecutive_skips={self.limit}. Resume with a lower learning_rate, or check "
                "these documents"
            )
        return {**values, "consecutive": self.consecutive}

    def _write_report(self, result: StepResult, values: dict[str, str]) -> None:
        """Writes the losses and documents of this rank's micro-batches to the run folder."""
        micro_batches = [
            {"loss_sum": repr(float(loss)), "documents": list(batch.documents)}
            for batch, loss in zip(result.data.micro_batches, result.losses, strict=True)
        ]
        report = {
            "step": result.step,
            "rank": self.rank,
            **values,
            "micro_batches": micro_batches,
        }

        file = self.folder / f"nonfinite-step{result.step}-rank{self.rank}.json"
        with suppress(FileNotFoundError):  # the run folder was deleted, and rank 0 rebuilds it
            file.write_text(redact(json.dumps(report, indent=1)) + "\n")


class SpikeGuard:
    """Detects losses far above recent ones, and limits how often a run rolls back.

    Args:
        deviations: Standard deviations above the mean at which a loss counts as a spike; 0: never.
        window: Number of past losses to compare with; no spike is detected until the window is
            full.
        limit: The maximum number of rollbacks to the same checkpoint.

    Attributes:
        losses: The losses in the window, oldest first.
        rollbacks: Number of rollbacks to each checkpoint, by its step.
    """

    def __init__(self, deviations: float, window: int, limit: int) -> None:
        self._deviations = deviations
        self._limit = limit
        self.losses: deque[float] = deque(maxlen=window)
        self.rollbacks: Counter[int] = Counter()

    def state_dict(self) -> dict[str, Any]:
        rollbacks = {str(step): count for step, count in self.rollbacks.items()}
        return {"last_losses": list(self.losses), "rollbacks": rollbacks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the window, and for each checkpoint the larger number of rollbacks.

        A rollback loads a checkpoint that was written before it, and must not undo its own count.
        """
        self.losses.clear()
        self.losses.extend(state["last_losses"])
        self.rollbacks |= Counter({int(step): count for step, count in state["rollbacks"].items()})

    def detect_spike(self, loss: float) -> bool:
        """Returns whether the loss is a spike; adds it to the window if it is not."""
        if self._deviations > 0 and len(self.losses) == self.losses.maxlen:
            margin = self._deviations * statistics.pstdev(self.losses)
            if loss > statistics.fmean(self.losses) + margin:
                return True

        self.losses.append(loss)
        return False

    def accept_spike(self, loss: float) -> None:
        """Adds a spike to the window, because the run cannot roll back.

        Otherwise, if the loss stays at the new level, every later loss would be a spike.
        """
        self.losses.append(loss)

    def count_rollback(self, step: int) -> None:
        """Counts a rollback to the checkpoint of `step`.

        Raises:
            TrainingError: If the run has rolled back to it more often than the limit.
        """
        self.rollbacks[step] += 1
        if self.rollbacks[step] > self._limit:
            raise TrainingError(
                f"the loss spiked again after {self._limit} rollbacks (max_rollbacks) to step "
                f"{step}; resume with a lower learning_rate, or raise loss_spike_deviations"
            )


@dataclass
class EarlyStopping:
    """Ends a run whose evaluations have stopped improving.

    Attributes:
        metric: Name of the metric that is compared, in its own direction (`Metric.better`).
        patience: Number of consecutive evaluations without improvement after which the run ends;
            None: never.
        best_cost: Best value of the metric, negated if higher values are better.
        num_without_improvement: Number of evaluations since the best one.
    """

    metric: str | None
    patience: int | None
    best_cost: float | None = None
    num_without_improvement: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {"early_stopping": {"best": self.best_cost, "without": self.num_without_improvement}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = state["early_stopping"]
        self.best_cost = saved["best"]
        self.num_without_improvement = saved["without"]

    @property
    def is_due(self) -> bool:
        """Whether the run should end now."""
        return self.patience is not None and self.num_without_improvement >= self.patience

    def record_evaluation(self, metrics: Sequence[Metric]) -> None:
        """Compares an evaluation with the best one; NaN counts as no improvement.

        Evaluations without the metric are ignored.
        """
        cost = next((metric.cost for metric in metrics if metric.name == self.metric), None)
        if cost is None:
            return

        if not math.isnan(cost) and (self.best_cost is None or cost < self.best_cost):
            self.best_cost = cost
            self.num_without_improvement = 0
        else:
            self.num_without_improvement += 1


@dataclass(frozen=True)
class Guards:
    """All guards of a run, which are saved and loaded together."""

    nonfinite: NonFiniteGuard
    spikes: SpikeGuard
    early_stopping: EarlyStopping

    @classmethod
    def of(cls, config: RunConfig, run_folder: Path, rank: int) -> Guards:
        """Creates the guards that the configuration asks for."""
        return cls(
            NonFiniteGuard(config.on_nonfinite, config.max_consecutive_skips, run_folder, rank),
            SpikeGuard(
                config.loss_spike_deviations, config.loss_spike_window, config.max_rollbacks
            ),
            EarlyStopping(config.keep_best_by, config.early_stopping_patience),
        )

    def __iter__(self) -> Iterator[Guard]:
        yield self.nonfinite
        yield self.spikes
        yield self.early_stopping

    def state_dict(self) -> dict[str, Any]:
        """Returns the guards' keys of the trainer's state; JSON-serializable."""
        state: dict[str, Any] = {}
        for guard in self:
            state |= guard.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores every guard from the state of a trainer.

        Raises:
            KeyError: If the state of a guard is missing.
        """
        for guard in self:
            guard.load_state_dict(state)
