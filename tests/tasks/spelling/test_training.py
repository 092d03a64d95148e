"""The spelling tasks through the trainer: real processes, killed and resumed, one, two and four."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.tasks.spelling.helpers import arguments
from tests.tasks.training import (
    TRAIN,
    Documents,
    Launch,
    Steps,
    assert_same_runs,
    events,
    train_killed_and_resumed,
    train_with_deepspeed,
)

SLOW = pytest.mark.slow
TASKS = ["sec", pytest.param("sed_words", marks=SLOW), pytest.param("sed_sequence", marks=SLOW)]


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_killed_and_resumed_repeat_the_undisturbed_run(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, task: str
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    often = ("saves_per_epoch=2", "keep_last_checkpoints=0")
    launch(TRAIN, *arguments(task, tmp_path, whole, *often), processes=2)
    epoch = max(steps(whole)) // 3
    again = arguments(task, tmp_path, killed, *often)
    train_killed_and_resumed(launch, again, epoch + 2, processes=2)

    assert [event["step"] for event in events(killed, "resume")] == [epoch + 1]
    assert_same_runs(killed, whole, steps, documents)
    file = "correction.json" if task == "sec" else "calibration.json"
    thresholds = [
        [saved.read_text() for saved in sorted(run.glob(f"checkpoint-*/model/{file}"))]
        for run in (killed, whole)
    ]
    assert thresholds[0] == thresholds[1]  # also before the first evaluation after the resume
    assert len(thresholds[0]) == (9 if task == "sec" else 7)

    seen = Counter(name for names in documents(whole).values() for name in names)
    assert {*seen.values()} == {3}
    assert len(seen) == 200  # the others are counted
    losses = [event["loss"] for event in events(whole, "eval")]
    assert losses[-1] < losses[0]


@SLOW
@pytest.mark.parametrize("task", ["sed_words", "sed_sequence", "sec"])
def test_one_two_and_four_processes_train_on_the_same_steps(
    launch: Launch, steps: Steps, documents: Documents, tmp_path: Path, task: str
) -> None:
    runs = [tmp_path / str(processes) for processes in (1, 2, 4)]
    for processes, out_dir in zip((1, 2, 4), runs, strict=True):
        more = arguments(task, tmp_path, out_dir, "small_model.dropout=0", "num_train_epochs=1")
        launch(TRAIN, *more, processes=processes)
    alone, *others = runs
    expected = events(alone, "eval")[-1]
    for other in others:
        assert documents(other) == documents(alone)
        for number, step in steps(alone).items():
            assert steps(other)[number]["tokens"] == step["tokens"]
            assert steps(other)[number]["loss"] == pytest.approx(step["loss"], rel=1e-4)
        found = events(other, "eval")[-1]
        assert found.keys() == expected.keys()
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)


@SLOW
@pytest.mark.parametrize("task", ["sed_words", "sec"])
def test_deepspeed_partitions_and_the_run_evaluates_and_exports(tmp_path: Path, task: str) -> None:
    out_dir = tmp_path / "run"
    train_with_deepspeed(tmp_path, 2, arguments(task, tmp_path, out_dir))
    assert [event["split"] for event in events(out_dir, "eval")] == ["validation"] * 3
    assert (out_dir / "model/model.safetensors").exists()


def test_processes_with_less_than_512_tokens_are_refused(launch: Launch, tmp_path: Path) -> None:
    few = arguments("sed_words", tmp_path, tmp_path / "run", "batch_max_length=1024")
    done = launch(TRAIN, *few, "gradient_accumulation_steps=3", check=False)
    assert done.returncode == 2
    assert "a multiple of 1 (processes) x 3 (gradient_accumulation_steps) = 3" in done.stderr
    assert "Fix: batch_shares=3 batch_max_length=1536, or fewer parts" in done.stderr
    done = launch(TRAIN, *few, "batch_shares=4", check=False)
    assert done.returncode == 2
    assert "at least 512 tokens for each of batch_shares=4" in done.stderr
