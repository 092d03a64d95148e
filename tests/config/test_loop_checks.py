"""What the loop cannot do, and names that are no names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.loop import loop_problems
from bsmeta.config.launch import Launch
from bsmeta.tasks import TASKS

PLAIN = Launch(source="test", num_processes=1)
DEEPSPEED = Launch(source="test", num_processes=2, distributed_type="DEEPSPEED")


def problems(launch: Launch = PLAIN, stage: int | None = None, **values: Any) -> list[str]:
    document = None if stage is None else {"zero_optimization": {"stage": stage}}
    return [
        one.key
        for one in loop_problems(CausalLMConfig(**values), launch, document, TASKS["causal_lm"])
    ]


def test_what_is_left_alone() -> None:
    assert problems() == []
    assert problems(async_save=True, on_nonfinite="skip") == []
    assert problems(DEEPSPEED, 1, on_nonfinite="skip") == []
    assert problems(DEEPSPEED, 0) == []


def test_what_an_engine_cannot_do() -> None:
    assert problems(DEEPSPEED, 0, on_nonfinite="skip") == ["on_nonfinite"]
    assert problems(DEEPSPEED, 2, async_save=True) == ["async_save"]
    assert problems(keep_best_by="loss", eval_steps=0) == ["keep_best_by"]
    assert problems(early_stopping_patience=2) == ["keep_best_by"]
    assert problems(export_best=True) == ["keep_best_by"]


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".hidden", "", "a b", "a=b", "x" * 200])
def test_a_run_name_is_no_path(name: str) -> None:
    assert problems(run_name=name) == ["run_name"]


@pytest.mark.parametrize("out_dir", ["runs/lr=1", "", "/", ".", "runs/\n", str(Path.home())])
def test_an_out_dir_is_a_folder_of_its_own(out_dir: str) -> None:
    assert problems(out_dir=out_dir) == ["out_dir"]
