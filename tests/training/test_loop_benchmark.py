"""The benchmark of the loop: every loop that it compares, under both engines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.conftest import REPOSITORY

BENCHMARK = REPOSITORY / "experiments/benchmarks/loop.py"
Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_each_loop_is_measured(launch: Launch) -> None:
    small = (
        "data_config.per_device_train_batch_size=1",
        "data_config.metadata_config.max_seq_len=64",
    )
    done = launch(BENCHMARK, "preset=cpu-tiny", "rounds=1", "steps=2", *small)
    result = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert (result["preset"], result["rounds"], result["steps"]) == ("cpu-tiny", 1, 2)
    for engine in ("torch", "zero2"):
        one = result[engine]
        assert list(one) == ["bare", "ours", "trainer", "ratios"]
        for loop in ("bare", "ours", "trainer"):
            assert one[loop]["tokens_per_s"] > 0
            assert one[loop]["tokens_per_cpu_s"] > 0
            assert 0 < one[loop]["data_wait_share"] < 1
        ours, bare = one["ours"]["tokens_per_s"], one["bare"]["tokens_per_s"]
        assert one["ratios"]["ours / bare (wall)"] == pytest.approx(ours / bare, rel=1e-3)


def test_a_preset_that_is_none_is_refused(launch: Launch) -> None:
    done = launch(BENCHMARK, "preset=gpt3", check=False)
    assert done.returncode == 1
    assert "expected one of cpu-tiny, gpt2, gpt2-xl, llama-1b" in done.stderr
