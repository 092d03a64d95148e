"""Describes the environment of a computation, for the record of each run and measurement.

The processor and the versions of libraries affect the last digits of results, and thereby sometimes
the trained model, so a comparison of runs must be able to check that their environments agree.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bsmeta.core.files import ROOT
from bsmeta.core.versions import read_versions

if TYPE_CHECKING:
    import torch

_SOURCE_FOLDERS = ("bsmeta", "hydra_configs", "deepspeed_configs")
_GIT_TIMEOUT_S = 30.0


class _SourceState(NamedTuple):
    """The commit of the sources, and whether they are unchanged; both None if unknown."""

    commit: str | None
    is_clean: bool | None


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Describes the environment of this process, as JSON-serializable values.

    Args:
        device: The device on which this process computes.

    Returns:
        `commit` and `is_clean` (whether the sources are unchanged; both None outside a repository),
        `versions` by library, `processor`, `cores` (the number that this process may use),
        `threads` of torch, `device` (the model of a GPU, or `cpu`), and `machine` (a hash of the
        host's name, because the name may be private).
    """
    import torch  # takes seconds, and the launcher of a study does not need it

    sources = _read_source_state()
    return {
        "commit": sources.commit,
        "is_clean": sources.is_clean,
        "versions": read_versions(),
        "processor": _describe_processor(),
        "cores": count_usable_cores(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "machine": hash_machine_name(),
    }


def hash_machine_name() -> str:
    """Returns a hash of the host's name, in 12 hexadecimal digits."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]


def format_utc_now() -> str:
    """Formats the current time in ISO 8601, in UTC with milliseconds; such texts sort by time."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@cache
def _read_source_state() -> _SourceState:
    """Reads the state of the sources from git."""
    if not (ROOT / ".git").exists():
        return _SourceState(None, None)

    commit = _run_git("rev-parse", "HEAD")
    changes = _run_git("status", "--porcelain", "--", *_SOURCE_FOLDERS)
    if commit is None or changes is None:
        return _SourceState(None, None)
    return _SourceState(commit, is_clean=not changes)


def _run_git(*arguments: str) -> str | None:
    """Runs git in the folder of the sources; returns its output, or None if it fails."""
    try:
        process = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def count_usable_cores() -> int | None:
    """Returns the number of cores that this process may use; None if unknown."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


@cache
def _describe_processor() -> str:
    """Returns the model of the processor; on systems other than Linux, its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
