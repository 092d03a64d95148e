"""What came of each update, written down: progress, documents, the log, steps that are not finite.

The trainer reads an update once the device has finished it; on a GPU that is while it works on the
next, so that none of this costs the device any time.
"""

from __future__ import annotations

from typing import Any

from bsmeta.config.schema import TrainConfig
from bsmeta.training.distributed import Processes
from bsmeta.training.nonfinite import NonFiniteSteps
from bsmeta.training.progress import Progress, StreamStates
from bsmeta.training.run_folder import LineLog, RunFolder
from bsmeta.training.throughput import Throughput
from bsmeta.training.tracking import Tracker
from bsmeta.training.update import Figures, Update

COUNTS = "counts/"


class Journal:
    """Takes down the updates of this rank, in their order.

    Args:
        config: The run.
        run: Its folder.
        processes: The ranks.
        tracker: Where the figures go.
        throughput: Turns tokens and time into figures.
        nonfinite: What to do about updates that are not finite.
    """

    def __init__(
        self, config: TrainConfig, run: RunFolder, processes: Processes, tracker: Tracker,
        throughput: Throughput, nonfinite: NonFiniteSteps,
    ) -> None:  # fmt: skip
        self._config = config
        self._tracker = tracker
        self._throughput = throughput
        self._nonfinite = nonfinite
        self._documents: LineLog | None = None
        if config.log_documents:
            self._documents = LineLog(run.path / f"documents-rank{processes.rank}.jsonl")

    def note(
        self, update: Update, totals: dict[str, float], progress: Progress, states: StreamStates
    ) -> Figures:
        """Waits for an update and takes it down.

        Args:
            update: The update.
            totals: What the ranks counted in its data together.
            progress: Of the run; goes on by this update.
            states: Of the streams; go on by this update.

        Returns:
            Its figures.

        Raises:
            TrainingError: If loss or gradient are not finite, and may not be passed over.
        """
        figures = update.read(totals["targets"])
        if figures.finite:
            self._nonfinite.passed()
        else:
            event = self._nonfinite.failed(
                update.step,
                figures.loss,
                figures.norm,
                update.data.batches,
                update.each,
                in_weights=update.changed,
            )
            self._tracker.event("nonfinite", update.step, **event)
        states.trained_on(update.data.batches)
        self._write_documents(update)
        counts = {k[len(COUNTS) :]: v for k, v in totals.items() if k.startswith(COUNTS)}
        progress.count(counts)
        self._throughput.add(totals["tokens"], totals["padding"], update.data.wait)
        if figures.finite:
            progress.tokens += int(totals["tokens"])
            progress.targets += int(totals["targets"])
            self._log(update, figures, counts, progress)
        return figures

    def _write_documents(self, update: Update) -> None:
        if self._documents is not None:
            names = (name for batch in update.data.batches for name in batch.documents)
            documents = list(dict.fromkeys(names))
            self._documents.write({"step": update.step, "documents": documents})

    def _log(
        self, update: Update, figures: Figures, counts: dict[str, float], progress: Progress
    ) -> None:
        step = update.step
        if step % self._config.logging_steps and step != self._config.max_train_steps:
            return
        values: dict[str, Any] = {
            "loss": figures.loss,
            "learning_rate": update.rate,
            "grad_norm": figures.norm,
            "parts": figures.parts,
            "counts": counts,
            "tokens": progress.tokens,
            "targets": progress.targets,
        }
        self._tracker.event("step", step, **values, **self._throughput.figures())
