"""The folder of one run: its lock, its configuration, its status, and its logs across resumes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from bsmeta.config.compose import EXIT_USER_ERROR, to_yaml
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.secrets import redact
from bsmeta.training import checkpoint

METRICS = "metrics.jsonl"


def write_status(
    out_dir: Path, state: str, step: int, exit_code: int | None, message: str = ""
) -> None:
    """Writes `status.json` atomically: what a launch script reads to decide about requeueing.

    Args:
        out_dir: The run folder.
        state: `running`, `done`, `preempted` or `failed`.
        step: The last completed update.
        exit_code: What the process exits with; None while it runs.
        message: Why it failed.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    value = {"state": state, "step": step, "exit_code": exit_code, "message": redact(message)}
    temporary = out_dir / f".status-{os.getpid()}.json"
    temporary.write_text(json.dumps(value) + "\n")
    os.replace(temporary, out_dir / "status.json")


def write_refusal(out_dir: Path, message: str) -> None:
    """Says in `status.json` that a run was refused before it began (exit code 2).

    A status of an earlier run would otherwise stand there and be acted on; that of a run which is
    going on in the folder is left alone.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out_dir / ".lock", timeout=0):
            write_status(out_dir, "failed", 0, EXIT_USER_ERROR, message)
    except Timeout:
        return


class RunFolder:
    """The folder of one run; opened by rank 0 alone, and held until the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock")

    def open(self, config: Any, *, resume: bool, overwrite: bool) -> None:
        """Takes the folder for this run.

        Raises:
            ConfigurationError: If another run holds it, or an earlier run lies in it and this one
                neither resumes nor may overwrite it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(
                f"out_dir: {self.path} is held by another run that is going on; give this one a "
                "folder of its own"
            ) from None
        used = checkpoint.found(self.path) or (self.path / METRICS).exists()
        if used and not resume:
            if not overwrite:
                raise ConfigurationError(
                    f"out_dir: {self.path} holds an earlier run; expected an empty folder. Resume "
                    "it (resume_from_checkpoint_dir=latest), replace it (overwrite_out_dir=true), "
                    "or choose another out_dir"
                )
            self._empty()
        checkpoint.clean(self.path)
        (self.path / "config.yaml").write_text(to_yaml(config))

    def cut_logs(self, step: int) -> None:
        """Drops what was logged after `step`: those updates are made again."""
        for file in [self.path / METRICS, *self.path.glob("documents-rank*.jsonl")]:
            if file.exists():
                kept = [line for line in file.read_text().splitlines() if _is_before(line, step)]
                temporary = file.with_suffix(".tmp")
                temporary.write_text("".join(line + "\n" for line in kept))
                os.replace(temporary, file)

    def _empty(self) -> None:
        for entry in self.path.iterdir():
            if entry.name == ".lock":
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


class LineLog:
    """A JSON-lines file, one flushed line a call, so that a killed process loses no line."""

    def __init__(self, file: Path) -> None:
        self._stream: TextIO = file.open("a")

    def write(self, value: dict[str, Any]) -> None:
        self._stream.write(redact(json.dumps(value)) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def _is_before(line: str, step: int) -> bool:
    """Whether a logged line is whole and belongs to an update up to `step`."""
    try:
        return int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False  # the last line of a killed process may be cut
