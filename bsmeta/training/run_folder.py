"""The folder of one run: its lock, its configuration, its status, and its logs across resumes."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from bsmeta.config.compose import EXIT_PREEMPTED, EXIT_USER_ERROR, to_yaml
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.secrets import redact
from bsmeta.training import checkpoint
from bsmeta.training.checkpoint import CONFIG
from bsmeta.training.process_log import ProcessLog

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
STATUS = "status.json"
MARK = ".bsmeta-run"  # in every folder that a run created; only such folders are ever emptied
_LOCK = ".lock"
_OF_REFUSED_STARTS = {_LOCK, STATUS}


def replace_text(file: Path, text: str) -> None:
    """Writes a file atomically."""
    temporary = file.with_name(f".{file.name}-{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, file)


def write_status(
    out_dir: Path, state: str, step: int, exit_code: int | None, message: str = ""
) -> None:
    """Writes `status.json` atomically; a launch script reads it to decide about requeueing.

    Args:
        state: `running`, `done`, `preempted` or `failed`.
        exit_code: The exit code of the process; None while it runs.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    value = {"state": state, "step": step, "exit_code": exit_code, "message": redact(message)}
    replace_text(out_dir / STATUS, json.dumps(value) + "\n")


def write_refusal(out_dir: Path, message: str) -> None:
    """Records in `status.json` that a run was refused before it began (exit code 2).

    Otherwise the status of an earlier run would be mistaken for that of this one. A finished run, a
    run in progress in the folder, and a folder that no run created are left unchanged.
    """
    _write_of_start(out_dir, lambda: write_status(out_dir, "failed", 0, EXIT_USER_ERROR, message))


def _write_of_start(out_dir: Path, write: Callable[[], None]) -> None:
    try:
        if _foreign(out_dir) or _state(out_dir) == "done":
            return
        out_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(out_dir / _LOCK, timeout=0):
            write()
    except Timeout:
        return
    except OSError as error:  # the message itself is more important
        logger.warning("%s: status.json could not be written: %s", out_dir, error)


def write_early_stop(out_dir: Path, name: str) -> None:
    """Records in `status.json` that a signal ended a run before it had locked its folder.

    What `write_refusal` leaves unchanged is left unchanged here as well.
    """
    _write_of_start(out_dir, lambda: write_stopped_start(out_dir, name))


def write_stopped_start(out_dir: Path, name: str) -> None:
    """Records in `status.json` that a signal ended a run before its first step (exit code 75)."""
    checkpoints = checkpoint.list_checkpoints(out_dir)
    step = checkpoints[-1].step if checkpoints else 0
    message = f"stopped by {name} before the first step of this start"
    write_status(out_dir, "preempted", step, EXIT_PREEMPTED, message)


class RunFolder:
    """The folder of one run; opened by rank 0 only, and locked until the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log: ProcessLog | None = None  # of this process
        self._lock = FileLock(path / _LOCK)

    def open(self, config: Any, *, resume: bool, overwrite: bool) -> None:
        """Locks the folder for this run.

        Raises:
            ConfigurationError: If another run has locked it, if it holds files that belong to no
                run, if it holds an earlier run that this one neither resumes nor may overwrite, or
                if it is not writable.
        """
        try:
            self._take(resume=resume, overwrite=overwrite)
            checkpoint.clean(self.path)
            if not (self.path / CONFIG).exists():
                replace_text(self.path / CONFIG, to_yaml(config))
        except OSError as error:
            raise ConfigurationError(
                f"out_dir: {self.path} cannot be used: {error.strerror or error}; expected a "
                "folder that can be written, or a new name"
            ) from error

    def _take(self, *, resume: bool, overwrite: bool) -> None:
        checkpoints = checkpoint.list_checkpoints(self.path)
        foreign = _foreign(self.path)
        if foreign and not (resume and checkpoints):  # copied checkpoints may be resumed
            raise ConfigurationError(
                f"out_dir: {self.path} holds {_listed(foreign)}, and no {MARK} of an earlier run; "
                "expected a new or empty folder, or that of a run, because overwrite_out_dir=true "
                "deletes all of it. Choose another out_dir, or move these files"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(
                f"out_dir: {self.path} is held by another run that is in progress; choose another "
                "folder for this one"
            ) from None
        if not foreign and not (self.path / MARK).exists():
            (self.path / MARK).write_text(
                "A run of bsmeta made this folder: overwrite_out_dir=true deletes its content.\n"
            )
        if (checkpoints or (self.path / METRICS).exists()) and not resume:
            if not overwrite:
                raise ConfigurationError(
                    f"out_dir: {self.path} holds an earlier run; expected an empty folder. Resume "
                    "it (resume_from_checkpoint_dir=latest), replace it (overwrite_out_dir=true), "
                    "or choose another out_dir"
                )
            self._empty()

    def begin(self, config: Any, step: int) -> None:
        """Prepares the folder for a run that continues after `step`, with this configuration.

        Called after all checks: until then the folder remains as the earlier run left it.
        """
        checkpoint.set_aside_newer(self.path, step)
        self._cut_logs(step)
        replace_text(self.path / CONFIG, to_yaml(config))

    def _cut_logs(self, step: int) -> None:
        """Drops what was logged after `step`, because those steps are repeated."""
        for file in [self.path / METRICS, *self.path.glob("documents-rank*.jsonl")]:
            if file.exists():
                kept = [line for line in file.read_text().splitlines() if _is_before(line, step)]
                replace_text(file, "".join(line + "\n" for line in kept))

    def _empty(self) -> None:
        others = [mark.parent for mark in self.path.rglob(MARK) if mark.parent != self.path]
        if others:
            raise ConfigurationError(
                f"overwrite_out_dir: {self.path} also holds {_listed([*map(str, others)])}, which "
                "belong to other runs; expected one run. Delete or move them, or choose another "
                "out_dir"
            )
        for entry in self.path.iterdir():
            if entry.name in (_LOCK, MARK):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _foreign(out_dir: Path) -> list[str]:
    """Lists the entries of a folder that no run created; empty for a run folder or a missing one.

    Raises:
        OSError: If the folder cannot be read.
    """
    names = {entry.name for entry in out_dir.iterdir()} if out_dir.exists() else set()
    return [] if MARK in names else sorted(names - _OF_REFUSED_STARTS)


def _state(out_dir: Path) -> str | None:
    """The state in `status.json`; None if it is missing or unreadable."""
    try:
        return json.loads((out_dir / STATUS).read_text())["state"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _listed(names: list[str], limit: int = 3) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


class LineLog:
    """A JSON-lines file, flushed after every line, so that a killed process loses no line."""

    def __init__(self, file: Path) -> None:
        self._stream: TextIO = file.open("a")

    def write(self, value: dict[str, Any]) -> None:
        self._stream.write(redact(json.dumps(_valid(value), allow_nan=False)) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def _valid(value: Any) -> Any:
    """The value with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _valid(own) for name, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_valid(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_before(line: str, step: int) -> bool:
    """Whether a logged line is complete and belongs to a step up to `step`."""
    try:
        return int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False  # the last line of a killed process may be truncated
