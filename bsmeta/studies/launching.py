"""Starts the runs of a study through the launch scripts, one after the other.

A study can be killed at any moment: the same command finds the finished runs done, resumes the one
that was interrupted from its newest checkpoint, and starts the others. A run that was left without
its study is waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout
from rich import box
from rich.console import Console
from rich.table import Table

from bsmeta.config.command_line import pasteable
from bsmeta.config.compose import EXIT_FAILURE, EXIT_PREEMPTED
from bsmeta.core.resources import ROOT
from bsmeta.studies.config import StudyConfig
from bsmeta.studies.measurement import find_measurement
from bsmeta.studies.runs import DONE, WAITS, Progress, Run, overrides_of, progress_of

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SECONDS_BETWEEN_LOOKS = 2.0


class Launcher:
    """Makes runs in sequence; a signal is forwarded to the run, and ends the study."""

    def __init__(self, study: StudyConfig) -> None:
        self._study = study
        self._script = ROOT / "experiments" / study.launch
        self._own = {"BSMETA_RESUME": "", "BSMETA_CONFIG": study.config}
        self._running: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def catch_signals(self) -> None:
        """From now on a signal stops the run in progress, which saves, and then the study."""
        for number in SIGNALS:
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        if self._running is not None:
            self._running.send_signal(signal.SIGTERM)

    def command(self, run: Run) -> list[str] | None:
        """The command that starts or resumes a run; None if it waits for others."""
        overrides = overrides_of(self._study, run)
        if overrides is None:
            return None
        placed = [f"out_dir='{run.folder.resolve()}'", "resume_from_checkpoint_dir=latest"]
        return [str(self._script), *overrides, *placed]

    def line(self, run: Run) -> str | None:
        """The command and its environment, as a line for a shell; None if it waits for others."""
        command = self.command(run)
        return None if command is None else pasteable(command, **self._own)

    def make_all(self, runs: Sequence[Run], measure: Sequence[str] = ()) -> int:
        """Makes the runs that are not done yet; returns the exit code of the study.

        Args:
            runs: The runs.
            measure: The command that measures what is done, called after each run: in a process of
                its own, which leaves no memory of a device in use. Empty: nothing is measured.
        """
        failed = False
        for number, run in enumerate(runs, start=1):
            place = f"[{number}/{len(runs)}] {run.name}:"
            self._wait_for_another(run, place)
            if progress_of(self._study, run).state == DONE:
                print(place, "done before", flush=True)
                failed |= not self._measured(run, measure)
                continue
            command = self.command(run)
            if command is None:
                print(place, "waits for runs that have failed", flush=True)
                failed = True
                continue
            print(place, "running …", flush=True)
            started = time.monotonic()
            code = self._execute(command, run)
            if code and is_in_use(run.folder):  # an earlier call's run, then just starting, is it
                self._wait_for_another(run, place)
                code = 0 if progress_of(self._study, run).state == DONE else code
            now = progress_of(self._study, run)
            took = f"{time.monotonic() - started:,.0f} s"
            print(place, f"{now.state} (step {now.step}, {took}, exit code {code})", flush=True)
            if self._stopped or code == EXIT_PREEMPTED:
                return EXIT_PREEMPTED
            failed |= code != 0 or not self._measured(run, measure)
            if self._stopped:
                return EXIT_PREEMPTED
        return EXIT_FAILURE if failed else 0

    def _measured(self, run: Run, command: Sequence[str]) -> bool:
        """Measures a run that is done, unless it has been measured or nothing is to be."""
        if not command or find_measurement(self._study, run.arm, run.seed) is not None:
            return True
        return self._execute(command, run) == 0

    def _execute(self, command: Sequence[str], run: Run) -> int:
        """Executes a command, with its output logged next to the run's folder; returns its code."""
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        with run.folder.with_name(f"{run.folder.name}.log").open("ab") as log:
            self._running = subprocess.Popen(
                command, env={**os.environ, **self._own}, stdout=log, stderr=subprocess.STDOUT
            )
            if self._stopped:  # by a signal that arrived just before
                self._running.send_signal(signal.SIGTERM)
            return self._running.wait()

    def _wait_for_another(self, run: Run, place: str) -> None:
        """Returns when no process trains in the folder of the run."""
        is_first = True
        while is_in_use(run.folder) and not self._stopped:
            if is_first:
                print(place, "still running, started by an earlier call; waiting …", flush=True)
            is_first = False
            time.sleep(SECONDS_BETWEEN_LOOKS)


def is_in_use(folder: Path) -> bool:
    """Whether a process has locked a run folder."""
    if not (folder / ".lock").exists():
        return False
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True


def show_progress(study: StudyConfig, runs: Sequence[Run]) -> None:
    """Prints a table of the runs."""
    table = Table(title=study.title, box=box.SIMPLE, title_justify="left")
    for name in ("arm", "seed", "state", "step", "text tokens", "all tokens", "loss"):
        table.add_column(name, justify="left" if name in ("arm", "state") else "right")
    for run in runs:
        now = progress_of(study, run)
        state = now.state
        if state != DONE and overrides_of(study, run) is None:
            state = WAITS
        table.add_row(run.arm, str(run.seed), state, *_cells(now))
    Console(markup=False).print(table)


def _cells(now: Progress) -> list[str]:
    loss = "–" if now.loss is None else f"{now.loss:.4f}"
    return [f"{now.step:,}", f"{now.targets:,}", f"{now.tokens:,}", loss]
