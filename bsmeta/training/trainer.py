"""The training loop: the only one, for every task.

It fetches, logs, evaluates, saves and stops; `update` makes the step itself, `progress` is what a
checkpoint knows of the run.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.config.schema import TrainConfig
from bsmeta.tasks.base import EvaluationContext, MicroBatch, Task
from bsmeta.training import random_state
from bsmeta.training.checkpoint import DATA, STATE, Checkpoint, found
from bsmeta.training.distributed import Processes
from bsmeta.training.engines import make_engine
from bsmeta.training.nonfinite import NonFiniteSteps
from bsmeta.training.optim import build_optimizer
from bsmeta.training.progress import Progress, StreamStates
from bsmeta.training.resuming import Resume, global_batch
from bsmeta.training.retention import check_figure
from bsmeta.training.run_folder import LineLog, RunFolder
from bsmeta.training.saving import Saver
from bsmeta.training.signals import StopRequest
from bsmeta.training.spikes import SpikeDetector
from bsmeta.training.throughput import Throughput
from bsmeta.training.tracking import Tracker, flat, keep_tensorflow_out
from bsmeta.training.update import Updater
from bsmeta.training.watchdog import Watchdog


class Outcome(Enum):
    """How a run ended."""

    DONE = "done"
    PREEMPTED = "preempted"


class Trainer:
    """Trains one task. All ranks build it and call `train` together."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        accelerator: Accelerator,
        run: RunFolder,
        watchdog: Watchdog,
    ) -> None:
        self.config = config
        self.task = task
        self.accelerator = accelerator
        self.processes = Processes.of(accelerator)
        self.run = run
        self.watchdog = watchdog
        self.progress = Progress()
        self.stop = StopRequest()
        self.states = StreamStates()
        self._last_saved = -1
        self._evaluated: tuple[int, dict[str, float]] = (-1, {})
        self._documents: LineLog | None = None

        torch.manual_seed(config.seed)  # the same weights on every rank
        model = task.build_model()
        self.model: nn.Module
        self.model, optimizer = accelerator.prepare(model, build_optimizer(model, config))
        torch.manual_seed(config.seed + 1 + self.processes.rank)  # other dropout on every rank
        self.throughput = Throughput(model, self.processes.device)
        self.engine = make_engine(accelerator, self.model, optimizer)
        self.updater = Updater(
            config, task, accelerator, self.model, optimizer, self.engine, watchdog
        )
        plain = accelerator.unwrap_model(self.model)
        self.saver = Saver(config, task, plain, self.engine, run.path, self.processes)
        self.nonfinite = NonFiniteSteps(
            config.on_nonfinite, config.max_consecutive_skips, run.path, self.processes.rank
        )
        self.spikes = SpikeDetector(
            config.loss_spike_deviations, config.loss_spike_window, config.max_rollbacks
        )

    def train(self, resume: Resume | None) -> Outcome:
        """Trains to `max_train_steps`, or until a signal; the state is saved either way."""
        state = None
        if resume:
            state = self._load(resume.saved, resume.converted)
            self.states.resumed(state["streams"])
            resume.release(self.processes)
        self._open_stream(state)
        self.processes.on_main(lambda: self.run.cut_logs(self.progress.step))
        if self.config.log_documents:
            file = self.run.path / f"documents-rank{self.processes.rank}.jsonl"
            self._documents = LineLog(file)
        with self._track() as self.tracker:
            if resume:
                folder = str(resume.saved.folder)
                self.tracker.event("resume", self.progress.step, checkpoint=folder)
            elif self.config.start_with_eval:
                self._evaluate()
            try:
                return self._loop()
            finally:
                self.saver.settle()
                self._log_saves()

    def _loop(self) -> Outcome:
        while self.progress.step < self.config.max_train_steps:
            self._log_phase()
            batches, wait = self._fetch()
            totals, stopping = self._agree(batches)
            if stopping:
                self._save()
                self.saver.finish()
                self.tracker.event("stop", self.progress.step, reason=self.stop.name)
                return Outcome.PREEMPTED
            if self._update(batches, totals, wait):
                self._evaluate_and_save_if_due()
        self._save()
        self.saver.finish()
        return Outcome.DONE

    def _track(self) -> Tracker:
        if self.config.trackers:
            keep_tensorflow_out()
            self.accelerator.init_trackers(self.config.run_name, config=flat(self.config))
        return Tracker(
            self.run,
            main=self.processes.is_main,
            step=self.progress.step,
            total_steps=self.config.max_train_steps,
            external=self.accelerator.trackers,
        )

    def _log_phase(self) -> None:
        """Notes the first step of each phase of the data but the first."""
        step = self.progress.step + 1
        phase = self.stream.phase(step)
        if step > 1 and phase != self.stream.phase(step - 1):
            self._log_exposure(step, phase - 1)
            self.progress.counts.clear()
            self.tracker.event("phase", step, phase=phase)

    def _log_exposure(self, step: int, phase: int) -> None:
        """What the data of a phase so far was to be, beside what it was."""
        exposure = self.task.exposure(self.progress.counts, phase)
        if exposure:
            self.tracker.event("exposure", step, phase=phase, **exposure)

    # --- one step ---------------------------------------------------------------------------

    def _open_stream(self, state: dict[str, Any] | None) -> None:
        self.stream = self.task.train_stream(self.processes.rank, self.processes.size, state)
        self._batches: Iterator[MicroBatch] = iter(self.stream)

    def _fetch(self) -> tuple[list[MicroBatch], float]:
        """The micro-batches of the next step, and the seconds that the loop waited for them."""
        self.watchdog.step = self.progress.step
        self.watchdog.enter(f"step {self.progress.step + 1}: waiting for data")
        began = time.perf_counter()
        count = self.config.gradient_accumulation_steps
        return [next(self._batches) for _ in range(count)], time.perf_counter() - began

    def _agree(self, batches: list[MicroBatch]) -> tuple[dict[str, float], bool]:
        """The step's totals over all ranks, and whether any rank was asked to stop."""
        self.watchdog.enter(f"step {self.progress.step + 1}: adding up over all ranks")
        values = {
            "targets": sum(batch.weight for batch in batches),
            "tokens": float(sum(batch.tokens for batch in batches)),
            "stop": float(self.stop.name is not None),
            "unsaved": float(self.saver.failed),
        }
        for batch in batches:
            for name, count in batch.counts.items():
                values[f"counts/{name}"] = values.get(f"counts/{name}", 0.0) + count
        totals = dict(zip(values, self._sum(list(values.values())), strict=True))
        if totals.pop("unsaved"):
            self.saver.finish()  # raises why
        return totals, totals.pop("stop") > 0

    def _sum(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.processes.device)
        return self.processes.sum(tensor).tolist()

    def _update(self, batches: list[MicroBatch], totals: dict[str, float], wait: float) -> bool:
        """One global batch, from its forward pass to the log; False if its weights were taken back.

        Raises:
            TrainingError: If loss or gradient are not finite, and may not be passed over.
        """
        began = time.perf_counter()
        step = self.progress.step + 1
        update = self.updater.run(step, batches, totals["targets"])
        if update.finite:
            self.nonfinite.passed()
        else:
            event = self.nonfinite.failed(
                step, update.loss, update.norm, batches, update.each, in_weights=update.changed
            )
            self.tracker.event("nonfinite", step, **event)
        self.states.trained_on(batches)
        self.progress.step = step
        if self._documents is not None:
            documents = dict.fromkeys(name for batch in batches for name in batch.documents)
            self._documents.write({"step": step, "documents": list(documents)})
        counts = {k[len("counts/") :]: v for k, v in totals.items() if k.startswith("counts/")}
        self.progress.count(counts)
        if update.finite:
            self.progress.tokens += int(totals["tokens"])
            self.progress.targets += int(totals["targets"])
            figures = {
                "loss": update.loss,
                "learning_rate": update.rate,
                "grad_norm": update.norm,
                "parts": update.parts,
                "counts": counts,
            }
            self._log(totals, figures, wait, time.perf_counter() - began)
            if self.spikes.is_spike(update.loss):
                return not self._go_back(update.loss)
        return True

    def _log(
        self, totals: dict[str, float], figures: dict[str, Any], wait: float, busy: float
    ) -> None:
        self._log_saves()
        step = self.progress.step
        if step % self.config.logging_steps and step != self.config.max_train_steps:
            return
        speed = self.throughput.figures(totals["tokens"], wait + busy, self.processes.size)
        self.tracker.event(
            "step",
            step,
            **figures,
            tokens=self.progress.tokens,
            targets=self.progress.targets,
            data_wait_s=wait,
            **speed,
        )

    # --- evaluation and checkpoints -----------------------------------------------------------

    def _evaluate_and_save_if_due(self) -> None:
        step = self.progress.step
        extra = step in self.config.extra_steps_to_eval_save_at
        last = step == self.config.max_train_steps and self.config.eval_steps > 0
        if extra or last or _due(step, self.config.eval_steps):
            self._evaluate()
        if extra or _due(step, self.config.save_steps):
            self._save()

    def _evaluate(self) -> None:
        self.watchdog.enter(f"step {self.progress.step}: evaluation")
        context = EvaluationContext(
            self.processes.rank, self.processes.size, self.processes.device, self.processes.gather
        )
        self.model.eval()
        figures = self.task.evaluate(self.model, context)
        check_figure(self.config.keep_best_by, figures)
        self._evaluated = (self.progress.step, figures)
        if figures:
            self.tracker.event("eval", self.progress.step, split="validation", **figures)

    def _save(self) -> None:
        step = self.progress.step
        if step == self._last_saved:
            return
        self.watchdog.enter(f"step {step}: saving")
        self._log_exposure(step, self.stream.phase(max(step, 1)))
        streams = self.states.gathered(self.processes)
        data = {"fingerprint": self.stream.fingerprint, "streams": streams}
        state = {
            "progress": asdict(self.progress),
            "world_size": self.processes.size,
            "global_batch": global_batch(self.config, self.processes.size),
            "engine": self.engine.name,
            "evaluation": self._evaluated[1] if self._evaluated[0] == step else None,
            "consecutive_skips": self.nonfinite.consecutive,
            "last_losses": self.spikes.state(),
        }
        self.saver.save(step, state, data)
        self._last_saved = step
        self._log_saves()

    def _log_saves(self) -> None:
        for saved in self.saver.finished():
            self.tracker.event(
                "save",
                saved.step,
                checkpoint=saved.name,
                seconds=saved.seconds,
                loop_seconds=saved.loop_seconds,
            )

    def export(self, folder: Path) -> None:
        """Replaces `folder` by the model as it is now."""
        self.watchdog.enter("exporting the model")
        temporary = folder.with_name(f".tmp-{folder.name}")
        self.processes.on_main(lambda: shutil.rmtree(temporary, ignore_errors=True))
        self.saver.export(temporary)

        def replace() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)

        self.processes.on_main(replace)

    def _load(self, saved: Checkpoint, weights: Path | None = None) -> dict[str, Any]:
        """Restores everything but the data stream, whose state it returns."""
        self.watchdog.enter(f"loading {saved.folder.name}")
        state = json.loads((saved.folder / STATE).read_text())
        self.engine.load(weights or saved.folder / "state")
        self.progress = Progress(**state["progress"])
        self.nonfinite.consecutive = int(state["consecutive_skips"])
        self.spikes.restore(state["last_losses"])
        self._last_saved = saved.step
        rank = self.processes.rank
        own_seed = self.config.seed + saved.step * 10_007 + rank
        random_state.restore(saved.folder, rank, state["world_size"], own_seed)
        data: dict[str, Any] = json.loads((saved.folder / DATA).read_text())
        return data

    def _go_back(self, loss: float) -> bool:
        """Takes weights and step of the last checkpoint, but goes on with the data from here.

        Returns:
            False where there is no checkpoint yet: the run just goes on.
        """
        self.saver.finish()
        step = self.progress.step
        checkpoints = self.processes.broadcast(found(self.run.path))
        self.tracker.event("spike", step, loss=loss, has_checkpoint=bool(checkpoints))
        if not checkpoints:
            return False
        self.spikes.went_back(checkpoints[-1].step)
        self._load(checkpoints[-1])  # but not the states of the streams
        self.tracker.event("rollback", step, to_step=self.progress.step)
        return True


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
