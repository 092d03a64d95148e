"""A study that is killed: with its processes, and alone, so that its run is left without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.launching.helpers import EXPERIMENTS, SMALL, end, environment
from tests.waiting import wait_until

STEPS = 16


def study_file(folder: Path) -> Path:
    arms = {
        "none": {"overrides": ["data_config.metadata_config.metadata_list=[]"]},
        "url": {"overrides": ["data_config.metadata_config.metadata_list=[url]"]},
    }
    overrides = [override for override in SMALL if not override.startswith("save_steps")]
    overrides += [f"max_train_steps={STEPS}", "save_steps=5", "eval_documents=1"]
    study = {
        "out_dir": "study", "config": "demo", "seeds": [1], "baseline": "none", "arms": arms,
        "overrides": overrides, "curve": [1.0],
        "measure": {"max_documents": 8, "max_characters": 200, "sites": 2},
    }  # fmt: skip
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def start(folder: Path, output: Path | None = None) -> subprocess.Popen[str]:
    """Starts the study; its output is kept for `end`, or written to `output` at once."""
    return subprocess.Popen(
        [sys.executable, str(EXPERIMENTS / "study.py"), str(study_file(folder))],
        cwd=folder,
        env=environment(BSMETA_PROCESSES="1", OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE if output is None else output.open("w"),
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    metrics = folder / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and f'"step": {step},' in metrics.read_text(), process)


def trainers(folder: Path) -> list[int]:
    """Returns the processes that train in a folder."""
    command = ["pgrep", "-f", f"{folder}/study/runs"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.slow
@pytest.mark.faults
def test_a_killed_study_continues(tmp_path: Path) -> None:
    none, url = (tmp_path / "study/runs" / f"{arm}-seed1" for arm in ("none", "url"))
    first = start(tmp_path)
    wait_for_step(none, 7, first)
    os.killpg(first.pid, signal.SIGKILL)
    for process in trainers(tmp_path):  # torchrun's processes have sessions of their own
        os.kill(process, signal.SIGKILL)
    first.wait()

    second = start(tmp_path)
    wait_for_step(url, 3, second)
    left = trainers(tmp_path)
    for process in left:  # they stand still until the next study has found them
        os.kill(process, signal.SIGSTOP)
    saved = os.stat(none / "metrics.jsonl").st_mtime_ns
    second.kill()  # the study alone: its run continues
    second.wait()

    printed = tmp_path / "printed"
    third = start(tmp_path, printed)
    waits = "[2/2] url seed 1: still running, started by an earlier call; waiting"
    wait_until(lambda: waits in printed.read_text(), third)
    for process in left:
        os.kill(process, signal.SIGCONT)
    assert end(third)[0] == 0, printed.read_text()
    output = printed.read_text()
    assert "[1/2] none seed 1: done before" in output
    assert "[2/2] url seed 1: done before" in output
    assert os.stat(none / "metrics.jsonl").st_mtime_ns == saved
    for run in (none, url):
        events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        steps = [event["step"] for event in events if event["event"] == "step"]
        assert steps == list(range(1, STEPS + 1))
        assert ("resume" in {event["event"] for event in events}) == (run == none)
    assert "| url | without |" in (tmp_path / "study/report.md").read_text()
    measured = {path.name for path in (tmp_path / "study").glob("measured-*/*.npz")}
    assert measured == {"none-seed1.npz", "url-seed1.npz"}
