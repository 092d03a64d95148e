"""Where, when and with what something was computed: recorded with each run and measurement.

Processors and library versions change last digits, and a few of these change what a model learns,
so a comparison of runs must be able to ask whether they were made alike.
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
from typing import TYPE_CHECKING, Any

from bsmeta.core.files import ROOT
from bsmeta.core.versions import versions

if TYPE_CHECKING:
    import torch

_SOURCES = ("bsmeta", "hydra_configs", "deepspeed_configs")
_GIT_S = 30.0


def describe_environment(device: torch.device) -> dict[str, Any]:
    """The record of this process, which computes on a device, as JSON-serializable values.

    Returns:
        `commit` (None outside a repository) and `is_clean` (whether its sources are unchanged; None
        outside), `versions` by library, `processor`, `cores` that this process may use, `threads`
        of torch, `device` (the model of a GPU, or `cpu`), and `machine`: a hash of the host's name,
        which itself may be private.
    """
    import torch  # takes seconds, and the launcher of a study needs none of it

    commit, is_clean = _source_state()
    return {
        "commit": commit,
        "is_clean": is_clean,
        "versions": versions(),
        "processor": _processor(),
        "cores": _usable_cores(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "machine": machine_hash(),
    }


def machine_hash() -> str:
    """A hash of the host's name."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]


def utc_now() -> str:
    """The time, in UTC, to a millisecond: such times sort as texts."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@cache
def _source_state() -> tuple[str | None, bool | None]:
    """The commit of the sources, and whether they are as committed."""
    if not (ROOT / ".git").exists():
        return None, None
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--", *_SOURCES)
    if commit is None or changes is None:
        return None, None
    return commit, not changes


def _git(*arguments: str) -> str | None:
    """The output of git in the folder of the sources; None if it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            capture_output=True, text=True, timeout=_GIT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


@cache
def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
