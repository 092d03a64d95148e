"""The core with a second task: variable rows a step, epochs, two splits, a metric to maximize."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("budget_task.py")
COMMON = (
    "trackers=[]", "num_train_epochs=2", "evals_per_epoch=2", "logs_per_epoch=1000",
    "save_steps=5", "keep_last_checkpoints=1", "keep_best_by=accuracy", "num_warmup_steps=2",
    "learning_rate=0.05", "log_documents=true",
)  # fmt: skip
Launch = Callable[..., subprocess.CompletedProcess[str]]
Steps = Callable[[Path], dict[int, dict[str, Any]]]
Documents = Callable[[Path], dict[int, list[str]]]


def events(out_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (out_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == kind]


def exact(steps: dict[int, dict[str, Any]]) -> dict[int, tuple[float, float]]:
    return {number: (step["loss"], step["learning_rate"]) for number, step in steps.items()}


@pytest.mark.parametrize("stage", ["", pytest.param("2", marks=pytest.mark.slow)])
def test_a_task_on_a_table_is_killed_resumed_and_equal_for_one_process(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, stage: str
) -> None:
    store = f"store={tmp_path}/store"
    whole, killed, alone = (tmp_path / name for name in ("whole", "killed", "alone"))
    two = {"processes": 2, "ZERO_STAGE": stage}
    launch(SCRIPT, *COMMON, store, f"out_dir={whole}", **two)
    done = launch(SCRIPT, *COMMON, store, f"out_dir={killed}", check=False, KILL_AT="8", **two)
    assert done.returncode != 0
    latest = "resume_from_checkpoint_dir=latest"
    launch(SCRIPT, *COMMON, store, f"out_dir={killed}", latest, **two)

    assert exact(steps(killed)) == exact(steps(whole))
    assert documents(killed) == documents(whole)
    ours, theirs = (load_file(run / "model/model.safetensors") for run in (whole, killed))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    seen = Counter(name for names in documents(whole).values() for name in names)
    assert seen == Counter(f"{epoch}:{row}" for epoch in range(2) for row in range(90))
    sizes = [len(names) for names in documents(whole).values()]
    assert len(set(sizes)) > 3  # steps of many sizes

    found = events(whole, "eval")
    assert {event["split"] for event in found} == {"validation", "unseen", "test"}
    accuracies = {e["step"]: e["accuracy"] for e in found if e["split"] == "validation"}
    saved = {event["step"] for event in events(whole, "save")}
    best = max(saved & set(accuracies), key=lambda step: (accuracies[step], -step))
    test = json.loads((whole / "test.json").read_text())
    assert test["best"] == f"checkpoint-{best}step"
    assert test == json.loads((killed / "test.json").read_text())

    if not stage:
        launch(SCRIPT, *COMMON, store, f"out_dir={alone}")
        assert documents(alone) == documents(whole)
        for number, step in steps(alone).items():
            assert step["tokens"] == steps(whole)[number]["tokens"]


def test_epochs_need_no_number_of_steps_and_too_many_processes_are_refused(
    launch: Launch, tmp_path: Path
) -> None:
    arguments = (*COMMON, f"store={tmp_path}/store", f"out_dir={tmp_path}/run")
    done = launch(SCRIPT, *arguments, "gradient_accumulation_steps=3", check=False)
    assert done.returncode == 2
    assert "batch_shares=4 is not a multiple of processes x" in done.stderr
