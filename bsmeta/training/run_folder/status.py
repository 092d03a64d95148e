"""The status of a run: `status.json`, for launch scripts and other readers.

A killed process leaves `running` in the file. A run holds the lock of its folder as long as it
exists, so a reader notices the kill.
"""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

from bsmeta.core.files import is_full_disk_error, write_text
from bsmeta.core.parsing import parse_json
from bsmeta.core.secrets import redact

STATUS = "status.json"
LOCK = ".lock"
"""File in the run folder that the process of rank 0 locks."""


def write_status(
    out_dir: Path, state: str, step: int, exit_code: int | None, message: str = ""
) -> str:
    """Writes `status.json` atomically; a launch script reads it to decide about requeueing.

    Args:
        state: `running`, `done`, `preempted` or `failed`.

    Returns:
        The content of the file.
    """
    status = {"state": state, "step": step, "exit_code": exit_code, "message": redact(message)}
    text = json.dumps(status) + "\n"

    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        write_text(out_dir / STATUS, text)
    except OSError as error:
        if not is_full_disk_error(error) or not _overwrite_status(out_dir / STATUS, text):
            raise
    return text


def _overwrite_status(file: Path, text: str) -> bool:
    """Overwrites a status file in place, which needs no space on a full disk.

    The message is cut until the text fits into the blocks that the file has.

    Returns:
        Whether the content fits.
    """
    allocated_bytes = file.stat().st_blocks * 512 if file.exists() else 0
    status = json.loads(text)
    while len(text.encode()) > allocated_bytes and status["message"]:
        half_length = len(status["message"]) // 2
        status["message"] = status["message"][:half_length]
        text = json.dumps(status) + "\n"
    if len(text.encode()) > allocated_bytes:
        return False

    with open(file, "r+b") as stream:
        stream.write(text.encode())
        stream.truncate()
    return True


def read_status(out_dir: Path, is_held: bool | None = None) -> dict[str, Any]:
    """Reads `status.json`; the state is `running` only while a process holds the folder's lock.

    The state of a killed process is `failed`, without an exit code.

    Args:
        is_held: Whether a process holds the run, if the folder is a copy of it.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If it is damaged.
    """
    status = parse_json((out_dir / STATUS).read_text(encoding="utf-8"))
    if not isinstance(status, dict):
        raise ValueError("expected a JSON object")

    if is_held is None:
        is_held = _is_locked(out_dir)
    if status.get("state") == "running" and not is_held:
        status["state"] = "failed"
        status["message"] = (
            "the process ended without writing its status: it was killed, or its machine failed"
        )
    return status


def find_status(out_dir: Path) -> dict[str, Any] | None:
    """Returns the result of `read_status`; None without a file, or if it is damaged."""
    try:
        return read_status(out_dir)
    except (OSError, ValueError):
        return None


def _is_locked(out_dir: Path) -> bool:
    """Whether a process holds the lock of a run folder; True if this cannot be determined."""
    try:
        with open(out_dir / LOCK, "rb") as file:
            # Shared, so that a reader does not mistake another reader for the run.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is locked, or the file system has no locks
        return True
    return False
