"""Trains the models of a build, each in a process of its own, with one progress bar."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bsmeta.api.configuration import list_override_arguments
from bsmeta.core.errors import UserError
from bsmeta.core.exit_codes import EXIT_USER_ERROR
from bsmeta.core.progress import show_progress_bar
from bsmeta.core.signals import kill_with_parent

_POLL_INTERVAL_S = 0.3
_STEP = re.compile(r"^step (\d+)/([1-9]\d*) ", re.MULTILINE)
_STEP_SHARE = 0.8  # of a run, for the progress bar; the rest is its evaluation
_LOG_TAIL_CHARS = 4000  # shown if a run fails
_STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class TrainingJob:
    """A run of `bsmeta train`.

    Attributes:
        name: Shown beside the progress bar.
        config_name: The configuration in `hydra_configs/`.
        overrides: Keys of the configuration to change.
        log: The file of the run's output.
    """

    name: str
    config_name: str
    log: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)


def train_jobs(title: str, jobs: Sequence[TrainingJob]) -> None:
    """Runs all jobs at the same time, and shares the processors among them.

    Args:
        title: The name of the whole, shown before the progress bar.

    Raises:
        UserError: If a run was refused.
        RuntimeError: If a run failed.
    """
    threads = max((os.cpu_count() or 1) // len(jobs), 1)
    with ExitStack() as stack:
        processes = [_start(job, threads, stack) for job in jobs]
        show = stack.enter_context(show_progress_bar(title, len(jobs)))
        is_running = True
        while is_running:
            time.sleep(_POLL_INTERVAL_S)
            for job, process in zip(jobs, processes, strict=True):
                if process.poll():
                    raise _make_error(job, process.returncode)

            is_running = any(process.returncode is None for process in processes)
            done = 0.0
            notes = []
            for job, process in zip(jobs, processes, strict=True):
                share, state = (1.0, "done") if process.returncode == 0 else _read_state(job.log)
                done += share
                notes.append(f"{job.name}: {state}")
            show(done, "; ".join(notes))


def _start(job: TrainingJob, threads: int, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Starts a run, which ends with this process, and at the latest when `stack` is closed."""
    arguments = ["--config-name", job.config_name, *list_override_arguments(job.overrides)]
    with job.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bsmeta.train", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C reaches it through this process
            preexec_fn=partial(kill_with_parent, os.getpid()),  # noqa: PLW1509 (takes no lock)
        )
    stack.callback(_stop, process)
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a run unless it has ended."""
    if process.poll() is None:
        process.kill()  # its folder is deleted, so it has nothing to save
        process.wait(_STOP_TIMEOUT_S)


def _read_state(log: Path) -> tuple[float, str]:
    """Returns the completed share of a run, and its state in words."""
    steps = _STEP.findall(log.read_text(encoding="utf-8", errors="replace"))
    if not steps:
        return 0.0, "preparing"

    step, num_steps = map(int, steps[-1])
    state = f"step {step}/{num_steps}" if step < num_steps else "evaluating"
    return _STEP_SHARE * step / num_steps, state


def _make_error(job: TrainingJob, code: int) -> Exception:
    """Returns the error of a run that ended with another exit code than 0."""
    output = job.log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_CHARS:].strip()
    if code == EXIT_USER_ERROR:
        return UserError(f"the training of the {job.name} was refused:\n{output}")
    return RuntimeError(f"the training of the {job.name} failed ({code}):\n{output}")
