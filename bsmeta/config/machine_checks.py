"""Checks of the machine that a run starts on: what it needs beside its configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import HYDRA, Problem
from bsmeta.core.files import SHARED_MEMORY, format_bytes, free_bytes

LEAST_SHARED = 16 << 20  # bytes: a few batches of each loader process


def machine_problems(config: RunConfig, shared_memory: Path = SHARED_MEMORY) -> Iterator[Problem]:
    """Yields what this machine lacks; under `check_only`, the run may start on another one.

    Args:
        shared_memory: Through which loader processes pass batches. Containers have 64 MB of it by
            default, or none.
    """
    data: Any = getattr(config, "data_config", None)
    workers = getattr(data, "num_workers", 0)
    if config.check_only or not workers or sys.platform != "linux":
        return

    if not shared_memory.is_dir():
        state = "is missing"
    elif not os.access(shared_memory, os.W_OK):
        state = "cannot be written"
    elif (free := free_bytes(shared_memory)) < LEAST_SHARED:
        state = f"has {format_bytes(free)} free"
    else:
        return

    yield Problem(
        "data_config.num_workers",
        HYDRA,
        f"{workers}, but {shared_memory} {state}",
        f"at least {format_bytes(LEAST_SHARED)} there: loader processes pass batches through it",
        "give the container shared memory (docker run --shm-size=1g), or data_config.num_workers=0",
    )
