"""The training loop: the only one, for every task.

It fetches, logs, evaluates, saves and stops; `update` makes the step itself, `progress` is what a
checkpoint knows of the run.
"""

from __future__ import annotations

import json
import shutil
from collections import deque
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from bsmeta.config.schema import TrainConfig
from bsmeta.models.manifest import write_model_manifest
from bsmeta.tasks.base import EvaluationContext, Task
from bsmeta.training import random_state
from bsmeta.training.checkpoint import DATA, STATE, Checkpoint
from bsmeta.training.distributed import Processes
from bsmeta.training.engines import make_engine
from bsmeta.training.feed import Feed
from bsmeta.training.garbage import GarbageCollection
from bsmeta.training.journal import Journal
from bsmeta.training.nonfinite import NonFiniteSteps
from bsmeta.training.optim import build_optimizer
from bsmeta.training.profiling import Profile
from bsmeta.training.progress import Progress, StreamStates
from bsmeta.training.resuming import (
    Resume,
    check_same_data,
    check_same_model,
    global_batch,
    log_changes,
    parameter_shapes,
    rollback_point,
)
from bsmeta.training.retention import check_figure
from bsmeta.training.run_folder import RunFolder
from bsmeta.training.saving import Saver
from bsmeta.training.signals import StopRequest
from bsmeta.training.spikes import SpikeDetector
from bsmeta.training.stepping import Stepper, counted
from bsmeta.training.throughput import Throughput
from bsmeta.training.tracking import Tracker
from bsmeta.training.tracking_runs import start_trackers
from bsmeta.training.update import Figures, Update, Updater
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
        stop: StopRequest,
    ) -> None:
        self.config = config
        self.task = task
        self.accelerator = accelerator
        self.processes = Processes.of(accelerator)
        self.run = run
        self.watchdog = watchdog
        self.progress = Progress()
        self.stop = stop
        self.states = StreamStates()
        self.garbage = GarbageCollection()
        self._last_saved = -1
        self._evaluated: tuple[int, dict[str, float]] = (-1, {})
        self._totals: dict[str, float] = {}  # of the data of the next step, over all ranks
        self._stopping = False
        self._is_dataless = False
        self._unread: deque[Update] = deque()

        # A GPU works on the next step while the figures of this one are read. Who may have to take
        # a step back must know its loss at once.
        waits = self.processes.device.type != "cuda" or config.loss_spike_deviations > 0
        self._lag = 0 if waits else 1

        torch.manual_seed(config.seed)  # the same weights on every rank
        model = task.build_model()
        self._shapes = parameter_shapes(model)
        self.model: nn.Module
        self.model, self.optimizer = accelerator.prepare(model, build_optimizer(model, config))
        torch.manual_seed(config.seed + 1 + self.processes.rank)  # other dropout on every rank
        self.throughput = Throughput(model, self.processes.device, self.processes.size)
        self.engine = make_engine(accelerator, self.model, self.optimizer)
        steps = (config.profile_steps[0], config.profile_steps[1]) if config.profile else None
        self.profile = Profile(steps, run.path, self.processes.rank)
        updater = Updater(
            config, task, accelerator, self.model, self.optimizer, self.engine, watchdog,
            self.profile,
        )  # fmt: skip
        self.steps = Stepper(
            updater, config.max_train_steps, self._told, self.processes, watchdog, self.profile,
            stop, agrees=self._lag > 0 and self.processes.size > 1,
        )  # fmt: skip
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
            self.saver.retention.protect(resume.saved)
        self._open_stream(state)
        self.processes.on_main(lambda: self.run.begin(self.config, self.progress.step))
        with self._track() as self.tracker:
            self.journal = Journal(
                self.config, self.run, self.processes, self.tracker, self.throughput, self.nonfinite
            )
            if resume:
                folder, changed = str(resume.saved.folder), resume.changed
                self.tracker.event("resume", self.progress.step, checkpoint=folder, changed=changed)
                if self.processes.is_main:
                    log_changes(resume)
            elif self.config.start_with_eval:
                self._evaluate()
            try:
                with self.garbage:
                    return self._loop()
            finally:
                self.profile.stop()
                self.saver.settle()
                self._log_saves()

    def probe(self, warm_up: int, updates: int) -> dict[str, Any]:
        """Makes updates and keeps nothing of them: no log, no evaluation, no checkpoint.

        Returns:
            The figures of `Throughput` over the `updates` that follow on the `warm_up`.
        """
        self._open_stream(None)
        self.throughput.start()
        with self.garbage:
            for number in range(warm_up + updates):
                if not self.steps.ready:
                    self._take(self.steps.begin(self.progress.step + 1))
                totals = self._totals
                self._update()
                update = self._unread.popleft()
                self._take(update.read(totals["targets"]).totals)
                if number < warm_up:
                    self.throughput.start()
                else:
                    self.throughput.add(totals["tokens"], totals["padding"], update.data.wait)
        return self.throughput.figures()

    def _loop(self) -> Outcome:
        self.stop.begin()
        self.throughput.start()
        while self.progress.step < self.config.max_train_steps:
            if not self.steps.ready:
                self._read()  # why there is no data, if there was an update before
            if not self.steps.ready and not self._stopping:
                self._take(self.steps.begin(self.progress.step + 1))
            if self._stopping:
                break
            self._log_phase()
            self._update()
            if not self._read(keep=self._lag):
                self._evaluate_and_save_if_due()
        self._read()
        self.watchdog.step = self.progress.step
        self._save()
        self.saver.finish()
        if self._is_dataless:
            self.steps.raise_error()
        if self.progress.step == self.config.max_train_steps:
            return Outcome.DONE
        self.tracker.event("stop", self.progress.step, reason=self.stop.name)
        return Outcome.PREEMPTED

    def _track(self) -> Tracker:
        step = self.progress.step
        self.processes.on_main(
            lambda: start_trackers(self.accelerator, self.config, self.run.path, step)
        )
        return Tracker(
            self.run,
            main=self.processes.is_main,
            step=step,
            total_steps=self.config.max_train_steps,
            external=self.accelerator.trackers,
        )

    def _log_phase(self) -> None:
        """Notes the first step of each phase of the data but the first."""
        step = self.progress.step + 1
        phase = self.stream.phase(step)
        if step > 1 and phase != self.stream.phase(step - 1):
            self._read()
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
        check_same_data(self.stream.fingerprint, self.processes)
        accumulation = self.config.gradient_accumulation_steps
        self.steps.open(Feed(self.stream, accumulation, self.processes.device))

    def _told(self) -> dict[str, float]:
        """What this rank tells the others with each step."""
        return {
            "stop": float(self.stop.name is not None),
            "unsaved": float(self.saver.failed),
        }

    def _take(self, totals: dict[str, float]) -> None:
        """Acts on what the ranks told each other."""
        if totals["unsaved"]:
            self.saver.finish()  # raises why
        self._is_dataless = self._is_dataless or totals["dataless"] > 0
        self._stopping = self._stopping or self._is_dataless or totals["stop"] > 0
        self._totals = counted(totals)

    def _update(self) -> None:
        """One update, not read yet."""
        step = self.progress.step + 1
        self._unread.append(self.steps.update(step))
        self.progress.step = step
        self.garbage.after(step)

    def _read(self, keep: int = 0) -> bool:
        """Takes down the updates but the last `keep`; whether the run went back to a checkpoint.

        Raises:
            TrainingError: If loss or gradient are not finite, and may not be passed over.
        """
        while len(self._unread) > keep:
            self._log_saves()
            update = self._unread.popleft()
            figures = self.journal.note(update, self._totals, self.progress, self.states)
            self._take(figures.totals)
            if figures.finite and self.spikes.is_spike(figures.loss) and self._go_back(figures):
                return True
        return False

    # --- evaluation and checkpoints -----------------------------------------------------------

    def _evaluate_and_save_if_due(self) -> None:
        step = self.progress.step
        extra = step in self.config.extra_steps_to_eval_save_at
        last = step == self.config.max_train_steps and self.config.eval_steps > 0
        evaluates = extra or last or _due(step, self.config.eval_steps)
        saves = extra or _due(step, self.config.save_steps)
        if evaluates or saves:
            self._read()
        if evaluates:
            self._evaluate()
        if saves:
            self._save()
        if evaluates or saves:
            self.garbage.collect()
            self.throughput.start()

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
            "parameters": self._shapes,
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
            write_model_manifest(temporary)
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)

        self.processes.on_main(replace)

    def _load(self, saved: Checkpoint, weights: Path | None = None) -> dict[str, Any]:
        """Restores everything but the data stream, whose state it returns."""
        self.watchdog.enter(f"loading {saved.folder.name}")
        state = json.loads((saved.folder / STATE).read_text())
        check_same_model(saved, state["parameters"], self._shapes)
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

    def _go_back(self, figures: Figures) -> bool:
        """Takes weights and step of the last checkpoint, but continues with the data from here.

        Returns:
            False where there is no whole checkpoint yet: the run just continues.
        """
        self.saver.finish()
        step = self.progress.step
        self.watchdog.enter(f"step {step}: looking for a checkpoint to go back to")
        saved = rollback_point(self.run.path, step, self.processes)
        self.tracker.event("spike", step, loss=figures.loss, has_checkpoint=saved is not None)
        if saved is None:
            return False
        self.spikes.went_back(saved.step)
        self._load(saved)  # but not the states of the streams
        self.tracker.event("rollback", step, to_step=self.progress.step)
        return True


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
