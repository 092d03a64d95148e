"""The main job as a user runs it: `accelerate launch`, real pages, kills, and exact resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import run_warm
from tests.waiting import STUCK_S, wait_until
from tests.warm import REPOSITORY, Warm

STEPS = 24
SMALL = (
    "--config-name",
    "demo",
    f"max_train_steps={STEPS}",
    "num_warmup_steps=4",
    "save_steps=8",
    "eval_steps=12",
    "eval_documents=2",
    "trackers=[]",
    "log_documents=true",
    "data_config.metadata_config.max_seq_len=64",
    "gradient_accumulation_steps=2",
)
Documents = Callable[[Path], dict[int, list[str]]]
Steps = Callable[[Path], dict[int, dict[str, Any]]]


def job(launch_file: str | None, out_dir: Path, *overrides: str) -> list[str]:
    start = [sys.executable]
    if launch_file is not None:
        start += ["-m", "accelerate.commands.launch", "--config_file"]
        start += [str(REPOSITORY / "experiments" / "accelerate" / launch_file)]
    script = str(REPOSITORY / "bsmeta" / "train.py")
    return [*start, script, *SMALL, f"out_dir={out_dir}", *overrides]


def run(command: list[str], folder: Path) -> None:
    done = run_warm(command, folder)
    assert done.returncode == 0, done.stderr[:4000]


def run_cold(command: list[str], folder: Path) -> None:
    """Like `run`, with new interpreters, which order sets of strings differently."""
    subprocess.run(command, cwd=folder, check=True, timeout=STUCK_S)


def kill_when(command: list[str], folder: Path, reached: Callable[[], bool]) -> None:
    """Starts the job and kills all its processes with SIGKILL once `reached` returns true."""
    process = Warm(command, {**os.environ}, folder)
    workers: set[int] = set()
    try:
        wait_until(reached, process)
    finally:
        workers = descendants(process.pid)
        for pid in (process.pid, *workers):
            with_signal(pid)
        process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def descendants(pid: int) -> set[int]:
    """Returns children and their children: torchrun's workers have separate sessions."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    children: dict[int, list[int]] = {}
    for child, parent in (map(int, line.split()) for line in listed.stdout.splitlines()):
        children.setdefault(parent, []).append(child)
    found: set[int] = set()
    open_ends = [pid]
    while open_ends:
        new = children.get(open_ends.pop(), [])
        found.update(new)
        open_ends += new
    return found


def with_signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def logged_step(out_dir: Path) -> int:
    file = out_dir / "metrics.jsonl"
    return file.read_text().count('"event": "step"') if file.exists() else 0


def list_metrics(steps: dict[int, dict[str, Any]]) -> dict[int, tuple[float, float]]:
    return {step: (event["loss"], event["learning_rate"]) for step, event in steps.items()}


@pytest.mark.parametrize(
    "launch_file",
    [
        pytest.param("cpu.yaml", marks=pytest.mark.slow),
        "cpu_zero2.yaml",
        pytest.param("cpu_fsdp2.yaml", marks=pytest.mark.slow),
    ],
)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_run(
    launch_file: str, steps: Steps, documents: Documents, tmp_path: Path
) -> None:
    """Killed in the middle of a step, and while a checkpoint is written."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(job(launch_file, whole), tmp_path)
    command = job(launch_file, killed, "resume_from_checkpoint_dir=latest")
    kill_when(command, tmp_path, lambda: logged_step(killed) >= 11)
    unfinished = killed / "tmp-checkpoint-16step"
    kill_when(command, tmp_path, lambda: unfinished.exists() or logged_step(killed) >= STEPS - 4)
    run(command, tmp_path)
    assert list(steps(whole)) == list(range(1, STEPS + 1))
    assert list_metrics(steps(killed)) == list_metrics(steps(whole))
    assert documents(killed) == documents(whole)
    status = json.loads((killed / "status.json").read_text())
    assert (status["state"], status["step"], status["exit_code"]) == ("done", STEPS, 0)


@pytest.mark.long
def test_one_process_and_fsdp2_train_like_two_processes(
    steps: Steps, documents: Documents, tmp_path: Path
) -> None:
    """With recomputed layers, an evaluation, and tied weights.

    The global batch is 8: 2 x 2 x 2 processes, and 4 x 2 in one.
    """
    two, one, sharded = (tmp_path / name for name in ("two", "one", "sharded"))
    keys = ("max_train_steps=6", "eval_steps=3", "gradient_checkpointing=true")
    run(job("cpu.yaml", two, *keys), tmp_path)
    run_cold(job(None, one, *keys, "data_config.per_device_train_batch_size=4"), tmp_path)
    run(job("cpu_fsdp2.yaml", sharded, *keys, "async_save=true"), tmp_path)
    shards = {name.split(":")[0] for step in documents(two).values() for name in step}
    assert len(shards) > 1
    assert (two / "model" / "tokenizer.json").exists()
    assert "c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz" not in shards  # the test file
    for other in (one, sharded):
        assert documents(other) == documents(two)
        for step, event in steps(two).items():
            for name in ("loss", "grad_norm"):
                assert steps(other)[step][name] == pytest.approx(event[name], rel=1e-4)
        ours, theirs = evaluations(two), evaluations(other)
        assert list(ours) == list(theirs) == [3, 6]
        for step, bits in ours.items():
            assert theirs[step] == pytest.approx(bits, rel=1e-4)
        for folder in ("model", "checkpoint-6step/model"):
            assert_same_model(two / folder, other / folder)


def evaluations(out_dir: Path) -> dict[int, float]:
    """Returns the bits per byte without metadata of each evaluation, by step."""
    events = map(json.loads, (out_dir / "metrics.jsonl").read_text().splitlines())
    return {
        event["step"]: event["text_bits_per_byte"] for event in events if event["event"] == "eval"
    }


def assert_same_model(plain: Path, sharded: Path) -> None:
    """Checks that files and names are the same, and weights equal up to rounding."""
    assert {file.name for file in plain.iterdir()} == {file.name for file in sharded.iterdir()}
    assert (plain / "config.json").read_text() == (sharded / "config.json").read_text()
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (plain, sharded))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(theirs[name], weight, rtol=1e-3, atol=1e-4)
