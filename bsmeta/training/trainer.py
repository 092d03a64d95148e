"""The training loop, the same for every task.

The loop decides when to fetch data, log, evaluate, save, roll back and stop; `step` runs one step,
`metrics` records it, `saving` writes the checkpoints.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import BatchPlan, Schedule
from bsmeta.core.progress import report_opaque_work
from bsmeta.core.signals import StopRequest
from bsmeta.data.batch import Stream
from bsmeta.training.checkpoints.checkpoint import (
    DATA_STATE_FILE,
    TRAINER_STATE_FILE,
    Checkpoint,
    name_damaged_file,
    name_folder,
)
from bsmeta.training.checkpoints.rng import restore_rng
from bsmeta.training.corruption import CorruptionCheck
from bsmeta.training.engines.choice import make_engine, needs_optimizer
from bsmeta.training.engines.frozen_weights import FrozenBase, check_same_base, list_frozen_weights
from bsmeta.training.garbage import GarbageCollection
from bsmeta.training.guards import Guards
from bsmeta.training.optimization import build_optimizer
from bsmeta.training.profile import Profile
from bsmeta.training.ranks.processes import FinishContext, Processes
from bsmeta.training.ranks.same_data import check_same_data
from bsmeta.training.reporting.metrics import Progress, StepLog, Tracker
from bsmeta.training.reporting.throughput import Throughput
from bsmeta.training.reporting.trackers import TRACKERS_FILE, start_trackers
from bsmeta.training.resuming import (
    Resume,
    check_same_model,
    find_rollback_point,
    list_parameter_shapes,
)
from bsmeta.training.retention import check_metric
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.saving import Saver
from bsmeta.training.step import StepRunner
from bsmeta.training.step_stats import DataStats, StepResult, StepStats
from bsmeta.training.task import Metric, Task
from bsmeta.training.watchdog import Watchdog

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Evaluation:
    """Metrics of the evaluation after a step."""

    step: int
    metrics: list[Metric]


class Trainer:
    """Trains one task. All ranks build it and call `train` together."""

    def __init__(
        self,
        config: RunConfig,
        schedule: Schedule,
        task: Task,
        accelerator: Accelerator,
        run_folder: RunFolder,
        watchdog: Watchdog,
        stop: StopRequest,
    ) -> None:
        self.config = config
        self.schedule = schedule
        self.task = task
        self.accelerator = accelerator
        self.processes = Processes.of_group(accelerator.device, run_folder.leaders)
        self.run_folder = run_folder
        self.watchdog = watchdog
        self.stop = stop

        self.progress = Progress()
        self.garbage = GarbageCollection()
        self._last_checkpoint: Checkpoint | None = None  # the last one that was loaded or saved
        self._last_evaluation = _Evaluation(step=-1, metrics=[])
        self._phase = 0  # phase of the data of the last recorded step
        self._data_state: dict[str, Any] = {}  # of this rank, after the last recorded step
        self._next_data = DataStats()  # of the next step, over all ranks
        self._stopping = False
        self._out_of_data = False
        self._unread: deque[StepResult] = deque()  # steps whose statistics have not been read

        # Opened by `train`, the stream also by `probe`.
        self.stream: Stream
        self.tracker: Tracker
        self.step_log: StepLog

        # A GPU works on the next step while the metrics of this one are read. To be able to roll
        # back, a run must know the loss of a step at once.
        must_wait = self.processes.device.type != "cuda" or config.loss_spike_deviations > 0
        self._lag = 0 if must_wait else 1

        model = self._build_model()
        self._shapes = list_parameter_shapes(model)
        self.throughput = Throughput(
            task.flops_per_token(model), self.processes.device, self.processes.size
        )

        self._base = self._hash_base(model)
        unsaved_weights = frozenset() if self._base is None else list_frozen_weights(model)

        rank = self.processes.rank
        optimizer = None
        if needs_optimizer(accelerator, task.steps_per_epoch(self.processes.size)):
            optimizer = build_optimizer(model, config, task.rate_scale)
        self.engine = make_engine(accelerator, model, optimizer, unsaved_weights)
        torch.manual_seed(config.seed + 1 + rank)  # different dropout on every rank

        profiled_steps = config.profile_steps if config.profile else None
        self.profile = Profile(profiled_steps, run_folder.path, rank)
        self.saver = Saver(config, task, self.engine, run_folder, self.processes)
        self.step_runner = self._make_step_runner()
        self.guards = Guards.of(config, run_folder.path, rank)

    def _build_model(self) -> nn.Module:
        """Builds the model, with the same weights on every rank, and rehearses on rank 0."""
        set_seed(self.config.seed)
        with report_opaque_work():
            model = self.task.build_model()
            self.processes.on_main(lambda: self.task.rehearse(model))
        return model

    def _hash_base(self, model: nn.Module) -> FrozenBase | None:
        """Hashes the weights that checkpoints reference and do not hold; None if they hold all."""
        base_model = self.task.base_model(model)
        if base_model is None:
            return None
        return FrozenBase.of(base_model, model, self.processes)

    def _make_step_runner(self) -> StepRunner:
        """Creates the runner of the steps, from the parts of this trainer."""
        return StepRunner(
            self.task,
            self.engine,
            RatePlan.of(self.config, self.schedule.max_steps),
            self.stop,
            self.saver,
            self.watchdog,
            self.profile,
            CorruptionCheck(
                self.task, self.engine, self.processes, self.config.corruption_check_steps
            ),
            max_norm=self.config.gradient_clipping or float("inf"),
            lag=self._lag,
        )

    def train(self, resume: Resume | None) -> bool:
        """Trains until the last step, an early stop or a signal, and saves the state.

        Returns:
            Whether the run is done; False if a signal ended it.
        """
        saved_data = None if resume is None else self._restore(resume)
        self._open_stream(saved_data)
        self._begin_run_folder()
        if resume is None:
            self._rehearse_save()

        with self._start_tracking() as self.tracker:
            self.step_log = StepLog(
                self.config,
                self.schedule,
                self.run_folder,
                self.processes,
                self.tracker,
                self.throughput,
                self.guards.nonfinite,
            )
            if resume:
                self._log_resume(resume)
            elif self.config.start_with_eval:
                self._evaluate()

            try:
                with self.garbage:
                    is_done = self._run_loop()
            finally:
                self.profile.stop()
                self.saver.settle()
                self._log_saves()

            if is_done:
                self._finish()
                self.step_log.finish(self.progress)
            return is_done

    def _restore(self, resume: Resume) -> dict[str, Any]:
        """Loads the checkpoint to resume from, and protects it; returns the state of the data."""
        saved_data = self._load(resume.saved)
        self.saver.retention.protect(resume.saved)
        return saved_data

    def _begin_run_folder(self) -> None:
        """Prepares the run folder for the steps from here on, and opens this process's log."""
        self.processes.on_leaders(lambda: self.run_folder.begin(self.config, self.progress.step))
        if self.run_folder.process_log is not None:
            self.run_folder.process_log.open(self.run_folder.path)

    def _log_resume(self, resume: Resume) -> None:
        """Logs the checkpoint that the run resumes from, and the settings that differ from it."""
        self.tracker.record_event(
            "resume",
            self.progress.step,
            checkpoint=str(resume.saved.folder),
            changed=resume.changed,
            **resume.restart.to_event(),
        )
        if self.processes.is_main:
            resume.log_changes()

    def probe(self, warm_up: int, steps: int) -> dict[str, Any]:
        """Runs steps to measure their speed, without log, evaluation or checkpoint.

        Args:
            warm_up: Number of steps that are not measured.
            steps: Number of steps that are measured after them.

        Returns:
            The metrics of `Throughput` over the measured steps.
        """
        self._open_stream(None)
        self.throughput.start()

        with self.garbage:
            for number in range(warm_up + steps):
                self._fetch_next_data()
                data = self._next_data
                self._train_step()
                result = self._unread.popleft()
                self._apply_stats(result.reduced.read(data.targets))
                if self._out_of_data:
                    self.step_runner.raise_error()

                if number < warm_up:
                    self.throughput.start()
                else:
                    self.throughput.add(data.tokens, data.padding, result.data_wait_s)

        return self.throughput.take_metrics()

    def _run_loop(self) -> bool:
        """Trains, evaluates and saves until the end; returns whether the run is done."""
        self.stop.begin()
        self.throughput.start()

        while not self._is_done():
            if self.step_runner.next_data is None:
                self._record_steps()  # an earlier step may report why there is no data
            if not self._fetch_next_data():
                break

            self._log_phase()
            self._train_step()
            has_rolled_back = self._record_steps(lag=self._lag)
            if not has_rolled_back:
                self._evaluate_and_save_if_due()

        self._close_loop()
        return self._is_done()

    def _close_loop(self) -> None:
        """Records and saves the last steps; reports why the loop ended early.

        Raises:
            UserError: If the data ended or could not be read.
        """
        self._record_steps()
        self.watchdog.step = self.progress.step
        self._save()
        self.saver.finish()

        if self._out_of_data:
            self.step_runner.raise_error()
        if not self._is_done():
            self.tracker.record_event("stop", self.progress.step, reason=self.stop.name)

    def _is_done(self) -> bool:
        """Whether the run has reached its last step or stops early."""
        return self.guards.early_stopping.is_due or self.progress.step == self.schedule.max_steps

    # --- one step ---------------------------------------------------------------------------

    def _open_stream(self, saved: dict[str, Any] | None) -> None:
        """Opens the stream of this rank, from the beginning or at a saved state."""
        self.task.use_survey(self.processes.on_main(self.task.survey))

        rank = self.processes.rank
        world_size = self.processes.size
        if saved is None:
            self.stream = self.task.train_stream(rank, world_size, None)
        else:
            assert self._last_checkpoint is not None
            # The state is in memory already, so an OSError is about the data, not about its file.
            with name_damaged_file(
                self._last_checkpoint.folder / DATA_STATE_FILE, other_errors=(OSError,)
            ):
                self.stream = self.task.train_stream(rank, world_size, saved)

        check_same_data(self.stream.fingerprint, self.processes)
        self._data_state = self.stream.state
        self.step_runner.open(self.stream)

    def _fetch_next_data(self) -> bool:
        """Fetches the data of the next step if necessary; returns False if the run stops."""
        if not self._stopping and self.step_runner.next_data is None:
            self._apply_stats(self.step_runner.fetch_first(self.progress.step + 1))
        return not self._stopping

    def _apply_stats(self, stats: StepStats) -> None:
        """Acts on the statistics of all ranks: failed saves, requests to stop, the next data."""
        if stats.save_failed:
            self.saver.finish()  # raises the error
        self._out_of_data = self._out_of_data or stats.out_of_data > 0
        self._stopping = self._stopping or self._out_of_data or stats.stop > 0
        self._next_data = stats.next_data

    def _train_step(self) -> None:
        """Runs one step; its statistics are read later, by `_record_steps`."""
        step = self.progress.step + 1
        self._unread.append(self.step_runner.train_step(step))
        self.progress.step = step
        self.garbage.collect_if_due(step)

    def _record_steps(self, lag: int = 0) -> bool:
        """Records all but the last `lag` steps; returns whether the run rolled back.

        Raises:
            TrainingError: If loss or gradient is not finite, and the step may not be skipped.
        """
        while len(self._unread) > lag:
            self._log_saves()
            result = self._unread.popleft()
            stats = self.step_log.record(result, self._next_data, self.progress)
            self._data_state = result.data.state
            self._phase = result.data.phase
            self._apply_stats(stats)

            is_spike = stats.is_finite and self.guards.spikes.detect_spike(stats.loss)
            if is_spike and self._roll_back(stats.loss):
                return True

        return False

    def _log_phase(self) -> None:
        """Logs the first step of each phase of the data, except the first phase."""
        data = self.step_runner.next_data
        assert data is not None
        if self.progress.step and data.phase != self._phase:
            self._record_steps()
            step = self.progress.step + 1
            self._log_exposure(step)
            self.progress.counts.clear()
            self.tracker.record_event("phase", step, phase=data.phase)

    def _log_exposure(self, step: int) -> None:
        """Logs the configured and the realized shares of the data in this phase so far."""
        exposure = self.task.exposure(self.progress.counts, self._phase)
        if exposure:
            self.tracker.record_event("exposure", step, phase=self._phase, **exposure)

    def _start_tracking(self) -> Tracker:
        """Starts the trackers on rank 0; returns the tracker of this rank."""
        step = self.progress.step
        self.processes.on_main(
            lambda: start_trackers(self.accelerator, self.config, self.run_folder.path, step)
        )
        self.run_folder.remember_file(TRACKERS_FILE)
        return Tracker(
            self.run_folder,
            is_main=self.processes.is_main,
            step=step,
            total_steps=self.schedule.max_steps,
            external=self.accelerator.trackers,
        )

    # --- evaluation and checkpoints -----------------------------------------------------------

    def _evaluate_and_save_if_due(self) -> None:
        """Evaluates and saves after the steps for which the schedule asks."""
        step = self.progress.step
        must_evaluate = self.schedule.evaluates(step)
        must_save = self.schedule.saves(step)
        if not must_evaluate and not must_save:
            return

        self._record_steps()
        if must_evaluate:
            self._evaluate()
        if must_save:
            self._save()

        self.garbage.collect()
        self.throughput.start()

    def _evaluate(self) -> None:
        """Evaluates the model, and logs an early stop if it is due."""
        self.watchdog.enter(f"step {self.progress.step}: evaluation")
        self.engine.model.eval()
        metrics = self.task.evaluate(self.engine.model, self.processes)
        check_metric(self.config.keep_best_by, metrics)
        self._last_evaluation = _Evaluation(self.progress.step, metrics)
        self._log_metrics(metrics)

        self.guards.early_stopping.record_evaluation(self.processes.broadcast(metrics))
        if self.guards.early_stopping.is_due:
            self.tracker.record_event(
                "early_stop", self.progress.step, metric=self.config.keep_best_by
            )

    def _finish(self) -> None:
        """Lets the task finish after the last step, and logs its metrics."""
        self.watchdog.enter("finishing")
        self.engine.model.eval()

        exported = self.saver.find_exported_checkpoint() or self._last_checkpoint
        assert exported is not None  # `_run_loop` has saved the last step
        if self.processes.leaders:
            self.run_folder.store.fetch(exported, self.processes, "model")
        context = FinishContext(
            self.processes.rank,
            self.processes.size,
            self.processes.device,
            folder=self.run_folder.path,
            exported=exported.folder,
        )
        self._log_metrics(self.task.finish(self.engine.model, context))

    def _log_metrics(self, metrics: list[Metric]) -> None:
        """Logs an event for each split, in the order in which the splits appear."""
        for split in dict.fromkeys(metric.split for metric in metrics):
            values = {metric.name: metric.value for metric in metrics if metric.split == split}
            self.tracker.record_event("eval", self.progress.step, split=split, **values)

    def _save(self) -> None:
        """Saves a checkpoint, unless this step has one already. All ranks call it."""
        step = self.progress.step
        if self.run_folder.rebuild_with_logs(self.processes):
            self._last_checkpoint = None  # it is gone with the deleted folder
        if self._is_saved():
            return

        self.watchdog.enter(f"step {step}: saving")
        self._log_exposure(step)
        self.saver.save(step, self.state_dict(), self._merge_data_state())
        self._last_checkpoint = Checkpoint(self.run_folder.path / name_folder(step), step)
        self._log_saves()

    def _is_saved(self) -> bool:
        """Whether the current step has a checkpoint.

        A run that began with the checkpoint of another run needs its own to resume, unless it is
        done.
        """
        checkpoint = self._last_checkpoint
        if checkpoint is None or checkpoint.step != self.progress.step:
            return False
        return self._is_done() or checkpoint.folder.parent.resolve() == self.run_folder.path

    def _rehearse_save(self) -> None:
        """Saves and loads the state before the first step of several processes, or in a bucket.

        Faults of the folder, the disk or the network then show in the first minute.
        """
        if self.processes.size == 1 and not self.run_folder.store.uploads:
            return

        self.watchdog.enter("rehearsing a save and a load")
        began = time.perf_counter()
        with self.saver.rehearse(self.state_dict(), self._merge_data_state()) as saved:
            self._load(saved)
        self._last_checkpoint = None  # it is deleted after the rehearsal

        if self.processes.is_main:
            logger.info("rehearsed a save and a load in %.1f s", time.perf_counter() - began)

    def _merge_data_state(self) -> dict[str, Any]:
        """Merges the positions of all ranks in the data. All ranks call it."""
        positions = self.stream.merge(self.processes.gather(self._data_state))
        return {"fingerprint": self.stream.fingerprint, **positions}

    def state_dict(self) -> dict[str, Any]:
        """Returns the content of `trainer_state.json`: all but engine, generators and data."""
        is_evaluated = self._last_evaluation.step == self.progress.step
        metrics = self._last_evaluation.metrics if is_evaluated else []

        return {
            "progress": self.progress.state_dict(),
            "phase": self._phase,
            "world_size": self.processes.size,
            "global_batch": BatchPlan.of(self.config, self.processes.size).rows_per_step,
            "engine": self.engine.name,
            "parameters": self._shapes,
            "base": None if self._base is None else self._base.state_dict(),
            "evaluation": [asdict(metric) for metric in metrics],
            **self.guards.state_dict(),
            "task": self.task.state(),
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Restores progress, guards and task from the state of a checkpoint of `step`.

        Raises:
            ValueError: If the state is of another step.
        """
        self.progress.load_state_dict(state["progress"])
        if self.progress.step != step:
            raise ValueError(f"is of step {self.progress.step}, expected {step}")
        self._phase = int(state["phase"])
        self.guards.load_state_dict(state)
        self.task.restore(state.get("task"))

    def _log_saves(self) -> None:
        """Logs the checkpoints that were committed since the last call."""
        for saved in self.saver.take_finished():
            self.tracker.record_event(
                "save",
                saved.checkpoint.step,
                checkpoint=saved.checkpoint.folder.name,
                seconds=saved.seconds,
                loop_seconds=saved.loop_seconds,
            )

    def _load(self, saved: Checkpoint) -> dict[str, Any]:
        """Restores everything except the data stream, whose state it returns."""
        self.watchdog.enter(f"loading {saved.folder.name}")
        state = saved.read_state()
        with name_damaged_file(saved.folder / TRAINER_STATE_FILE):
            check_same_model(saved, state["parameters"], self._shapes)
            check_same_base(saved, state.get("base"), self._base)

        self.engine.load(saved.folder / "state")
        with name_damaged_file(saved.folder / TRAINER_STATE_FILE):
            self.load_state_dict(state, saved.step)
        self._last_checkpoint = saved

        rank = self.processes.rank
        # For ranks without saved generators: another seed at each step (the factor is a prime) and
        # on each rank.
        new_seed = self.config.seed + saved.step * 10_007 + rank
        restore_rng(saved.folder, rank, state["world_size"], new_seed, self.processes.device)
        return saved.read_data()

    def _roll_back(self, loss: float) -> bool:
        """Rolls back to the last checkpoint, and skips the data seen since.

        Returns:
            False if there is no intact checkpoint yet: the run continues unchanged.
        """
        self.saver.finish()

        step = self.progress.step
        self.watchdog.enter(f"step {step}: looking for a checkpoint to roll back to")
        self.run_folder.store.fetch_newest(self.processes, step)
        saved = find_rollback_point(self.run_folder.path, step, self.processes)
        self.tracker.record_event("spike", step, loss=loss, has_checkpoint=saved is not None)
        if saved is None:
            self.guards.spikes.accept_spike(loss)
            return False

        self.guards.spikes.count_rollback(saved.step)
        self._load(saved)  # the state of the data is ignored: the stream continues
        self.tracker.record_event("rollback", step, to_step=self.progress.step)
        return True
