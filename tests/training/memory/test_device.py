"""The memory that a run needs, beside the memory of the device."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.launch import Launch
from bsmeta.training.memory.device import (
    DeviceMemory,
    format_size,
    list_memory_notes,
    list_memory_rows,
)
from tests.conftest import run_warm
from tests.warm import REPOSITORY

GIB = float(2**30)


@dataclass(frozen=True)
class Need:
    """The bytes that a run needs."""

    held: float
    needed: float | None


DEVICE = DeviceMemory(80 * GIB, "NVIDIA H100")


def test_need_and_device_are_shown() -> None:
    assert list_memory_rows(Need(2 * GIB, 9 * GIB), DEVICE) == [
        (
            "memory",
            "9.00 GiB needed of 80.00 GiB on each device (NVIDIA H100), without buffers and "
            "fragmentation",
        )
    ]
    assert list_memory_rows(Need(2 * GIB, None), DEVICE) == []


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_batch_that_cannot_fit_is_noted(recomputes: bool) -> None:
    config = CausalLMConfig(gradient_checkpointing=recomputes)
    assert [*list_memory_notes(Need(2 * GIB, 80 * GIB), DEVICE, config)] == []
    (note,) = list_memory_notes(Need(2 * GIB, 81 * GIB), DEVICE, config)
    remedy = "" if recomputes else "gradient_checkpointing=true, "
    assert note == (
        "the run needs 81.00 GiB on each device, of which weights, gradients and optimizer take "
        "2.00 GiB; NVIDIA H100 has 80.00 GiB, so it cannot fit; expected a smaller micro-batch "
        f"(per_device_train_batch_size), {remedy}a launch that divides the state (ZeRO, FSDP2), "
        "or a smaller model"
    )


def test_processes_share_the_memory_of_their_machine() -> None:
    launch = Launch(source="the environment", num_processes=8, local_processes=4, use_cpu=True)
    memory = DeviceMemory.of_launch(launch)
    assert memory == DeviceMemory(
        psutil.virtual_memory().total / 4, "main memory, shared by 4 processes"
    )


def test_an_estimate_compares_with_the_machine(tmp_path: Path) -> None:
    script = str(REPOSITORY / "bsmeta" / "train.py")
    done = run_warm(
        [
            sys.executable, script, "--config-name", "demo", "estimate=true", "estimate_steps=0",
            "data_config.per_device_train_batch_size=1000000", f"out_dir={tmp_path}/run",
        ],
        COLUMNS="300",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    assert (
        "so it cannot fit; expected a smaller micro-batch (per_device_train_batch_size)" in output
    )


def test_sizes_are_formatted_for_people() -> None:
    assert [format_size(size) for size in (5, 2048, 3 * 2**20, 5 * 2**30)] == [
        "5 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.00 GiB",
    ]
