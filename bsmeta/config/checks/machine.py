"""Checks the machine on which a run starts: its shared memory, and the precisions of its GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from bsmeta.core.errors import HYDRA, Problem
from bsmeta.core.files import SHARED_MEMORY, format_bytes, measure_free_bytes

BF16_CAPABILITY = 8
"""The first major compute capability with instructions for bf16 (Ampere, 2020)."""

MIN_SHARED_BYTES = 16 << 20
"""Minimum number of free bytes of shared memory: a few batches of each loader process."""


def find_machine_problems(workers: int, shared_memory: Path = SHARED_MEMORY) -> Iterator[Problem]:
    """Yields a problem if there is too little shared memory for loader processes.

    Args:
        workers: Number of loader processes of each rank (`data_config.num_workers`).
        shared_memory: The folder in shared memory through which loader processes pass batches;
            containers have 64 MB of it by default, or none.
    """
    if not workers or sys.platform != "linux":
        return

    if not shared_memory.is_dir():
        state = "is missing"
    elif not os.access(shared_memory, os.W_OK):
        state = "cannot be written"
    elif (free := measure_free_bytes(shared_memory)) < MIN_SHARED_BYTES:
        state = f"has {format_bytes(free)} free"
    else:
        return

    yield Problem(
        "data_config.num_workers",
        HYDRA,
        f"{workers}, but {shared_memory} {state}",
        f"at least {format_bytes(MIN_SHARED_BYTES)} there: loader processes pass batches through "
        "it",
        "give the container shared memory (docker run --shm-size=1g), or data_config.num_workers=0",
    )


def find_precision_problems(
    mixed_precision: str, gpu: str, capability: tuple[int, int]
) -> Iterator[Problem]:
    """Yields a problem for bf16 on an NVIDIA GPU that can only emulate it.

    Args:
        mixed_precision: The precision of the run: `no`, `bf16` or `fp16`.
        gpu: The name of the GPU, for the message.
        capability: The major and minor compute capability of the GPU.
    """
    if mixed_precision == "bf16" and capability[0] < BF16_CAPABILITY:
        version = ".".join(map(str, capability))
        yield Problem(
            "mixed_precision",
            HYDRA,
            f'"bf16", but {gpu} (compute capability {version}) can only emulate it',
            f'"fp16" or "no" on GPUs below compute capability {BF16_CAPABILITY}.0',
            "mixed_precision=fp16 (not under FSDP2), or mixed_precision=no",
        )
