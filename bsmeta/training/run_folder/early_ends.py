"""Records starts of a run that end before their first step: refused, or stopped by a signal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.core.exit_codes import EXIT_PREEMPTED, EXIT_USER_ERROR
from bsmeta.core.rank import read_rank
from bsmeta.training.checkpoints import checkpoint
from bsmeta.training.run_folder.folder import list_foreign_files
from bsmeta.training.run_folder.status import LOCK, find_status, write_status

logger = logging.getLogger(__name__)


def write_refusal(out_dir: Path, message: str) -> None:
    """Records in `status.json` that a run was refused before it began (exit code 2).

    Otherwise the status of an earlier run would be mistaken for the status of this one. The status
    of a finished run or of a run in progress, and a folder that no run created, stay unchanged.
    """
    _write_if_unused(out_dir, lambda: write_status(out_dir, "failed", 0, EXIT_USER_ERROR, message))


@contextmanager
def record_refusal(out_dir: Path | None) -> Iterator[None]:
    """Context that records a user error in the status of the run, and raises it again.

    Args:
        out_dir: The run folder; None for a start that writes no status.
    """
    try:
        yield
    except UserError as error:
        keys = error.keys if isinstance(error, ConfigurationError) else ()
        if read_rank() == 0 and out_dir is not None and "out_dir" not in keys:
            write_refusal(out_dir, str(error))
        raise


def record_stopped_start(out_dir: Path, name: str) -> int:
    """Records that a signal ended a run before it had locked its folder; returns the exit code.

    Like `write_refusal`, it leaves the folders of finished runs, of runs in progress, and of the
    user unchanged.
    """
    if read_rank() == 0:
        _write_if_unused(out_dir, lambda: write_stopped_start(out_dir, name))
    return EXIT_PREEMPTED


def write_stopped_start(out_dir: Path, name: str) -> None:
    """Records in `status.json` that a signal ended a run before its first step (exit code 75)."""
    checkpoints = checkpoint.list_checkpoints(out_dir)
    step = checkpoints[-1].step if checkpoints else 0
    message = f"stopped by {name} before the first step of this start"
    write_status(out_dir, "preempted", step, EXIT_PREEMPTED, message)


def _write_if_unused(out_dir: Path, write: Callable[[], object]) -> None:
    """Calls `write` under the lock of the folder; does nothing if the folder is in use.

    It is in use if a run holds its lock or has finished there, or if no run created it.
    """
    try:
        if list_foreign_files(out_dir) or _is_done(out_dir):
            return
        out_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(out_dir / LOCK, timeout=0):
            write()
    except Timeout:
        return
    except OSError as error:  # the message itself is more important
        logger.warning("%s: status.json could not be written: %s", out_dir, error)


def _is_done(out_dir: Path) -> bool:
    """Whether the run in a folder has finished."""
    status = find_status(out_dir) or {}
    return status.get("state") == "done"
