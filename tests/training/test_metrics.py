"""Trackers: one run stays one run over a resume, and none of them can end a run.

wandb and trackio are no requirements: their tests are skipped where they are not installed.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.schema import TRACKERS
from bsmeta.core.errors import ConfigurationError
from bsmeta.training import metrics as metrics_module
from bsmeta.training.metrics import (
    TRACKERS_FILE,
    Progress,
    Throughput,
    Tracker,
    ensure_run_name,
    make_tracker_arguments,
    start_trackers,
)
from bsmeta.training.run_folder import RunFolder
from bsmeta.training.task import compute_flops_per_token
from tests.training.tied_embeddings import Tied

SCRIPT = Path(__file__).with_name("toy_task.py")
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


class Broken:
    """A tracker whose server is gone."""

    calls = 0

    def log(self, values: dict[str, Any], step: int | None) -> None:
        self.calls += 1
        raise ConnectionError("gone")

    def finish(self) -> None:
        self.calls += 1


class Recording:
    """A tracker that records its calls."""

    def __init__(self) -> None:
        self.logged: list[tuple[int | None, dict[str, Any]]] = []

    def log(self, values: dict[str, Any], step: int | None) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        pass


def test_trackers_receive_finite_numbers_only(tmp_path: Path) -> None:
    kept = Recording()
    tracker = Tracker(RunFolder(tmp_path), is_main=True, step=0, total_steps=2, external=[kept])
    tracker.record_event("eval", 2, bits={"url": 1.5}, mfu=math.nan, split="validation")
    tracker.record_event("save", 2, seconds=1.0)
    assert kept.logged == [(2, {"eval/bits/url": 1.5})]


def test_a_tracker_that_fails_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    run = RunFolder(tmp_path)
    with Tracker(run, is_main=True, step=0, total_steps=2, external=[broken]) as tracker:
        tracker.record_event("eval", 1, loss=1.0)
        tracker.record_event("eval", 2, loss=0.5)
    assert broken.calls == 1
    assert "Broken gets no more metrics (ConnectionError: gone)" in caplog.text
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [entry["loss"] for entry in logged] == [1.0, 0.5]


def test_an_undefined_value_is_null_in_the_log(tmp_path: Path) -> None:
    """JSON has neither NaN nor infinity."""
    with Tracker(RunFolder(tmp_path), is_main=True, step=0, total_steps=2) as tracker:
        tracker.record_event("eval", 1, loss=float("nan"), parts={"a": float("inf"), "b": [1.5]})
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"event": "eval", "step": 1, "loss": null, "parts": {"a": null, "b": [1.5]}}\n'
    )


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


CPU = torch.device("cpu")


def test_the_state_of_the_progress_is_a_copy_and_loads_into_another_run() -> None:
    progress = Progress(step=3, tokens=40, targets=30)
    progress.add_counts({"documents": 2.0})
    state = progress.state_dict()
    assert state == {
        "step": 3,
        "tokens": 40,
        "targets": 30,
        "counts": {"documents": 2.0},
        "unlogged": {"documents": 2.0},
        "totals": {"documents": 2.0},
    }
    progress.add_counts({"documents": 1.0})
    progress.step = 4
    progress.load_state_dict(state)
    assert progress == Progress(3, 40, 30, {"documents": 2.0}, {"documents": 2.0}, state["totals"])

    with pytest.raises(
        msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.tokens`"
    ):
        progress.load_state_dict(state | {"tokens": "40"})
    assert progress.tokens == 40


def test_speed_counts_tokens_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 100.0, 101.0])
    monkeypatch.setattr(metrics_module.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(metrics_module, "find_peak_flops", lambda device: 6 * 872 * 1000.0)
    speed = Throughput(compute_flops_per_token(Tied()), CPU, world_size=2)
    speed.add(tokens=90, padding=10, wait_s=0.25)
    speed.add(tokens=210, padding=90, wait_s=0.5)
    figures = speed.take_metrics()
    assert figures.pop("memory_gb") > 0
    assert figures == {
        "data_wait_s": 0.75,
        "step_s": 1.5,
        "tokens_per_s": 100.0,
        "mfu": 100.0 / (1000.0 * 2),
        "padding": 0.25,
    }
    speed.start()  # an evaluation until second 100 is not the loop's
    speed.add(tokens=50, padding=0, wait_s=0.0)
    assert speed.take_metrics()["tokens_per_s"] == 50.0


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("Tesla V100-SXM2-32GB", None),  # it has no bf16
    ],
)
def test_the_bf16_peak_is_found_by_the_name_of_the_gpu(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert metrics_module.find_peak_flops(torch.device("cuda")) == peak
