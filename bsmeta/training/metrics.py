"""The metrics of each step, and where they are logged: file, trackers, screen.

Tokens are the model's inputs without padding, which is counted separately. With N parameters in
matrix products (`flops_per_token`), over the steps since the last line of the log:

    tokens_per_s = tokens of all ranks / seconds of these steps
    mfu = 6 x N x tokens_per_s / (devices x dense bf16 peak of one)

A resumed run stays one run at its trackers (tensorboard, wandb, trackio): its name there is
generated once and stored in the run folder (`trackers.json`), the same wandb or trackio run is
continued, and tensorboard drops what was logged after the step that the run resumes from. No
secrets are passed: each library reads its own key (`WANDB_API_KEY`, `HF_TOKEN`).
"""

from __future__ import annotations

import json
import logging
import math
import resource
import statistics
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import Schedule
from bsmeta.core.errors import TrainingError
from bsmeta.data.batch import MicroBatch
from bsmeta.training.distributed import Processes
from bsmeta.training.run_folder import LineLog, RunFolder
from bsmeta.training.step import DataStats, StepMetrics, StepResult
from bsmeta.training.task import Metric
from bsmeta.training.tracking import Tracker

# Dense bf16 peak of one device in FLOP/s, from the vendors' data sheets (without sparsity). The
# first name that is part of the device's counts.
PEAK_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}

logger = logging.getLogger(__name__)


class Throughput:
    """Accumulates tokens and seconds between two lines of the log.

    Args:
        flops_per_token: FLOPs of the forward and backward pass of one token.
    """

    def __init__(self, flops_per_token: float, device: torch.device, world_size: int) -> None:
        self._device = device
        self._world_size = world_size
        self._flops_per_token = flops_per_token
        self._peak = peak_flops(device)
        self.start()
        self._clear()

    def start(self) -> None:
        """Restarts the clock: after the set-up, an evaluation or a save."""
        self._since = time.perf_counter()

    def add(self, tokens: float, padding: float, wait: float) -> None:
        """Adds a completed step.

        Args:
            wait: Seconds that the loop waited for its data.
        """
        now = time.perf_counter()
        self._seconds += now - self._since
        self._since = now
        self._steps += 1
        self._tokens += tokens
        self._padding += padding
        self._wait += wait

    def metrics(self) -> dict[str, Any]:
        """Returns the metrics of the steps since the last call, and resets them.

        Returns:
            `tokens_per_s` and `mfu` (None if the device's peak is unknown), see above;
            `padding`, the share of the positions that is padding; `step_s`, seconds per step;
            `data_wait_s`, seconds that the loop waited for data in all these steps;
            `memory_gb`, the peak allocation on this rank's GPU, or resident size of its process,
            so far, in GiB (2^30 bytes).
        """
        rate = self._tokens / self._seconds
        mfu = None
        if self._peak is not None:
            mfu = rate * self._flops_per_token / (self._peak * self._world_size)
        if self._device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self._device) / 2**30
        else:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # from KiB
        metrics = {
            "data_wait_s": self._wait,
            "step_s": self._seconds / self._steps,
            "tokens_per_s": rate,
            "mfu": mfu,
            "padding": self._padding / max(self._tokens + self._padding, 1.0),
            "memory_gb": memory,
        }
        self._clear()
        return metrics

    def _clear(self) -> None:
        self._seconds = self._tokens = self._padding = self._wait = 0.0
        self._steps = 0


def peak_flops(device: torch.device) -> float | None:
    """The dense bf16 peak of a GPU in FLOP/s; None if unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


def flops_per_token(model: nn.Module) -> float:
    """Forward and backward FLOPs of one token: 6 per parameter (Kaplan et al. 2020, section 2.1).

    Embeddings that are only looked up do not count; one that is also the output layer does.
    Attention over the context is left out: documents packed into a sequence do not attend to each
    other, so it depends on their lengths. The true utilization is therefore slightly higher.
    """
    looked_up: set[int] = set()
    others: set[int] = set()
    for module in model.modules():
        into = looked_up if isinstance(module, nn.Embedding) else others
        into.update(id(parameter) for parameter in module.parameters(recurse=False))
    # Under ZeRO-3 a parameter is a shard here, and its full size is in ds_numel.
    return 6.0 * sum(
        getattr(parameter, "ds_numel", parameter.numel())
        for parameter in model.parameters()
        if id(parameter) in others or id(parameter) not in looked_up
    )


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


@dataclass
class Progress:
    """The progress of a run; saved with every checkpoint.

    Attributes:
        tokens: Tokens fed to the model, without padding.
        targets: Tokens on which loss was computed.
        counts: Sums of `MicroBatch.counts` since the current phase of the data began.
        unlogged: The same since the last line of the log.
        totals: The same over the run.
    """

    step: int = 0
    tokens: int = 0
    targets: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    unlogged: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    def add_counts(self, counts: dict[str, float]) -> None:
        """Adds the counts of a step's global batch."""
        for sums in (self.counts, self.unlogged, self.totals):
            for name, value in counts.items():
                sums[name] = sums.get(name, 0.0) + value


class StepLog:
    """Reads completed steps and records them: progress, documents, metrics, non-finite steps."""

    def __init__(
        self, config: RunConfig, schedule: Schedule, run: RunFolder, processes: Processes,
        tracker: Tracker, throughput: Throughput, nonfinite: NonFiniteGuard,
    ) -> None:  # fmt: skip
        self._schedule = schedule
        self._run = run
        self._tracker = tracker
        self._throughput = throughput
        self._nonfinite = nonfinite
        self._documents: LineLog | None = None
        if config.log_documents:
            self._documents = run.open_log(f"documents-rank{processes.rank}.jsonl")

    def record(self, result: StepResult, data: DataStats, progress: Progress) -> StepMetrics:
        """Waits for a step and records it.

        Args:
            progress: That of the run; advanced by this step.

        Raises:
            TrainingError: If loss or gradient is not finite, and the step may not be skipped.
        """
        metrics = result.read(data.targets)
        if metrics.finite:
            self._nonfinite.passed()
        else:
            self._run.keep()
            event = self._nonfinite.failed(
                result.step,
                metrics.loss,
                metrics.grad_norm,
                result.data.micro_batches,
                result.losses,
                weights_changed=result.weights_changed,
            )
            self._tracker.event("nonfinite", result.step, **event)
        self._write_documents(result)
        progress.add_counts(data.counts)
        self._throughput.add(data.tokens, data.padding, result.data_wait_s)
        if metrics.finite:
            progress.tokens += int(data.tokens)
            progress.targets += int(data.targets)
            if self._schedule.logs(result.step):
                self._log(result, metrics, progress)
        return metrics

    def finish(self, progress: Progress) -> None:
        """Records the totals of the run."""
        self._tracker.event(
            "totals",
            progress.step,
            tokens=progress.tokens,
            targets=progress.targets,
            counts=_counted(progress.totals),
        )

    def _write_documents(self, result: StepResult) -> None:
        if self._documents is not None:
            batches = result.data.micro_batches
            documents = list(dict.fromkeys(name for batch in batches for name in batch.documents))
            targets = [batch.targets for batch in batches if batch.targets]
            line = {"step": result.step, "documents": documents}
            self._documents.write(line | ({"targets": targets} if targets else {}))

    def _log(self, result: StepResult, metrics: StepMetrics, progress: Progress) -> None:
        values: dict[str, Any] = {
            "loss": metrics.loss,
            "learning_rate": result.learning_rate,
            "grad_norm": metrics.grad_norm,
            "parts": metrics.parts,
            "counts": _counted(progress.unlogged),
            "tokens": progress.tokens,
            "targets": progress.targets,
        }
        progress.unlogged.clear()
        self._tracker.event("step", result.step, **values, **self._throughput.metrics())


def _counted(sums: dict[str, float]) -> dict[str, float]:
    """The counts that are not 0: most are of rare problems, in every line of the log."""
    return {name: value for name, value in sums.items() if value}
