"""Guards: steps that are not finite, spikes, and evaluations that no longer improve."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.errors import TrainingError
from bsmeta.data.batch import MicroBatch, StepData
from bsmeta.training.checkpoints.trainer_state import GuardsState
from bsmeta.training.guards import EarlyStopping, Guards, NonFiniteGuard, SpikeGuard
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.step_stats import DataStats, ReducedStats, StepResult, StepStats
from bsmeta.training.task import Metric

NAN, INF = float("nan"), float("inf")
BATCHES = [
    MicroBatch({}, 1.0, 1, documents=["a:1", "a:2"]),
    MicroBatch({}, 1.0, 1, documents=["b:3"]),
]
LOSSES = [torch.tensor(1.5), torch.tensor(NAN)]


def fail(
    guard: NonFiniteGuard, step: int, norm: float | None = 1.0, *, weights_changed: bool = False
) -> dict[str, Any]:
    reduced = ReducedStats(ALONE, StepStats(DataStats(), stop=0.0))
    data = StepData(BATCHES, {})
    result = StepResult(step, data, 0.0, 0.1, LOSSES, reduced, weights_changed)
    return guard.skip_or_stop(result, StepStats(DataStats(), stop=0.0, loss=NAN, grad_norm=norm))


def test_the_documents_of_a_failed_step_are_written(tmp_path: Path) -> None:
    event = fail(NonFiniteGuard("skip", 1, tmp_path, rank=3), 7, norm=None)
    assert event == {"loss": "nan", "grad_norm": "None", "consecutive": 1}
    assert json.loads((tmp_path / "nonfinite-step7-rank3.json").read_text()) == {
        "step": 7,
        "rank": 3,
        "loss": "nan",
        "grad_norm": "None",
        "micro_batches": [
            {"loss_sum": "1.5", "documents": ["a:1", "a:2"]},
            {"loss_sum": "nan", "documents": ["b:3"]},
        ],
    }


def test_a_good_step_resets_the_count_of_skips_and_too_many_end_the_run(tmp_path: Path) -> None:
    steps = NonFiniteGuard("skip", 2, tmp_path, rank=0)
    for step in (1, 2):
        fail(steps, step)
    steps.record_finite_step()
    for step in (4, 5):
        fail(steps, step)
    with pytest.raises(TrainingError, match="3 such steps in a row"):
        fail(steps, 6)


def test_a_step_already_in_the_weights_cannot_be_skipped(tmp_path: Path) -> None:
    steps = NonFiniteGuard("skip", 9, tmp_path, rank=0)
    with pytest.raises(TrainingError, match="step 2: loss nan"):
        fail(steps, 2, norm=None, weights_changed=True)


def test_a_full_window_detects_a_spike_and_excludes_it() -> None:
    spikes = SpikeGuard(3.0, 4, limit=1)
    assert [spikes.detect_spike(loss) for loss in (9.0, 1.0, 1.1, 0.9)] == [False] * 4
    assert [spikes.detect_spike(loss) for loss in (1.0, 1.2, 5.0, 1.1)] == [
        False,
        False,
        True,
        False,
    ]
    assert list(spikes.losses) == [0.9, 1.0, 1.2, 1.1]
    again = SpikeGuard(3.0, 4, limit=1)
    again.load_state_dict(spikes.state_dict())
    assert again.detect_spike(5.0)


def test_rollbacks_are_counted_by_checkpoint_and_across_resumes() -> None:
    spikes = SpikeGuard(3.0, 4, limit=2)
    before_the_rollback = spikes.state_dict()
    spikes.count_rollback(10)
    spikes.load_state_dict(before_the_rollback)
    spikes.count_rollback(10)
    spikes.count_rollback(20)

    resumed = SpikeGuard(3.0, 4, limit=2)
    resumed.load_state_dict(json.loads(json.dumps(spikes.state_dict())))
    assert resumed.rollbacks == {10: 2, 20: 1}
    with pytest.raises(TrainingError, match="again after 2 rollbacks"):
        resumed.count_rollback(10)


def test_the_window_follows_an_accepted_new_level_of_the_loss() -> None:
    spikes = SpikeGuard(3.0, 4, limit=1)
    assert [spikes.detect_spike(loss) for loss in (1.0, 1.1, 0.9, 1.0, 5.0)] == [False] * 4 + [True]
    spikes.accept_spike(5.0)
    assert list(spikes.losses) == [1.1, 0.9, 1.0, 5.0]
    assert [spikes.detect_spike(loss) for loss in (5.0, 5.1, 4.9)] == [False] * 3


def test_without_a_threshold_no_spike_is_detected() -> None:
    spikes = SpikeGuard(0.0, 2, limit=1)
    assert not any(spikes.detect_spike(loss) for loss in (1.0, 1.0, 1e9))


def test_the_state_of_all_guards_matches_the_trainer_state_and_loads(
    tmp_path: Path,
) -> None:
    config = CausalLMConfig(
        on_nonfinite="skip", max_consecutive_skips=1, loss_spike_deviations=3.0,
        loss_spike_window=4, keep_best_by="score", early_stopping_patience=2,
    )  # fmt: skip
    guards = Guards.of(config, tmp_path, rank=0)
    fail(guards.nonfinite, 1)
    for loss in (9.0, 1.0, 1.1, 0.9, 1.0):
        assert not guards.spikes.detect_spike(loss)
    guards.spikes.count_rollback(2)
    for score in (2.0, 3.0):
        guards.early_stopping.record_evaluation([Metric("score", score)])

    state = guards.state_dict()
    assert state == {
        "consecutive_skips": 1,
        "last_losses": [1.0, 1.1, 0.9, 1.0],
        "rollbacks": {"2": 1},
        "early_stopping": {"best": 2.0, "without": 1},
    }
    assert state.keys() == GuardsState.__annotations__.keys()

    loaded = Guards.of(config, tmp_path, rank=0)
    loaded.spikes.accept_spike(7.0)  # replaced by the saved window
    loaded.load_state_dict(json.loads(json.dumps(state)) | {"phase": 0})
    assert loaded.state_dict() == state
    assert loaded.spikes.detect_spike(5.0)
    with pytest.raises(TrainingError, match="2 such steps in a row"):
        fail(loaded.nonfinite, 2)
    loaded.early_stopping.record_evaluation([Metric("score", 2.5)])
    assert loaded.early_stopping.is_due

    with pytest.raises(KeyError, match="last_losses"):
        loaded.load_state_dict({"consecutive_skips": 1})


TOY = Path(__file__).with_name("toy_task.py")
Launch = Callable[..., subprocess.CompletedProcess[str]]


def list_due(patience: int | None, better: Any, *values: float) -> list[bool]:
    guard, is_due_after = EarlyStopping("score", patience), []
    for value in values:
        guard.record_evaluation([Metric("other", 0.0), Metric("score", value, better=better)])
        again = EarlyStopping("score", patience)
        again.load_state_dict(json.loads(json.dumps(guard.state_dict())))
        assert again.is_due == guard.is_due
        guard = again
        is_due_after.append(guard.is_due)
    return is_due_after


def test_early_stopping_follows_the_direction_of_the_metric() -> None:
    assert list_due(2, "min", 3.0, 2.0, 2.0, 1.0, 1.5, 1.0) == [False] * 5 + [True]
    assert list_due(2, "max", 0.5, 0.6, 0.6, 0.4) == [False, False, False, True]
    assert list_due(1, "max", math.nan, 0.1, math.nan) == [True, False, True]
    assert list_due(None, "max", 0.5, 0.4, 0.3) == [False, False, False]


def test_a_run_without_the_metric_in_its_evaluation_never_ends_early() -> None:
    guard = EarlyStopping(None, 1)
    guard.record_evaluation([Metric("score", 1.0)])
    guard.record_evaluation([Metric("score", 2.0)])
    assert not guard.is_due


def events(out_dir: Path, *names: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (out_dir / "metrics.jsonl").read_text().splitlines())
    left_out = ("seconds", "loop_seconds", "checkpoint")
    return [
        {name: value for name, value in line.items() if name not in left_out}
        for line in lines
        if line["event"] in names
    ]


@pytest.mark.long
def test_two_processes_end_early_at_the_same_step_resumed_or_not(
    launch: Launch, tmp_path: Path
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    arguments = (
        "trackers=[]", "max_train_steps=50", "learning_rate=0.01", "lr_scheduler_type=constant",
        "num_warmup_steps=0", "eval_steps=2", "save_steps=2", "keep_last_checkpoints=0",
        "keep_best_by=at_one", "early_stopping_patience=3", "export_best=true",
    )  # fmt: skip
    # The toy's value at (1, 1) rises from the start, and lower is better: the first evaluation
    # stays the best.
    launch(TOY, *arguments, f"out_dir={whole}", processes=2)
    assert [e["step"] for e in events(whole, "eval")] == [2, 4, 6, 8]
    assert events(whole, "early_stop") == [{"event": "early_stop", "step": 8, "metric": "at_one"}]
    status = json.loads((whole / "status.json").read_text())
    assert (status["state"], status["step"], status["exit_code"]) == ("done", 8, 0)

    exported, best, last = (
        (whole / folder / "model.safetensors").read_bytes()
        for folder in ("model", "checkpoint-2step/model", "checkpoint-8step/model")
    )
    assert exported == best != last

    shutil.copytree(whole, resumed)  # as if killed in step 5
    for step in (6, 8):
        shutil.rmtree(resumed / f"checkpoint-{step}step")
    latest = (f"out_dir={resumed}", "resume_from_checkpoint_dir=latest")
    launch(TOY, *arguments, *latest, processes=2)
    names = ("eval", "early_stop", "save")
    assert events(resumed, *names) == events(whole, *names)

    push = "push_to_hub=owner/name"
    environ = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # nobody listens
    launch(TOY, *arguments, *latest, push, processes=2, **environ)  # a finished run stays finished
    assert events(resumed, *names) == events(whole, *names)
    assert [(e["step"], e["pushed"]) for e in events(resumed, "push")] == [(8, False)]
