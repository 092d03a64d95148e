"""What only a device decides: items R1 to R9 of the day on a GPU, against what the code relies on.

Speeds are not compared: `experiments/benchmarks/gpu_day.py` measures them.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import REPOSITORY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

GPU_DAY = REPOSITORY / "experiments" / "benchmarks" / "gpu_day.py"
ROUNDING = 0.05
"""Difference of losses (about 10) after 20 steps in bf16 whose sums were added in another order."""


def values_of(item: str, out: Path) -> dict[str, Any]:
    """Runs an item of the plan."""
    command = [sys.executable, str(GPU_DAY), f"only={item}", f"out={out}", "minutes=60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [result] = map(json.loads, (out / "results.jsonl").read_text().splitlines())
    assert "error" not in result, f"{result['error']}\n{result['output_tail']}"
    return dict(result["values"])


def test_r1_attention(tmp_path: Path) -> None:
    values = values_of("R1", tmp_path)
    assert values["kernel"]["mask"] in ("flash", "efficient", "cudnn")
    assert values["kernel"]["causal"] in ("flash", "efficient", "cudnn")
    for name in ("mask", "causal"):
        assert values["deterministic"][name]["differ"] == 0
    assert values["varlen"]["largest_difference"] < ROUNDING


def test_r2_kernels(tmp_path: Path) -> None:
    values = values_of("R2", tmp_path)
    assert values["skipped_step"] == {"weights_are_equal": True, "steps": 1}
    assert values["activation"]["largest_difference"] < 1e-5


def test_r3_the_host_waits_for_the_device_in_the_first_step_only(tmp_path: Path) -> None:
    assert values_of("R3", tmp_path)["growing"] == {}


def test_r4_a_resumed_run(tmp_path: Path) -> None:
    again, resumed = values_of("R4", tmp_path)["runs"]
    assert again["steps"] == 20
    assert resumed["steps"] >= 10
    assert max(again["largest_difference"], resumed["largest_difference"]) < ROUNDING


def test_r4_a_resumed_run_with_deterministic_algorithms(tmp_path: Path) -> None:
    again, resumed = values_of("R4-deterministic", tmp_path)["runs"]
    assert again["first_difference"] is None
    assert resumed["steps"] >= 10
    assert resumed["first_difference"] is None


@pytest.mark.parametrize("item", ["R5-4-rows", "R5-8-rows"])
def test_r5_the_estimate_of_memory(item: str, tmp_path: Path) -> None:
    values = values_of(item, tmp_path)
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    counted = values["counted_gib"]
    if values["out_of_memory"]:
        assert counted > 0.9 * memory
    else:
        assert 0.85 * counted < values["measured_gib"] < counted + 2


@pytest.mark.parametrize("item", ["R6-ddp", "R6-zero2", "R6-zero3", "R6-fsdp2"])
def test_r6_the_launch_files_with_one_process(item: str, tmp_path: Path) -> None:
    values = values_of(item, tmp_path)
    assert values["step"] == 6
    assert math.isfinite(values["loss"])


def test_r7_layers_are_compiled_once(tmp_path: Path) -> None:
    values = values_of("R7", tmp_path)
    assert values["recompilations"] == 0
    assert math.isfinite(values["loss"])


def test_r8_flex_attention_trains_as_sdpa_does(tmp_path: Path) -> None:
    [flex] = values_of("R8", tmp_path)["runs"]
    assert flex["steps"] == 12
    assert flex["largest_difference"] < ROUNDING


def test_r9_a_run_that_is_ended_by_signals(tmp_path: Path) -> None:
    assert values_of("R9", tmp_path) == {
        "exit_codes": [75, -9, 0],
        "last_step": 600,
        "distinct_steps": 600,
    }
