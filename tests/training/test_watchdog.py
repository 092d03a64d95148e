"""The watchdog ends a process that stands still, whatever it cannot write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, TIMEOUT_S

STANDING_STILL = """
import sys, time
from pathlib import Path
import torch
from bsmeta.training.distributed import Processes
from bsmeta.training.watchdog import Watchdog

watchdog = Watchdog(Processes(0, 1, torch.device("cpu")), Path(sys.argv[1]), 0.5)
watchdog.step = 3
watchdog.start()
watchdog.enter("step 4: optimizer")
if len(sys.argv) > 2:
    sys.stderr.close()
time.sleep(10_000)
"""


def stand_still(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", STANDING_STILL, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_process_that_stands_still_leaves_stacks_and_a_status(tmp_path: Path) -> None:
    done = stand_still(str(tmp_path))
    assert done.returncode == 1
    assert "no progress for 0 s in: step 4: optimizer" in done.stderr
    assert "Thread 0x" in (tmp_path / "stacks-rank0.txt").read_text()
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["step"]) == ("failed", 1, 3)


@pytest.mark.parametrize("closed", [(), ("closed",)])
def test_it_ends_where_nothing_can_be_written(tmp_path: Path, closed: tuple[str, ...]) -> None:
    (tmp_path / "stacks-rank0.txt").mkdir()
    (tmp_path / "status.json").mkdir()
    done = stand_still(str(tmp_path), *closed)
    assert done.returncode == 1
    assert closed or "no progress for 0 s in: step 4: optimizer" in done.stderr
