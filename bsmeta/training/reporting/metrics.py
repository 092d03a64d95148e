"""The metrics of each step, and their destinations: log, trackers, screen."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import Schedule
from bsmeta.core.secrets import redact
from bsmeta.training.guards import NonFiniteGuard
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.reporting.flat_values import flatten_values
from bsmeta.training.reporting.screen import Screen
from bsmeta.training.reporting.throughput import Throughput
from bsmeta.training.reporting.trackers import ExternalTracker
from bsmeta.training.run_folder.events import METRICS
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.run_folder.logs import Log
from bsmeta.training.step_stats import DataStats, StepResult, StepStats

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """Counters of a run; saved with every checkpoint.

    Attributes:
        tokens: Tokens fed to the model, without padding.
        targets: Tokens on which loss was computed.
        counts: Sums of `MicroBatch.counts` since the current phase of the data began.
        unlogged: Sums since the last line of the log.
        totals: Sums over the run.
    """

    step: int = 0
    tokens: int = 0
    targets: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    unlogged: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Returns a JSON-serializable copy."""
        return dataclasses.asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores all counters.

        Raises:
            msgspec.ValidationError: If a value has the wrong type.
        """
        saved = msgspec.convert(state, Progress)
        for name, value in vars(saved).items():
            setattr(self, name, value)

    def add_counts(self, counts: dict[str, float]) -> None:
        """Adds the counts of a step to the sums of the phase, the log and the run."""
        for sums in (self.counts, self.unlogged, self.totals):
            for name, value in counts.items():
                sums[name] = sums.get(name, 0.0) + value


class StepLog:
    """Reads completed steps and records them: progress, documents, metrics, non-finite steps."""

    def __init__(
        self,
        config: RunConfig,
        schedule: Schedule,
        run_folder: RunFolder,
        processes: Processes,
        tracker: Tracker,
        throughput: Throughput,
        nonfinite: NonFiniteGuard,
    ) -> None:
        self._schedule = schedule
        self._run_folder = run_folder
        self._tracker = tracker
        self._throughput = throughput
        self._nonfinite = nonfinite
        self._documents: Log | None = None
        if config.log_documents:
            self._documents = run_folder.open_log(f"documents-rank{processes.rank}.jsonl")

    def record(self, result: StepResult, data: DataStats, progress: Progress) -> StepStats:
        """Waits for the statistics of a step, records them, and advances `progress`.

        Raises:
            TrainingError: If loss or gradient is not finite, and the step may not be skipped.
        """
        stats = result.reduced.read(data.targets)
        if stats.is_finite:
            self._nonfinite.record_finite_step()
        else:
            self._run_folder.rebuild_if_deleted()
            values = self._nonfinite.skip_or_stop(result, stats)
            self._tracker.record_event("nonfinite", result.step, **values)

        self._write_documents(result)
        progress.add_counts(data.counts)
        self._throughput.add(data.tokens, data.padding, result.data_wait_s)
        if stats.is_finite:
            progress.tokens += int(data.tokens)
            progress.targets += int(data.targets)
            if self._schedule.logs(result.step):
                self._log(result, stats, progress)

        return stats

    def finish(self, progress: Progress) -> None:
        """Records the totals of a completed run."""
        self._tracker.record_event(
            "totals",
            progress.step,
            tokens=progress.tokens,
            targets=progress.targets,
            counts=_drop_zeros(progress.totals),
        )

    def _write_documents(self, result: StepResult) -> None:
        """Logs each document of a step once, if `log_documents` is set."""
        if self._documents is None:
            return

        documents: dict[str, None] = {}  # ordered, without duplicates
        targets = []
        for batch in result.data.micro_batches:
            documents |= dict.fromkeys(batch.documents)
            if batch.targets:
                targets.append(batch.targets)

        line: dict[str, Any] = {"step": result.step, "documents": list(documents)}
        if targets:
            line["targets"] = targets
        self._documents.write(line)

    def _log(self, result: StepResult, stats: StepStats, progress: Progress) -> None:
        """Logs a step, with all counts since the last line of the log."""
        values: dict[str, Any] = {
            "loss": stats.loss,
            "learning_rate": result.learning_rate,
            "grad_norm": stats.grad_norm,
            "parts": stats.parts,
            "counts": _drop_zeros(progress.unlogged),
            "tokens": progress.tokens,
            "targets": progress.targets,
        }
        progress.unlogged.clear()
        self._tracker.record_event("step", result.step, **values, **self._throughput.take_metrics())


def _drop_zeros(sums: dict[str, float]) -> dict[str, float]:
    """Drops counts of 0: most counts are of rare problems, and would fill every line of the log."""
    return {name: value for name, value in sums.items() if value}


class Tracker:
    """Records events in the log, at the trackers and on the screen; does nothing on other ranks.

    Args:
        is_main: Whether this is rank 0, the only rank that records.
        step: The step that the run resumes from; 0 at its beginning.
        external: Trackers that Accelerate has created.
    """

    def __init__(
        self,
        run_folder: RunFolder,
        *,
        is_main: bool,
        step: int,
        total_steps: int,
        external: Sequence[ExternalTracker] = (),
    ) -> None:
        self._external = list(external) if is_main else []
        self._metrics = run_folder.open_log(METRICS) if is_main else None
        self._screen = Screen(total_steps, step) if is_main else None

    def record_event(self, kind: str, step: int, **values: Any) -> None:
        """Records an event: a line of `metrics.jsonl`, and its numbers for the trackers."""
        if self._metrics is None or self._screen is None:
            return

        self._metrics.write({"event": kind, "step": step, **values})
        if self._external and kind in ("step", "eval"):
            prefix = "" if kind == "step" else "eval/"
            numbers = {
                prefix + name: value
                for name, value in flatten_values(values)
                # NaN: unknown, such as the utilization of a CPU
                if isinstance(value, (int, float)) and not math.isnan(value)
            }
            self._call_each(lambda tracker: tracker.log(numbers, step))
        self._screen.show(kind, step, values)

    def _call_each(self, action: Callable[[ExternalTracker], None]) -> None:
        """Calls `action` on each tracker, and drops those that fail (full disk, lost server)."""
        for tracker in list(self._external):
            try:
                action(tracker)
            except Exception as error:
                self._external.remove(tracker)
                logger.warning(
                    "%s gets no more metrics (%s: %s); all of them are in %s",
                    type(tracker).__name__,
                    type(error).__name__,
                    redact(str(error)),
                    METRICS,
                )

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._metrics is not None and self._screen is not None:
            self._screen.close()
            self._metrics.close()
        self._call_each(lambda tracker: tracker.finish())
