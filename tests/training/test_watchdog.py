"""The watchdog ends a process that stands still, and no process that works, however long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, command, run_warm
from tests.waiting import STUCK_S

START = """
import os, sys, time
from pathlib import Path
import torch
from bsmeta.core import progress
from bsmeta.core.progress import hold_lock, report_each, report_progress
from bsmeta.core.signals import StopRequest
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.watchdog import Watchdog

watchdog = Watchdog(Processes(0, 1, torch.device("cpu")), LIMIT, StopRequest())
watchdog.run_folder = RunFolder(Path(sys.argv[1]))
watchdog.step = 3
watchdog.enter("step 4: optimizer")
watchdog.__enter__()
"""
STANDING_STILL = f"""
{START.replace("LIMIT", "0.5")}
if len(sys.argv) > 2:
    sys.stderr.close()
time.sleep(10_000)
"""
PARTS = "for part in range(150):\n    time.sleep(0.1)\n    report_progress()\n"
WORK = {
    "parts": PARTS,
    "items": "for part in report_each(range(150)):\n    time.sleep(0.1)\n",
    "of a worker": f"""
worker = os.fork()
if not worker:
    {PARTS.replace(chr(10), chr(10) + "    ")}
    os._exit(0)
os.waitpid(worker, 0)
""",
    "of another process": """
reading, writing = os.pipe()
lock = Path(sys.argv[1]) / "lock"
if not os.fork():
    with hold_lock(lock, "the vectors of entities"):
        os.write(writing, b"locked")
        time.sleep(15)
    os._exit(0)
os.read(reading, 6)
progress._WAIT_S = 0.1  # how often the lock is looked at
import logging
logging.basicConfig(level=logging.INFO)
with hold_lock(lock, "the vectors of entities"):
    pass
""",
}


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


@pytest.mark.long
def test_a_stuck_process_leaves_stacks_and_a_status(tmp_path: Path) -> None:
    done = run(STANDING_STILL, str(tmp_path))
    assert done.returncode == 1
    assert "no progress for 0 s in: step 4: optimizer" in done.stderr
    assert "Thread 0x" in (tmp_path / "stacks-rank0.txt").read_text()
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["step"]) == ("failed", 1, 3)


@pytest.mark.long
@pytest.mark.parametrize("closed", [(), ("closed",)])
def test_a_stuck_process_ends_even_if_nothing_can_be_written(
    tmp_path: Path, closed: tuple[str, ...]
) -> None:
    (tmp_path / "stacks-rank0.txt").mkdir()
    (tmp_path / "status.json").mkdir()
    done = run(STANDING_STILL, str(tmp_path), *closed)
    assert done.returncode == 1
    assert closed or "no progress for 0 s in: step 4: optimizer" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK)
def test_work_that_reports_its_progress_may_take_longer_than_the_limit(
    work: str, tmp_path: Path
) -> None:
    """If it is stuck afterward, the process is ended all the same."""
    program = START.replace("LIMIT", "10") + WORK[work]
    done = run(f"{program}print('worked', flush=True)\ntime.sleep(10_000)", str(tmp_path))
    assert done.stdout == "worked\n", done.stderr
    assert done.returncode == 1
    waited = "waiting for another process: the vectors of entities (" in done.stderr
    assert waited == (work == "of another process")


@pytest.mark.slow
def test_a_rank_waits_for_a_working_rank(tmp_path: Path) -> None:
    """As long as rank 1 reports progress, rank 0 is not ended, nor by the process group."""
    done = run_warm(
        command(REPOSITORY / "tests" / "training" / "working_rank.py", str(tmp_path), processes=2)
    )
    assert done.returncode == 1
    assert (tmp_path / "met-0").exists()
    assert (tmp_path / "met-1").exists()
    assert "no progress for 10 s in: after the barrier" in done.stderr
