"""The watchdog ends a process that stands still, and no process that works, however long.

No call waits for a store whose host stands still.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

from bsmeta.core.errors import DataError
from bsmeta.training.watchdog import SharedStore, rebuild_error, serialize_error
from tests.conftest import REPOSITORY, command, run_warm
from tests.waiting import STUCK_S, wait_until

HOST = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def host() -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOST], text=True, **pipes)
    yield process
    process.kill()
    process.communicate()


def test_reports_to_other_ranks_hold_no_secrets() -> None:
    """Other ranks may not know the secrets that this rank has read."""
    report = serialize_error(DataError("GET https://me:word@host.invalid/x?sig=1"))
    assert report == {"user": True, "message": "GET https://[redacted]@host.invalid/x?[redacted]"}
    assert str(rebuild_error(3, report)).startswith("rank 3: GET https://[redacted]@")


def test_a_call_does_not_wait_for_a_stuck_host(host: subprocess.Popen[str]) -> None:
    assert host.stdout is not None
    port = int(host.stdout.readline())
    connection = TCPStore("127.0.0.1", port, timeout=timedelta(days=1), wait_for_workers=False)
    connection.set("key", "value")
    patient, hasty = SharedStore(connection.clone()), SharedStore(connection, answer_timeout_s=1)

    def answers() -> bool:
        with suppress(RuntimeError):
            return hasty.call(lambda store: store.get("key")) == b"value"
        return False

    wait_until(answers, host)
    host.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(host.pid).status() == psutil.STATUS_STOPPED)
    with pytest.raises(RuntimeError, match="the host of the store has not answered for 1 s"):
        hasty.call(lambda store: store.get("key"))
    with pytest.raises(RuntimeError, match="the host of the store does not answer"):
        hasty.call(lambda store: store.get("key"))
    host.send_signal(signal.SIGCONT)
    wait_until(answers, host)
    host.kill()
    with pytest.raises(RuntimeError):
        patient.call(lambda store: store.get("key"))


START = """
import os, sys, time
from pathlib import Path
import torch
from bsmeta.core import progress
from bsmeta.core.progress import hold_lock, report_each, report_progress
from bsmeta.core.signals import StopRequest
from bsmeta.training.processes import Processes
from bsmeta.training.run_folder import RunFolder
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
