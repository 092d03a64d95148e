"""Errors of a device end a run with what its user can do about them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.errors import DeviceError
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.training.device_errors import explain_device_errors
from bsmeta.training.ranks.communication_errors import NcclError
from tests.training.ranks.nccl_messages import DRIVER

SCRIPT = Path(__file__).with_name("failing_device.py")
KEYS = ("trackers=[]", "max_train_steps=3", "num_warmup_steps=0")
Launch = Callable[..., subprocess.CompletedProcess[str]]

FULL_DISK_ERRNOS = DRIVER.rpartition("\n")[0] + "\nCuda failure 2 'out of memory'"


def status(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "status.json").read_text())
    return value


def test_a_gpu_without_memory_ends_the_run_with_advice(launch: Launch, tmp_path: Path) -> None:
    rows = "data_config.per_device_train_batch_size=9"
    ended = launch(
        SCRIPT, *KEYS, rows, f"out_dir={tmp_path}", check=False, FAILURE="memory",
        RANK_OF_FAILURE="0",
    )  # fmt: skip
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert status(tmp_path)["message"] == (
        "the GPU is out of memory (CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
        "total capacity of 79.11 GiB). Expected a step that fits: "
        "data_config.per_device_train_batch_size=3 with gradient_accumulation_steps=3, the same "
        "global batch as 9 with 1; PYTORCH_ALLOC_CONF=expandable_segments:True in the "
        "environment, which wastes less of it; gradient_checkpointing=true; a launch file that "
        "divides more among the processes (docs/scaling.md). estimate=true shows what "
        "takes the memory"
    )


def test_a_failure_of_nccl_is_reported_by_the_failing_rank(launch: Launch, tmp_path: Path) -> None:
    """The other rank only loses its connection, and is not blamed."""
    ended = launch(
        SCRIPT, *KEYS, f"out_dir={tmp_path}", processes=2, check=False, FAILURE="nccl",
        RANK_OF_FAILURE="1",
    )  # fmt: skip
    assert ended.returncode == 1
    message = (
        "NCCL failed on this rank: ncclInvalidUsage (Duplicate GPU detected : rank 1 and rank 0 "
        "both on CUDA device 1b000). The usual cause is two processes on one GPU: compare "
        "CUDA_VISIBLE_DEVICES and the number of processes with the GPUs of the machine. "
        "NCCL_DEBUG=INFO in the environment makes NCCL log what it does"
    )
    assert status(tmp_path)["message"] == f"rank 1: {message}"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"),
        distributed.DistBackendError(FULL_DISK_ERRNOS),
    ],
)
def test_out_of_memory_errors_of_libraries_are_recognized(error: Exception) -> None:
    line = next(line for line in str(error).splitlines() if "memory" in line or "ALLOC" in line)
    with pytest.raises(DeviceError) as caught, explain_device_errors(CausalLMConfig()):
        raise error
    assert str(caught.value).startswith(f"the GPU is out of memory ({line}). Expected")


def test_the_advice_names_only_keys_of_the_task() -> None:
    """This task divides the rows of a whole step, and has no gradient_checkpointing."""
    with pytest.raises(DeviceError) as caught, explain_device_errors(DisambiguationConfig()):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    assert "gradient_accumulation_steps=2, which halves the rows" in str(caught.value)
    assert "gradient_checkpointing" not in str(caught.value)


def test_other_errors_are_unchanged() -> None:
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError) as caught, explain_device_errors(CausalLMConfig()):
        raise error
    assert caught.value is error
    assert not isinstance(caught.value, NcclError)
