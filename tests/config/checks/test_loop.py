"""Settings that the training loop refuses: engines, evaluations, exports, and names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.loop import find_loop_problems
from bsmeta.config.launch import Launch
from bsmeta.tasks import TASKS

PLAIN = Launch(source="test", num_processes=1)
DEEPSPEED = Launch(source="test", num_processes=2, distributed_type="DEEPSPEED")


def list_refused_keys(launch: Launch = PLAIN, stage: int | None = None, **values: Any) -> list[str]:
    """Returns the keys that the checks of the loop refuse; `stage` is that of ZeRO."""
    document = None if stage is None else {"zero_optimization": {"stage": stage}}
    config = CausalLMConfig(**values)
    problems = find_loop_problems(config, launch, document, TASKS["causal_lm"])
    return [problem.key for problem in problems]


def test_defaults_and_supported_engines_are_accepted() -> None:
    assert list_refused_keys() == []
    assert list_refused_keys(async_save=True, on_nonfinite="skip") == []
    assert list_refused_keys(DEEPSPEED, 1, on_nonfinite="skip") == []
    assert list_refused_keys(DEEPSPEED, 0, async_save=True) == []


def test_settings_that_the_engine_or_the_evaluations_do_not_support_are_refused() -> None:
    assert list_refused_keys(DEEPSPEED, 0, on_nonfinite="skip") == ["on_nonfinite"]
    assert list_refused_keys(keep_best_by="loss", eval_steps=0) == ["keep_best_by"]
    extra = {"extra_steps_to_eval_save_at": [100]}
    assert list_refused_keys(keep_best_by="bits_per_byte_with", eval_steps=0, **extra) == []
    assert list_refused_keys(early_stopping_patience=2) == ["keep_best_by"]
    assert list_refused_keys(export_best=True) == ["keep_best_by"]


def test_export_steps_is_a_multiple_of_save_steps() -> None:
    for every in (None, 0, 500, 1500):
        assert list_refused_keys(export_steps=every, save_steps=500) == []
    assert list_refused_keys(export_steps=7, save_steps=0) == []  # at the end, and at extra steps
    assert list_refused_keys(export_steps=700, save_steps=500) == ["export_steps"]
    best = {"export_best": True, "keep_best_by": "bits_per_byte_with"}
    assert list_refused_keys(export_steps=0, **best) == ["export_steps"]
    assert list_refused_keys(**best) == []


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".hidden", "", "a b", "a=b", "x" * 200])
def test_a_run_name_that_is_a_path_is_refused(name: str) -> None:
    assert list_refused_keys(run_name=name) == ["run_name"]


@pytest.mark.parametrize(
    "out_dir",
    [
        "az://box/run",
        "hf://me/run",
        "gs://bucket",
        "gs://me:pass@b/run",
        "gcs://bucket/run",
        "s3://bucket",
        "s3://bucket/",
        "s3://B/run",
        "s3://b/run?token=1",
        "s3://me:pass@b/run",
    ],
)
def test_an_address_that_cannot_hold_a_run_is_refused(out_dir: str) -> None:
    for url in ("s3://bucket/runs/first", "gs://my_bucket.example.com/runs/first"):
        assert list_refused_keys(out_dir=url) == []
    assert list_refused_keys(out_dir=out_dir) == ["out_dir"]


@pytest.mark.parametrize("out_dir", ["runs/lr=1", "", "/", ".", "runs/\n", str(Path.home())])
def test_a_run_folder_that_is_shared_or_unprintable_is_refused(out_dir: str) -> None:
    assert list_refused_keys(out_dir=out_dir) == ["out_dir"]
