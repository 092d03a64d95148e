"""Threads of an optimizer that steps on the CPU; launchers give each process one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, command, run_warm
from tests.waiting import STUCK_S

SCRIPT = Path(__file__).with_name("offload_threads.py")
CORES = len(os.sched_getaffinity(0))
OFFLOAD = '{"stage": 2, "offload_optimizer": {"device": "cpu"}}'


@pytest.mark.long
@pytest.mark.parametrize(
    ("zero", "processes", "threads", "expected"),
    [
        (OFFLOAD, 1, "1", CORES),
        (OFFLOAD, 2, "1", max(1, CORES // 2)),
        (OFFLOAD, 2, "2", min(2, CORES)),
        ('{"stage": 2, "offload_optimizer": {"device": "none"}}', 1, "1", 1),
        ('{"stage": 2}', 1, "1", 1),
    ],
)
def test_an_offloaded_optimizer_has_the_cores_of_its_process(
    zero: str, processes: int, threads: str, expected: int
) -> None:
    started = command(SCRIPT, zero, processes=processes, launcher=True)
    if threads == "1":
        done = run_warm(started, OMP_NUM_THREADS=threads)
    else:  # read when torch is imported, which has happened in a warm interpreter
        environ = {**os.environ, "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            started, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=STUCK_S,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"threads: (\d+)", done.stdout) == [str(expected)] * processes
    is_logged = "offload_optimizer: the optimizer steps on the CPU, with" in done.stderr
    assert is_logged == (zero == OFFLOAD and threads == "1")
    if is_logged:
        assert f"(cores: {CORES}, processes on this machine: {processes};" in done.stderr
