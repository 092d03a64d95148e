"""The core with a second task: variable rows a step, epochs, two splits, a metric to maximize."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.tasks.training import (
    Documents,
    Launch,
    Steps,
    assert_same_runs,
    events,
    train_killed_and_resumed,
)

SCRIPT = Path(__file__).with_name("budget_task.py")
COMMON = (
    "trackers=[]", "num_train_epochs=2", "evals_per_epoch=2", "logs_per_epoch=1000",
    "save_steps=5", "keep_last_checkpoints=1", "keep_best_by=accuracy", "export_best=true",
    "num_warmup_steps=2",
    "learning_rate=0.05", "log_documents=true",
)  # fmt: skip


@pytest.mark.parametrize("stage", ["", pytest.param("2", marks=pytest.mark.slow)])
def test_a_killed_and_resumed_table_task_equals_one_process(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, stage: str
) -> None:
    store = f"store={tmp_path}/store"
    whole, killed, alone = (tmp_path / name for name in ("whole", "killed", "alone"))
    two = {"processes": 2, "ZERO_STAGE": stage}
    launch(SCRIPT, *COMMON, store, f"out_dir={whole}", **two)
    again = [*COMMON, store, f"out_dir={killed}"]
    train_killed_and_resumed(launch, again, 8, script=SCRIPT, **two)
    assert_same_runs(killed, whole, steps, documents)

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
    assert test["exported"] == f"checkpoint-{best}step"
    assert test == json.loads((killed / "test.json").read_text())

    if not stage:
        launch(SCRIPT, *COMMON, store, f"out_dir={alone}")
        assert documents(alone) == documents(whole)
        for number, step in steps(alone).items():
            assert step["tokens"] == steps(whole)[number]["tokens"]


def test_a_run_from_the_last_checkpoint_of_another_run_tests_it(
    launch: Launch, tmp_path: Path
) -> None:
    keys = (*COMMON, f"store={tmp_path}/store", "export_best=false", "keep_best_by=null")
    launch(SCRIPT, *keys, f"out_dir={tmp_path}/first")
    (saved,) = (tmp_path / "first").glob("checkpoint-*step")
    named = f"resume_from_checkpoint_dir={saved}"
    launch(SCRIPT, *keys, f"out_dir={tmp_path}/again", named)
    first, again = (tmp_path / name / "test.json" for name in ("first", "again"))
    assert json.loads(again.read_text()) == json.loads(first.read_text())


def test_epochs_replace_steps_and_too_many_processes_are_refused(
    launch: Launch, tmp_path: Path
) -> None:
    arguments = (*COMMON, f"store={tmp_path}/store", f"out_dir={tmp_path}/run")
    done = launch(SCRIPT, *arguments, "gradient_accumulation_steps=3", check=False)
    assert done.returncode == 2
    assert "batch_shares=4 is not a multiple of processes x" in done.stderr
