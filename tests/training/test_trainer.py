"""The loop with a toy task, in real processes: one step's mathematics, and resuming."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import command
from tests.waiting import wait_until
from tests.warm import Warm

SCRIPT = Path(__file__).with_name("toy_task.py")
COMMON = (
    "trackers=[]",
    "max_train_steps=8",
    "save_steps=4",
    "eval_steps=3",
    "num_warmup_steps=2",
    "learning_rate=0.1",
    "log_documents=true",
)
Launch = Callable[..., subprocess.CompletedProcess[str]]
Steps = Callable[[Path], dict[int, dict[str, Any]]]
Documents = Callable[[Path], dict[int, list[str]]]


def batches(micro_batch: int, accumulation: int) -> tuple[str, str]:
    return (
        f"data_config.per_device_train_batch_size={micro_batch}",
        f"gradient_accumulation_steps={accumulation}",
    )


def list_metrics(steps: dict[int, dict[str, Any]]) -> dict[int, tuple[float, float, float]]:
    return {n: (s["loss"], s["learning_rate"], s["grad_norm"]) for n, s in steps.items()}


def compute_loss(micro_batches: list[list[int]], model: torch.nn.Module) -> float:
    """Returns the mean loss of a step, weighted over all its samples."""
    total, weight = 0.0, 0.0
    for g in (g for batch in micro_batches for g in batch):
        x = torch.tensor([[g % 7 / 7, g % 5 / 5]])
        total += float((model(x) - 2 * x.sum()).detach().square()) * (g % 3)
        weight += g % 3
    return total / weight


def test_every_split_of_the_global_batch_gives_the_same_step(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path
) -> None:
    """12 sequences of unequal weights, as 12 x 1 x 1, 3 x 4 x 1 and 2 x 3 x 2."""
    splits = {"whole": (12, 1, 1), "accumulated": (3, 4, 1), "both": (2, 3, 2)}
    for name, (micro, accumulation, processes) in splits.items():
        arguments = (*COMMON, *batches(micro, accumulation), f"out_dir={tmp_path / name}")
        launch(SCRIPT, *arguments, processes=processes, TOY_DROPOUT="0")
    runs = {name: list_metrics(steps(tmp_path / name)) for name in splits}
    assert list(runs["whole"]) == list(range(1, 9))
    for step, expected in runs["whole"].items():
        for name in ("accumulated", "both"):
            assert runs[name][step] == pytest.approx(expected, rel=1e-5)
    assert documents(tmp_path / "both") == documents(tmp_path / "whole")

    events = map(json.loads, (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
    assert [e for e in events if e["event"] == "phase"] == [
        {"event": "phase", "step": 6, "phase": 1}
    ]

    torch.manual_seed(42)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0), torch.nn.Linear(8, 1))
    assert runs["whole"][1][0] == pytest.approx(compute_loss([list(range(12))], model), rel=1e-6)


@pytest.mark.parametrize(
    ("stage", "precision"),
    [
        pytest.param("", "no", marks=pytest.mark.slow),
        ("2", "no"),
        pytest.param("3", "bf16", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_equals_the_undisturbed_run(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, stage: str, precision: str
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    split = (*COMMON, *batches(2, 2), f"mixed_precision={precision}")
    launch(SCRIPT, *split, f"out_dir={whole}", processes=2, TOY_ZERO_STAGE=stage)
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoint-8step")
    again = (f"out_dir={resumed}", "resume_from_checkpoint_dir=latest")
    launch(SCRIPT, *split, *again, processes=2, TOY_ZERO_STAGE=stage)
    assert list_metrics(steps(resumed)) == list_metrics(steps(whole))
    assert documents(resumed) == documents(whole)
    a, b = (load_file(folder / "model" / "model.safetensors") for folder in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_that_begins_with_a_checkpoint_does_not_change_other_runs(
    launch: Launch, tmp_path: Path
) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    keys = (*COMMON, *batches(2, 1), "max_train_steps=4", "save_steps=2")
    for out_dir in (first, other):
        launch(SCRIPT, *keys, f"out_dir={out_dir}")
    before = read_files(other)
    named = f"resume_from_checkpoint_dir={first}/checkpoint-2step"
    done = launch(SCRIPT, *keys, named, f"out_dir={other}", check=False)
    assert done.returncode == 2
    assert "holds an earlier run; expected an empty folder. Resume it" in done.stderr
    assert read_files(other) == before
    launch(SCRIPT, *keys, named, f"out_dir={other}", "overwrite_out_dir=true")
    assert sorted(other.glob("*checkpoint*")) == [other / "checkpoint-4step"]
    (tmp_path / "link").symlink_to(other / "checkpoint-4step")
    again = f"resume_from_checkpoint_dir={tmp_path}/link"
    launch(SCRIPT, *keys, again, f"out_dir={other}", "max_train_steps=5", "overwrite_out_dir=true")
    assert (other / "checkpoint-5step").exists()


def read_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_counts_are_sums_since_the_last_line_even_over_a_resume(
    launch: Launch, tmp_path: Path
) -> None:
    """Four samples per step, a line after steps 3, 6 and 8, and a checkpoint after step 4."""
    arguments = (*COMMON, *batches(2, 2), f"out_dir={tmp_path}", "logging_steps=3")
    launch(SCRIPT, *arguments)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(tmp_path / "checkpoint-8step")
    launch(SCRIPT, *arguments, "resume_from_checkpoint_dir=latest")
    again = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for events in (lines, again):
        counts = {event["step"]: event["counts"] for event in events if event["event"] == "step"}
        assert counts == {3: {"samples": 12.0}, 6: {"samples": 12.0}, 8: {"samples": 8.0}}
        assert events[-1] == {
            "event": "totals",
            "step": 8,
            "tokens": 32,
            "targets": lines[-1]["targets"],
            "counts": {"samples": 32.0},
        }


@pytest.mark.slow
def test_zero_and_plain_training_agree(launch: Launch, steps: Steps, tmp_path: Path) -> None:
    for stage in ("", "1", "2"):
        arguments = (*COMMON, *batches(2, 2), f"out_dir={tmp_path / ('zero' + stage)}")
        launch(SCRIPT, *arguments, processes=2, TOY_ZERO_STAGE=stage)
    plain = list_metrics(steps(tmp_path / "zero"))
    for stage in ("1", "2"):
        zero = list_metrics(steps(tmp_path / f"zero{stage}"))
        for step in plain:
            assert zero[step] == pytest.approx(plain[step], rel=1e-4)


def test_a_signal_to_one_rank_saves_the_same_step_on_all_and_requeues(
    launch: Launch, steps: Steps, tmp_path: Path
) -> None:
    out_dir = tmp_path / "run"
    arguments = [*COMMON, *batches(2, 2), f"out_dir={out_dir}", "max_train_steps=1000000"]
    arguments.append("logging_steps=100")
    process = Warm(command(SCRIPT, *arguments, processes=2), {**os.environ})
    try:
        wait_until((out_dir / "checkpoint-8step").exists, process)
        workers = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
        )
        last = int(workers.stdout.split()[-1])
        subprocess.run(["kill", f"-{signal.SIGTERM.value}", str(last)], check=True)
        process.wait()
    finally:
        process.kill()
    status = json.loads((out_dir / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("preempted", 75)
    assert (out_dir / f"checkpoint-{status['step']}step" / "manifest.json").exists()


def test_a_change_of_the_engine_is_reported(launch: Launch, steps: Steps, tmp_path: Path) -> None:
    out_dir = f"out_dir={tmp_path}"
    launch(SCRIPT, *COMMON, *batches(2, 2), out_dir, "max_train_steps=4")
    resume = (*COMMON, *batches(2, 1), out_dir, "resume_from_checkpoint_dir=latest")
    done = launch(SCRIPT, *resume, processes=2, TOY_ZERO_STAGE="1")
    assert "  engine: torch -> deepspeed ZeRO-1\n" in done.stderr
    events = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    (event,) = [event for event in events if event["event"] == "resume"]
    assert (event["engines"], event["processes"]) == (["torch", "deepspeed ZeRO-1"], [1, 2])
    assert list(steps(tmp_path)) == list(range(1, 9))
