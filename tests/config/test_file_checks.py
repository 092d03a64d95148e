"""Files and folders that cannot be used are refused before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.files import folder_problems


def found(out_dir: Path) -> list[str]:
    problems = folder_problems(CausalLMConfig(out_dir=str(out_dir)))
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
