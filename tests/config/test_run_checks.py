"""What the loop cannot do; names, files and folders that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks import find_folder_problems, find_loop_problems
from bsmeta.config.launch import Launch
from bsmeta.tasks import TASKS

PLAIN = Launch(source="test", num_processes=1)
DEEPSPEED = Launch(source="test", num_processes=2, distributed_type="DEEPSPEED")


def problems(launch: Launch = PLAIN, stage: int | None = None, **values: Any) -> list[str]:
    document = None if stage is None else {"zero_optimization": {"stage": stage}}
    return [
        one.key
        for one in find_loop_problems(
            CausalLMConfig(**values), launch, document, TASKS["causal_lm"]
        )
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
    extra = {"extra_steps_to_eval_save_at": [100]}
    assert problems(keep_best_by="bits_per_byte_with", eval_steps=0, **extra) == []
    assert problems(early_stopping_patience=2) == ["keep_best_by"]
    assert problems(export_best=True) == ["keep_best_by"]


def test_which_checkpoints_may_lack_the_model() -> None:
    for every in (None, 0, 500, 1500):
        assert problems(export_steps=every, save_steps=500) == []
    assert problems(export_steps=7, save_steps=0) == []  # at the end, and at extra steps
    assert problems(export_steps=700, save_steps=500) == ["export_steps"]
    best = {"export_best": True, "keep_best_by": "bits_per_byte_with"}
    assert problems(export_steps=0, **best) == ["export_steps"]
    assert problems(**best) == []


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".hidden", "", "a b", "a=b", "x" * 200])
def test_a_run_name_is_no_path(name: str) -> None:
    assert problems(run_name=name) == ["run_name"]


@pytest.mark.parametrize("out_dir", ["runs/lr=1", "", "/", ".", "runs/\n", str(Path.home())])
def test_an_out_dir_is_a_folder_of_its_own(out_dir: str) -> None:
    assert problems(out_dir=out_dir) == ["out_dir"]


def found(out_dir: Path) -> list[str]:
    problems = find_folder_problems(CausalLMConfig(out_dir=str(out_dir)))
    return [problem.found for problem in problems if problem.key == "out_dir"]


def test_a_run_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    nowhere = "a link that leads nowhere "
    assert found(tmp_path / "file") == ["a file"]
    assert found(tmp_path / "file" / "run") == [f"below {tmp_path}/file, which is a file"]
    assert found(tmp_path / "loop") == [nowhere + "(Too many levels of symbolic links)"]
    assert found(tmp_path / "dangling") == [nowhere + "(No such file or directory)"]
    assert found(tmp_path / "loop" / "run") == [
        f"below {tmp_path}/loop, which is {nowhere}(Too many levels of symbolic links)"
    ]
    assert found(tmp_path / "new" / "run") == []


def test_a_run_folder_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The superuser may write everywhere, so that the answer of the system is replaced."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    below = f"below {tmp_path}, which is "
    assert found(tmp_path) == ["a folder that you may not write"]
    assert found(tmp_path / "run") == [below + "a folder that you may not write"]
