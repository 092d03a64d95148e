"""Rows 4 and 10 of the fault matrix: signals at bad moments, dead launchers, data that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.conftest import REPOSITORY
from tests.faults.conftest import (
    RESUME,
    Run,
    checkpoints,
    list_metrics,
    same_run,
    status,
)
from tests.waiting import STUCK_S, wait_until

pytestmark = pytest.mark.faults

Start = Callable[..., Run]
LONG = ("max_train_steps=60", "save_steps=50")
ENDED = {"preempted", "failed", "done"}


def has_trained(out_dir: Path, steps: int) -> Callable[[], bool]:
    return lambda: (out_dir / "metrics.jsonl").exists() and len(list_metrics(out_dir)) >= steps


def assert_saved(out_dir: Path) -> None:
    """Whether the run has saved its last finished step, and released its folder."""
    state = status(out_dir)
    assert (state["state"], state["exit_code"]) == ("preempted", 75)
    assert checkpoints(out_dir) == [f"checkpoint-{state['step']}step"]
    assert max(list_metrics(out_dir)) == state["step"]
    wait_until(lambda: not is_held(out_dir))


def is_held(out_dir: Path) -> bool:
    lock = FileLock(out_dir / ".lock")
    try:
        lock.acquire(timeout=0)
    except TimeoutError:
        return True
    lock.release()
    return False


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(
            pytest.param(number, marks=pytest.mark.slow)
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
        ),
    ],
)
def test_row_4_a_signal_to_the_launcher_ends_all_processes(
    start: Start, complete: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """SIGKILL, SIGUSR1 and SIGUSR2 end torchrun itself; its processes must not remain."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run = start(stopped, *LONG, fault="slow:0.3")
    run.until(has_trained(stopped, 3))
    ranks = run.workers()
    os.kill(run.process.pid, number)
    wait_until(lambda: status(stopped)["state"] in ENDED)
    assert_saved(stopped)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks))
    complete(stopped, *LONG, RESUME)
    complete(whole, *LONG)
    assert same_run(stopped, whole)


@pytest.mark.long
def test_row_4_a_signal_with_a_closed_output_still_saves(tmp_path: Path) -> None:
    """`… | tee log` also receives Ctrl-C, and ends first."""
    reading, writing = os.pipe()
    keys = (*LONG, "trackers=[]", "num_warmup_steps=2", "eval_steps=0", f"out_dir={tmp_path}")
    process = subprocess.Popen(
        [sys.executable, "tests/faults/faulty_task.py", *keys],
        env={**os.environ, "FAULT": "slow:0.3"},
        cwd=REPOSITORY,
        stdout=writing,
        stderr=writing,
    )
    os.close(writing)
    wait_until(has_trained(tmp_path, 3), process)
    os.close(reading)
    process.send_signal(signal.SIGINT)
    assert process.wait(STUCK_S) == 75
    assert_saved(tmp_path)


@pytest.mark.parametrize(
    ("stage", "loader", "late"),
    [
        ("", "data_hang", ""),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("2", "data_hang", ""), ("", "loader_hang", ""), ("", "data_hang", "1"))
        ),
    ],
)
def test_row_4_a_signal_while_a_rank_waits_for_data_saves_the_last_step(
    start: Start, tmp_path: Path, stage: str, loader: str, late: str
) -> None:
    """Micro-batch 10 is the first of step 6: step 5 is finished and saved."""
    run = start(tmp_path, *LONG, stage=stage, fault=f"{loader}:10:1", TOY_READS_LATE=late)
    run.until(has_trained(tmp_path, 3 if late else 4))
    time.sleep(1.0)  # until rank 1 waits; the outcome is the same if it does not yet
    for pid in run.workers():
        os.kill(pid, signal.SIGTERM)
    run.wait()
    assert_saved(tmp_path)
    assert status(tmp_path)["step"] == 5


@pytest.mark.parametrize("late", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_row_10_steps_before_failing_data_are_saved(
    start: Start, complete: Start, tmp_path: Path, late: str
) -> None:
    run = start(tmp_path / "run", *LONG, fault="data_raise:10:1", TOY_READS_LATE=late)
    assert run.wait() != 0
    state = status(tmp_path / "run")
    assert (state["state"], state["exit_code"], state["step"]) == ("failed", 2, 5)
    assert state["message"] == "rank 1: a broken document"
    assert checkpoints(tmp_path / "run") == ["checkpoint-5step"]
    complete(tmp_path / "run", *LONG, RESUME)
    complete(tmp_path / "whole", *LONG)
    assert same_run(tmp_path / "run", tmp_path / "whole")


def test_row_4_a_signal_before_the_first_step_ends_the_run(start: Start, tmp_path: Path) -> None:
    run = start(tmp_path, fault="start_hang:")
    run.until((tmp_path / "status.json").exists)
    for pid in run.workers():
        os.kill(pid, signal.SIGTERM)
    run.wait()
    assert status(tmp_path) == {
        "state": "preempted",
        "step": 0,
        "exit_code": 75,
        "message": "stopped by SIGTERM before the first step of this start",
    }


def test_row_4_a_signal_while_the_configuration_is_read_is_deferred(tmp_path: Path) -> None:
    """The signal is deferred until the run folder is known."""
    process = subprocess.Popen(
        [sys.executable, "bsmeta/train.py", "--config-name", "demo", f"out_dir={tmp_path / 'run'}"],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: blocks(process.pid, signal.SIGTERM), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(STUCK_S) == 75
    assert status(tmp_path / "run")["state"] == "preempted"
    assert status(tmp_path / "run")["exit_code"] == 75


def blocks(pid: int, number: signal.Signals) -> bool:
    """Whether a process has blocked a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:"))
    return bool(mask >> (number - 1) & 1)
