"""Runs of a task through the trainer: killed and resumed, and with DeepSpeed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from tests.conftest import REPOSITORY
from tests.waiting import STUCK_S

TRAIN = REPOSITORY / "bsmeta" / "train.py"
KILLED = Path(__file__).with_name("killed_train.py")
Launch = Callable[..., subprocess.CompletedProcess[str]]
Steps = Callable[[Path], dict[int, dict[str, Any]]]
Documents = Callable[[Path], dict[int, list[str]]]


def events(out_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the events of a type in `metrics.jsonl`."""
    lines = map(json.loads, (out_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == kind]


def select_exact(steps: dict[int, dict[str, Any]]) -> dict[int, tuple[float, ...]]:
    """Returns the values of each step that must be equal to the last bit."""
    names = ("loss", "grad_norm", "learning_rate")
    return {number: tuple(step[name] for name in names) for number, step in steps.items()}


def train_killed_and_resumed(
    launch: Launch,
    arguments: list[str],
    kill_at: int,
    *,
    script: Path | None = None,
    **how: Any,
) -> None:
    """Trains a run whose processes are killed before a step, and resumes it.

    Args:
        launch: The fixture.
        arguments: The command line.
        kill_at: The step.
        script: A script that reads KILL_AT; None: `train.py`.
        how: Further arguments of `launch`.
    """
    died = launch(script or KILLED, *arguments, check=False, KILL_AT=str(kill_at), **how)
    assert died.returncode != 0
    launch(script or TRAIN, *arguments, "resume_from_checkpoint_dir=latest", **how)


def assert_same_runs(first: Path, second: Path, steps: Steps, documents: Documents) -> None:
    """Compares losses, documents, evaluations and weights of two runs."""
    assert select_exact(steps(first)) == select_exact(steps(second))
    assert documents(first) == documents(second)
    assert events(first, "eval") == events(second, "eval")
    ours, theirs = (load_file(run / "model/model.safetensors") for run in (first, second))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def train_with_deepspeed(folder: Path, stage: int, arguments: list[str]) -> None:
    """Trains under a ZeRO stage, with the shipped launch file and JSON for CPUs."""
    settings = json.loads((REPOSITORY / "deepspeed_configs" / "cpu.json").read_text())
    settings["zero_optimization"] = {
        "stage": stage, "stage3_gather_16bit_weights_on_model_save": stage == 3
    }  # fmt: skip
    (folder / "zero.json").write_text(json.dumps(settings))
    launch = yaml.safe_load((REPOSITORY / "experiments/accelerate/cpu_zero2.yaml").read_text())
    launch["deepspeed_config"] = {
        "deepspeed_config_file": str(folder / "zero.json"), "zero3_init_flag": stage == 3
    }  # fmt: skip
    (folder / "launch.yaml").write_text(yaml.safe_dump(launch))
    command = ["accelerate", "launch", "--config_file", str(folder / "launch.yaml"), str(TRAIN)]
    done = subprocess.run(
        [*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=STUCK_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
