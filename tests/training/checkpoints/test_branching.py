"""A branch decays from a checkpoint, as the run would have that was never stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.values import find_value_problems
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.steps import set_branch_length
from bsmeta.training.checkpoints.branching import find_branch_problems
from bsmeta.training.checkpoints.checkpoint import Checkpoint
from tests.conftest import run_warm
from tests.test_main_job import Documents, Steps, job, kill_when, list_metrics, run

METADATA = "data_config.metadata_config"

DECAY_RUN = (
    "save_steps=4",
    "eval_steps=0",
    "keep_last_checkpoints=0",
    "num_warmup_steps=2",
    f"{METADATA}.metadata_list=[title,url]",
    f"{METADATA}.metadata_probability=1.0",
    f"{METADATA}.schedule=[{{share: 1.0}}, {{at_decay: true, metadata_probability: 0.0}}]",
)

STABLE = ("lr_scheduler_type=constant", "max_train_steps=9")

DECAY = ("lr_scheduler_type=wsd", "num_decay_steps=6", "decay_shape=1-sqrt")


@pytest.mark.parametrize(
    "launch_file", [None, pytest.param("cpu_zero2.yaml", marks=pytest.mark.slow)]
)
def test_a_branch_equals_the_run_that_was_never_stopped(
    launch_file: str | None, tmp_path: Path, steps: Steps, documents: Documents
) -> None:
    """The branch begins at step 8, where the metadata ends as well; it is killed and resumed."""
    whole, stable, branch = (tmp_path / name for name in ("whole", "stable", "branch"))
    run(job(launch_file, whole, *DECAY_RUN, *DECAY, "max_train_steps=14"), tmp_path)
    run(job(launch_file, stable, *DECAY_RUN, *STABLE), tmp_path)
    logged = (stable / "metrics.jsonl").read_bytes()
    command = job(
        launch_file,
        branch,
        *DECAY_RUN,
        *DECAY,
        f"decay_from={stable / 'checkpoint-8step'}",
        "resume_from_checkpoint_dir=latest",
    )
    kill_when(command, tmp_path, (branch / "checkpoint-12step").exists)
    run(command, tmp_path)
    expected, branch_steps = steps(whole), steps(branch)
    assert list(branch_steps) == list(range(9, 15))
    assert list_metrics(branch_steps) == {
        step: list_metrics(expected)[step] for step in branch_steps
    }
    assert branch_steps[14]["tokens"] == expected[14]["tokens"]
    assert documents(branch) == {step: documents(whole)[step] for step in branch_steps}
    rates = [event["learning_rate"] / 4e-3 for event in expected.values()]
    falling = [1 - (number / 6) ** 0.5 for number in range(6)]
    assert rates == pytest.approx([0.5, *[1.0] * 7, *falling])
    given = [set(event["parts"]) for event in expected.values()]
    assert given == [{"with_title", "with_url"}] * 8 + [{"without_metadata"}] * 6
    assert (stable / "metrics.jsonl").read_bytes() == logged


@pytest.mark.long
def test_a_checkpoint_that_no_run_may_decay_from_is_refused(tmp_path: Path) -> None:
    """In the same folder, in a decay, and with other data; the folders are unchanged."""
    stable, decayed = tmp_path / "stable", tmp_path / "decayed"
    run(job(None, stable, *DECAY_RUN, *STABLE), tmp_path)
    saved = stable / "checkpoint-4step"
    run(job(None, decayed, *DECAY_RUN, *DECAY, f"decay_from={saved}"), tmp_path)

    def refused(*overrides: str) -> str:
        command = job(None, tmp_path / "third", *DECAY_RUN, *DECAY, *overrides)
        done = run_warm(command, tmp_path)
        assert done.returncode == 2, done.stderr[-2000:]
        return done.stderr

    assert "found step 8, in the decay from step 4 on, expected a step up to 4" in refused(
        f"decay_from={decayed / 'checkpoint-8step'}"
    )
    assert "metadata_config.metadata_probability: 1.0 in the checkpoint, 0.5 now" in refused(
        f"decay_from={saved}", f"{METADATA}.metadata_probability=0.5"
    )
    assert "in Hydra configuration: found" in refused(f"decay_from={saved}", f"out_dir={stable}")
    assert "was trained with 4 rows a step" in refused(
        f"decay_from={saved}", "gradient_accumulation_steps=4"
    )
    (saved / "data_state.json").write_text("{}")
    assert "checkpoint-4step: it is damaged" in refused(f"decay_from={saved}")
    missing = refused(f"decay_from={stable / 'checkpoint-5step'}")
    assert "decay_from: " in missing
    assert "is not a checkpoint folder" in missing
    other = job(None, decayed, *DECAY_RUN, *DECAY, f"decay_from={stable / 'checkpoint-8step'}")
    done = run_warm([*other, "resume_from_checkpoint_dir=latest"], tmp_path)
    assert done.returncode == 2
    assert "expected the same to resume it, or another out_dir" in done.stderr
    status = json.loads((stable / "status.json").read_text())
    assert (status["state"], status["step"]) == ("done", 9)


def branch(**changes: Any) -> CausalLMConfig:
    config = CausalLMConfig(
        lr_scheduler_type="wsd",
        num_decay_steps=100,
        num_warmup_steps=50,
        decay_from="runs/stable/checkpoint-400step",
        out_dir="runs/branch",
    )
    return set_branch_length(replace(config, **changes))


def test_the_length_of_a_branch_follows_from_its_checkpoint() -> None:
    assert branch().max_train_steps == 500
    assert branch(decay_from=None).max_train_steps == 100_000
    assert RatePlan.of(branch(), 500).decay_start == 400
    shares = CausalLMConfig(lr_scheduler_type="wsd", decay_share=0.2)
    assert RatePlan.of(shares, 1000).decay_start == 800
    constant = CausalLMConfig(lr_scheduler_type="constant")
    assert RatePlan.of(constant, 1000).decay_start is None


@pytest.mark.parametrize(
    ("stable", "problem"),
    [
        ({"lr_scheduler_type": "constant"}, None),
        ({"lr_scheduler_type": "wsd", "num_decay_steps": 600}, None),
        (
            {"lr_scheduler_type": "wsd", "num_decay_steps": 601},
            "found step 400, in the decay from step 399 on, expected a step up to 399",
        ),
        (
            {"lr_scheduler_type": "linear"},
            'found "linear", expected constant or wsd: the rate has been falling since the warm-up',
        ),
        (
            {"lr_scheduler_type": "constant", "num_warmup_steps": 500},
            "found step 400, in the warm-up, expected a step from 500 on",
        ),
        (
            {"lr_scheduler_type": "constant", "learning_rate": 1e-4},
            "found 0.0001, expected 5e-05, the learning_rate of this run: it would jump",
        ),
        (
            {"lr_scheduler_type": "wsd", "num_train_epochs": 2.0},
            "found 2.0, expected null: it does not say at which step the decay began",
        ),
    ],
)
def test_a_branch_may_only_begin_in_the_stable_phase(
    stable: dict[str, Any], problem: str | None
) -> None:
    saved = Checkpoint(Path("runs/stable/checkpoint-400step"), 400)
    before = replace(CausalLMConfig(max_train_steps=1000, num_warmup_steps=50), **stable)
    problems = [
        str(problem) for problem in find_branch_problems(saved, before, branch().learning_rate)
    ]
    assert len(problems) == (problem is not None)
    assert all(problem in description for description in problems if problem)


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({"decay_from": "runs/stable/last"}, ["decay_from"]),
        ({"out_dir": "runs/stable"}, ["out_dir"]),
        ({"lr_scheduler_type": "cosine"}, ["lr_scheduler_type"]),
        ({"num_decay_steps": None, "max_train_steps": 900}, ["num_decay_steps"]),
        ({"num_train_epochs": 1.0}, ["num_train_epochs"]),
        ({"num_warmup_steps": 401}, ["lr_scheduler_type"]),
        ({"decay_from": None, "num_decay_steps": 99_951}, ["lr_scheduler_type"]),
        ({"decay_from": None, "num_decay_steps": 99_950}, []),
    ],
)
def test_settings_without_a_decay_are_refused_for_a_branch(
    changes: dict[str, Any], keys: list[str]
) -> None:
    config = branch(**changes)
    assert [problem.key for problem in find_value_problems(config)] == keys


def test_the_schedule_group_wsd_sets_the_decay() -> None:
    config = compose_command_line(CausalLMConfig, "demo", ["schedule=wsd"])
    assert (config.lr_scheduler_type, config.decay_shape) == ("wsd", "1-sqrt")
    assert RatePlan.of(config, config.max_train_steps).decay_start == 540
