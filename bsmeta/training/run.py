"""A run, from opening its folder to its exit code; `train.py` calls it after all checks."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bsmeta.config.run_location import is_in_bucket, locate_run_folder
from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import Schedule
from bsmeta.core.environment import describe_environment, format_utc_now
from bsmeta.core.errors import TrainingError, UserError
from bsmeta.core.exit_codes import EXIT_FAILURE, EXIT_PREEMPTED, EXIT_USER_ERROR
from bsmeta.core.signals import StopRequest
from bsmeta.training.checkpoints.disk_space import explain_full_disk
from bsmeta.training.device_errors import explain_device_errors
from bsmeta.training.hub_upload import push_model
from bsmeta.training.ranks.distributed import Accelerator, create_accelerator
from bsmeta.training.ranks.processes import Processes, close_device_groups
from bsmeta.training.ranks.shared_folder import check_is_shared, find_leaders
from bsmeta.training.resuming import find_resume_point, may_resume
from bsmeta.training.run_folder.choice import open_store
from bsmeta.training.run_folder.early_ends import (
    record_refusal,
    record_stopped_start,
    write_stopped_start,
)
from bsmeta.training.run_folder.events import ENVIRONMENT
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.run_folder.logs import ProcessLog
from bsmeta.training.run_folder.restarts import list_machines
from bsmeta.training.run_folder.store import RunStore
from bsmeta.training.task import Task
from bsmeta.training.trainer import Trainer
from bsmeta.training.watchdog import Watchdog

logger = logging.getLogger(__name__)


def run_training(
    config: RunConfig,
    task: Task,
    deepspeed_config: dict[str, Any] | None,
    stop: StopRequest,
    reshards: bool | None = None,
) -> int:
    """Trains, writes `status.json`, and returns the exit code (0 done, 75 preempted).

    Args:
        deepspeed_config: Without any `"auto"`, or None without DeepSpeed.
        reshards: Under FSDP2: whether weights are freed after the forward pass; None without it.

    Raises:
        UserError: If the folder, the data or the launch does not match the configuration.
        TrainingError: If the run diverged, or one of its processes died.
    """
    out_dir = locate_run_folder(config)
    with record_refusal(out_dir):
        store = open_store(config)
        accelerator = create_accelerator(config, deepspeed_config, reshards)
    processes = Processes.of_group(accelerator.device)

    with (
        _close_store(store),
        Watchdog(processes, config.distributed_timeout_s, stop) as watchdog,
    ):
        with record_refusal(out_dir):
            schedule = Schedule.of(config, task.steps_per_epoch(processes.size))
        stop.leave = lambda name: _record_early_end(out_dir, watchdog, name)

        folder = RunFolder(store.folder, store)
        resume = may_resume(config.resume_from_checkpoint_dir, folder.path)
        processes.on_main(
            lambda: folder.open(config, resume=resume, overwrite=config.overwrite_out_dir)
        )
        watchdog.run_folder = folder

        with (
            ProcessLog(processes.rank, processes.size) as folder.process_log,
            _report_failure(folder, watchdog),
            explain_device_errors(config),
        ):
            code = _train_and_export(config, schedule, task, accelerator, folder, watchdog, stop)

    close_device_groups()  # no longer watched: a rank that hangs must not change the status
    if config.push_to_hub and code == 0 and processes.is_main:
        push_model(folder.path, config.push_to_hub, watchdog.step, private=config.hub_private)
    return code


@contextmanager
def _close_store(store: RunStore) -> Iterator[None]:
    """Context that closes the store at the end of a run; after a failure, its error is only logged.

    The leaders of the run folders have opened it; on other ranks, closing does nothing.
    """
    try:
        yield
    except BaseException:
        try:
            store.close()
        except (UserError, TrainingError) as error:
            logger.warning("%s", error)
        raise
    store.close()


def _train_and_export(
    config: RunConfig,
    schedule: Schedule,
    task: Task,
    accelerator: Accelerator,
    folder: RunFolder,
    watchdog: Watchdog,
    stop: StopRequest,
) -> int:
    """Resumes or begins the run, trains, exports the model, and returns the exit code."""
    processes = Processes.of_group(accelerator.device)
    watchdog.enter("checking which processes share out_dir")
    processes = _join_run_folder(config, folder, processes)

    watchdog.enter("looking for a checkpoint to resume from")
    if config.resume_from_checkpoint_dir == "latest":
        folder.store.fetch_newest(processes)
    resume = find_resume_point(config, schedule.max_steps, accelerator, processes, folder.path)
    watchdog.step = resume.saved.step if resume else 0
    if processes.is_main:
        folder.write_status("running", watchdog.step, None)

    with _EnvironmentLog(folder, processes, watchdog.step) as environment_log:
        watchdog.enter("building the model")
        trainer = Trainer(config, schedule, task, accelerator, folder, watchdog, stop)
        is_done = trainer.train(resume)
        if is_done:
            watchdog.enter("exporting the model")
            folder.rebuild_with_logs(processes)
            trainer.saver.export(folder.path / "model")
        environment_log.last_step = trainer.progress.step
    if processes.leaders:  # before rank 0 releases its claim of the bucket
        processes.on_leaders(folder.store.publish_files)

    code = 0 if is_done else EXIT_PREEMPTED
    if processes.is_main:
        if not is_done:
            print(f"to continue: {describe_resuming_command(sys.argv, processes.size)}")
        folder.write_status("done" if is_done else "preempted", trainer.progress.step, code)
    return code


def _join_run_folder(config: RunConfig, folder: RunFolder, processes: Processes) -> Processes:
    """Determines which ranks share the run folder, and opens the folders of the other ranks.

    All ranks call it. Only a run in a bucket may have several folders.

    Returns:
        The processes, with the leaders of their run folders.

    Raises:
        ConfigurationError: If a folder cannot be used, or has to be shared and is not.
    """
    if not is_in_bucket(config.out_dir):
        check_is_shared(folder.path, processes)
        return processes

    processes = replace(processes, leaders=find_leaders(folder.path, processes))
    is_resumed = may_resume(config.resume_from_checkpoint_dir, folder.path)
    folder.join(processes, resume=processes.broadcast(is_resumed))
    return processes


class _EnvironmentLog:
    """Logs the environment of a start in `ENVIRONMENT`, and its end unless it fails (rank 0).

    All ranks create it together.

    Attributes:
        last_step: The step at which the start ends.
    """

    def __init__(self, folder: RunFolder, processes: Processes, first_step: int) -> None:
        self.last_step = first_step
        self._log = folder.open_log(ENVIRONMENT) if processes.is_main else None
        self._processes = processes
        self._machines = list_machines(processes)

    def __enter__(self) -> _EnvironmentLog:
        if self._log is not None:
            self._log.write(
                {
                    "event": "start",
                    "step": self.last_step,
                    "processes": self._processes.size,
                    "machines": self._machines,
                    "started": format_utc_now(),
                    **describe_environment(self._processes.device),
                }
            )
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._log is not None and error is None:
            self._log.write({"event": "end", "step": self.last_step, "ended": format_utc_now()})


@contextmanager
def _report_failure(folder: RunFolder, watchdog: Watchdog) -> Iterator[None]:
    """Writes the status of a run that fails, and raises the error that explains the failure."""
    try:
        yield
    except Exception as error:
        explanation = watchdog.explain(explain_full_disk(error, folder.path))
        if watchdog.is_reporter():
            _write_failure(folder, watchdog.step, explanation)
        if explanation is error:
            raise  # `raise error from error` would make the error its own cause
        raise explanation from error


def describe_resuming_command(arguments: Sequence[str], processes: int) -> str:
    """Returns the command that continues this run.

    Args:
        arguments: The command line of this process.
        processes: Number of processes of the run: several are started by a launcher, whose command
            line is unknown here.
    """
    resuming = "resume_from_checkpoint_dir=latest"
    if processes > 1:
        return f"the same launch, with {resuming} (and without overwrite_out_dir)"

    is_command = arguments[0].startswith("bsmeta ")
    program = arguments[0].split() if is_command else ["python", arguments[0]]
    replaced = ("resume_from_checkpoint_dir=", "overwrite_out_dir=")
    unchanged = [argument for argument in arguments[1:] if not argument.startswith(replaced)]
    return shlex.join([*program, *unchanged, resuming])


def _record_early_end(out_dir: Path, watchdog: Watchdog, name: str) -> int:
    """Writes the status when a signal ends the start; returns the exit code.

    The signal may mean that another rank has failed: when a rank is killed, by the kernel for lack
    of memory or by a user, the launcher ends the others with the same signal as a preemption.
    """
    failure = watchdog.wait_until_all_leave()
    if watchdog.run_folder is None:  # the folder is not locked, and may be another run's
        if failure is None:
            record_stopped_start(out_dir, name)
    elif watchdog.is_reporter():
        if failure is None:
            write_stopped_start(watchdog.run_folder.path, name)
        else:
            _write_failure(watchdog.run_folder, watchdog.step, failure)
    return EXIT_PREEMPTED if failure is None else _choose_exit_code(failure)


def _choose_exit_code(error: Exception) -> int:
    return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_FAILURE


def _write_failure(folder: RunFolder, step: int, error: Exception) -> None:
    try:
        folder.write_status("failed", step, _choose_exit_code(error), str(error))
    except (OSError, TrainingError) as unwritten:
        logger.error("%s: status.json could not be written: %s", folder.path, unwritten)
