"""Rows 6, 8 and 11 of the fault matrix: what a run resumes from, with which settings, and keeps."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import (
    RESUME,
    Run,
    checkpoints,
    events,
    list_metrics,
    same_weights,
    status,
)

pytestmark = pytest.mark.faults

Start = Callable[..., Run]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of eight steps with the checkpoints of steps 2, 4, 6 and 8."""
    folder = tmp_path_factory.mktemp("saved")
    run = Run(folder / "run", "keep_last_checkpoints=0", processes=1, fault="none:")
    assert run.wait() == 0, run.errors[-3000:]
    yield folder / "run"
    shutil.rmtree(folder)


def damage(checkpoint: Path) -> None:
    file = checkpoint / "state" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1] + b"?")


def read_files(folder: Path) -> dict[str, bytes]:
    """Returns all files of a run folder except those that every start writes."""
    files = (file for file in folder.rglob("*") if file.is_file())
    names = {str(file.relative_to(folder)): file for file in files}
    of_every_start = (".lock", ".owner", "environment.jsonl", "status.json")
    return {n: f.read_bytes() for n, f in names.items() if n not in of_every_start}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "gradient_accumulation_steps=3",
            "trained with 4 rows a step, this launch makes 6",
        ),
        ("max_train_steps=7", "checkpoint-8step is of step 8 already; expected at least 8"),
    ],
)
def test_row_6_a_refused_resume_does_not_change_the_folder(
    start: Start, tmp_path: Path, saved: Path, change: str, message: str
) -> None:
    shutil.copytree(saved, tmp_path / "run")
    before = read_files(tmp_path / "run")
    run = start(tmp_path / "run", RESUME, change, processes=1)
    assert run.wait() == 2
    assert message in run.errors
    assert message in status(tmp_path / "run")["message"]
    assert read_files(tmp_path / "run") == before


def test_row_6_a_resume_with_other_data_does_not_change_the_folder(
    start: Start, complete: Start, tmp_path: Path
) -> None:
    """This resume is refused later: after the model is loaded and the stream opened."""
    complete(tmp_path / "run")
    before = read_files(tmp_path / "run")
    named = f"resume_from_checkpoint_dir={tmp_path}/run/checkpoint-4step"
    assert start(tmp_path / "run", named, "seed=7", fault="other_data::1").wait() != 0
    assert read_files(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("", ("weight_decay", 0.9)),
        pytest.param("2", ("weight_decay", 0.9), marks=pytest.mark.slow),
        pytest.param("2", ("gradient_clipping", 0.001), marks=pytest.mark.slow),
        pytest.param("3", ("adam_beta1", 0.5), marks=pytest.mark.slow),
    ],
)
def test_row_6_changed_settings_are_used_and_logged(
    complete: Start, tmp_path: Path, stage: str, change: tuple[str, float]
) -> None:
    key, value = change
    complete(tmp_path / "same", "max_train_steps=4", stage=stage)
    shutil.copytree(tmp_path / "same", tmp_path / "changed")
    complete(tmp_path / "same", RESUME, stage=stage)
    run = complete(tmp_path / "changed", RESUME, f"{key}={value}", stage=stage)
    assert list_metrics(tmp_path / "same")[5] == list_metrics(tmp_path / "changed")[5]
    assert not same_weights(tmp_path / "same", tmp_path / "changed")
    (unchanged,) = events(tmp_path / "same", "resume")
    (event,) = events(tmp_path / "changed", "resume")
    assert unchanged["changed"] == {"max_train_steps": [4, 8]}
    assert event["changed"].pop("out_dir") == [str(tmp_path / name) for name in ("same", "changed")]
    assert event["changed"].pop(key)[1] == value
    assert event["changed"] == {"max_train_steps": [4, 8]}
    assert f"  {key}: " in run.errors
    assert f"{key}: {value}\n" in (tmp_path / "changed" / "config.yaml").read_text()


def test_row_6_a_run_of_no_step_from_another_checkpoint_saves_a_checkpoint(
    start: Start, complete: Start, tmp_path: Path
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    complete(whole, processes=1)
    named = f"resume_from_checkpoint_dir={whole}/checkpoint-4step"
    assert start(stopped, named, processes=1, fault="data_signal:0").wait() == 75
    assert checkpoints(stopped) == ["checkpoint-4step"]
    complete(stopped, RESUME, processes=1)
    assert sorted(list_metrics(stopped)) == [5, 6, 7, 8]
    assert same_weights(stopped, whole)


def test_row_8_damaged_checkpoints_do_not_displace_intact_checkpoints(
    complete: Start, tmp_path: Path, saved: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(saved, run)
    for step in (6, 8):
        damage(run / f"checkpoint-{step}step")
    keys = (RESUME, "keep_last_checkpoints=2", "save_steps=5", "max_train_steps=5")
    complete(run, *keys, processes=1)
    assert [Path(e["checkpoint"]).name for e in events(run, "resume")] == ["checkpoint-4step"]
    assert checkpoints(run) == [
        "checkpoint-4step",
        "checkpoint-5step",
        "superseded-checkpoint-6step",
        "superseded-checkpoint-8step",
    ]


def test_row_8_a_run_resumed_from_an_older_checkpoint_keeps_new_checkpoints(
    start: Start, tmp_path: Path, saved: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(saved, run)
    named = f"resume_from_checkpoint_dir={run}/checkpoint-2step"
    keys = ("keep_last_checkpoints=1", "save_steps=0", "max_train_steps=100000")
    resumed = start(run, named, *keys, processes=1, fault="slow:0.05")
    resumed.until((run / "superseded-checkpoint-8step").exists)
    resumed.until(lambda: bool(events(run, "resume")))
    os.kill(resumed.process.pid, signal.SIGTERM)
    resumed.wait()
    state = status(run)
    assert (state["state"], state["exit_code"]) == ("preempted", 75)
    assert set(checkpoints(run)) == {
        "checkpoint-2step",
        f"checkpoint-{state['step']}step",
        *(f"superseded-checkpoint-{step}step" for step in (4, 6, 8)),
    }


def test_row_8_a_stray_checkpoint_displaces_no_other(
    start: Start, tmp_path: Path, saved: Path
) -> None:
    run = tmp_path / "run"
    process = start(run, "keep_last_checkpoints=1", processes=1, fault="slow:0.05")
    process.until((run / "metrics.jsonl").exists)
    shutil.copytree(saved / "checkpoint-2step", run / "checkpoint-5000step")
    assert process.wait() == 0, process.errors[-3000:]
    assert checkpoints(run) == ["checkpoint-5000step", "checkpoint-8step"]
    assert start(run, RESUME, processes=1).wait() == 0
    (event,) = events(run, "resume")
    assert Path(event["checkpoint"]).name == "checkpoint-8step"
    assert checkpoints(run) == ["checkpoint-8step", "superseded-checkpoint-5000step"]


def test_row_11_a_rollback_loads_an_intact_earlier_checkpoint(
    complete: Start, tmp_path: Path
) -> None:
    """Step 6 is damaged when step 7 spikes, and a step 40 was copied into the folder."""
    keys = ("loss_spike_deviations=20", "loss_spike_window=4", "learning_rate=0.001")
    run = complete(tmp_path / "run", *keys, processes=1, fault="spoiled_spike:7")
    rollbacks = [(e["step"], e["to_step"]) for e in events(tmp_path / "run", "rollback")]
    assert rollbacks == [(7, 4)]
    assert f"{tmp_path}/run/checkpoint-6step is damaged and skipped" in run.errors
    final = json.loads((tmp_path / "run" / "checkpoint-8step" / "trainer_state.json").read_text())
    assert final["progress"]["step"] == 8
