"""Trackers: one run stays one run over a resume.

wandb and trackio are not requirements: their tests are skipped where they are not installed.
"""

from __future__ import annotations

import math
import re
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.schema import TRACKERS
from bsmeta.core.errors import ConfigurationError
from bsmeta.training.reporting.trackers import (
    TRACKERS_FILE,
    ensure_run_name,
    make_tracker_arguments,
    start_trackers,
)

SCRIPT = Path(__file__).parents[1] / "toy_task.py"

Launch = Callable[..., subprocess.CompletedProcess[str]]


def test_the_name_of_a_run_is_chosen_once(tmp_path: Path) -> None:
    folder = tmp_path / "run #1 of a/b".replace("/", "_")
    folder.mkdir()
    name = ensure_run_name(folder)
    assert re.fullmatch(r"run--1-of-a_b-[0-9a-f]{8}", name)
    assert ensure_run_name(folder) == name
    (folder / TRACKERS_FILE).write_text('{"run": ')  # the machine died while it was being written
    assert ensure_run_name(folder) != name


def test_a_resumed_run_continues_the_same_run_at_each_tracker(tmp_path: Path) -> None:
    first, second = make_tracker_arguments(tmp_path, 0), make_tracker_arguments(tmp_path, 4)
    assert (first["tensorboard"], second["tensorboard"]) == ({}, {"purge_step": 5})
    assert first["wandb"] == second["wandb"]
    assert first["trackio"] == second["trackio"]
    assert first["wandb"]["id"] == first["trackio"]["name"] == ensure_run_name(tmp_path)
    assert first["comet_ml"] == second["comet_ml"]
    assert first["swanlab"] == second["swanlab"]
    assert re.fullmatch("[0-9a-f]{32}", first["comet_ml"]["experiment_key"])
    assert re.fullmatch("[0-9a-f]{21}", first["swanlab"]["id"])
    assert [made["dvclive"]["resume"] for made in (first, second)] == [False, True]
    assert [made["clearml"]["continue_last_task"] for made in (first, second)] == [False, True]
    assert first["mlflow"] == second["mlflow"] == {"run_name": ensure_run_name(tmp_path)}


def test_every_tracker_of_accelerate_can_be_chosen_and_has_arguments(tmp_path: Path) -> None:
    assert sorted(TRACKERS) == sorted(LOGGER_TYPE_TO_CLASS)
    assert sorted(make_tracker_arguments(tmp_path, 0)) == sorted(TRACKERS)


def test_settings_that_are_not_finite_are_passed_as_text(tmp_path: Path) -> None:
    """Tensorboard warns of each number that is not finite; two defaults are infinite."""
    given: dict[str, Any] = {}

    class Recorder:
        def init_trackers(self, *_: Any, config: dict[str, Any], **__: Any) -> None:
            given.update(config)

    config = CausalLMConfig(trackers=["tensorboard"], learning_rate=math.inf, seed=3)
    start_trackers(Recorder(), config, tmp_path, 0)
    assert (given["learning_rate"], given["seed"]) == ("inf", 3)
    assert [value for value in given.values() if value == "-inf"] == ["-inf", "-inf"]
    numbers = [value for value in given.values() if isinstance(value, float)]
    assert all(map(math.isfinite, numbers))


def test_a_tracker_that_cannot_start_is_a_configuration_error(tmp_path: Path) -> None:
    class NoKey:
        def init_trackers(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("No API key configured")

    with pytest.raises(ConfigurationError) as caught:
        start_trackers(NoKey(), CausalLMConfig(trackers=["wandb"]), tmp_path, 0)
    assert "trackers in Hydra configuration: found wandb: RuntimeError: No API" in str(caught.value)
    assert "WANDB_MODE=offline" in str(caught.value)


def train_and_resume(launch: Launch, folder: Path, trackers: str, **environ: str) -> Path:
    """Trains eight steps, and then repeats the last four from a checkpoint."""
    run = folder / "run"
    keys = [f"trackers=[{trackers}]", "max_train_steps=8", "save_steps=4", "eval_steps=0"]
    keys += ["num_warmup_steps=2", f"out_dir={run}", "run_name=project"]
    launch(SCRIPT, *keys, processes=1, **environ)
    launch(SCRIPT, *keys, f"resume_from_checkpoint_dir={run}/checkpoint-4step", **environ)
    return run


def test_tensorboard_shows_each_step_once(launch: Launch, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train_and_resume(launch, tmp_path, "tensorboard")
    events = EventAccumulator(str(run / "project")).Reload()
    assert [scalar.step for scalar in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_wandb_offline_continues_the_same_run(launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run = train_and_resume(launch, tmp_path, "wandb", WANDB_MODE="offline")
    parts = sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(parts) == 2  # one a process; `wandb sync` makes one run of those with one id
    assert {part.name for part in parts} == {f"run-{ensure_run_name(run)}.wandb"}


def test_mlflow_has_runs_of_the_same_name(launch: Launch, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = train_and_resume(launch, tmp_path, "mlflow", MLFLOW_TRACKING_URI=store)
    client = mlflow.MlflowClient(store)
    (experiment,) = client.search_experiments(filter_string="name = 'project'")
    runs = client.search_runs([experiment.experiment_id])
    assert [found.info.run_name for found in runs] == [ensure_run_name(run)] * 2
    steps = [
        [metric.step for metric in client.get_metric_history(found.info.run_id, "loss")]
        for found in runs
    ]
    assert sorted(steps) == [[1, 2, 3, 4, 5, 6, 7, 8], [5, 6, 7, 8]]


def test_trackio_continues_the_same_run(launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    run = train_and_resume(launch, tmp_path, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"))
    (database,) = (tmp_path / "trackio").glob("*.db")
    rows = sqlite3.connect(database).execute("select distinct run_id, run_name from metrics")
    ((_, name),) = rows.fetchall()
    assert name == ensure_run_name(run)
