"""Run folders that cannot be created or written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.paths import find_folder_problems, find_model_problems


def describe_folder(out_dir: Path) -> list[str]:
    """Returns the descriptions of a run folder by the checks; [] if they accept it."""
    problems = find_folder_problems(CausalLMConfig(out_dir=str(out_dir)))
    return [problem.found for problem in problems if problem.key == "out_dir"]


def test_a_run_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    nowhere = "a link that leads nowhere "
    assert describe_folder(tmp_path / "file") == ["a file"]
    assert describe_folder(tmp_path / "file" / "run") == [f"below {tmp_path}/file, which is a file"]
    assert describe_folder(tmp_path / "loop") == [nowhere + "(Too many levels of symbolic links)"]
    assert describe_folder(tmp_path / "dangling") == [nowhere + "(No such file or directory)"]
    assert describe_folder(tmp_path / "loop" / "run") == [
        f"below {tmp_path}/loop, which is {nowhere}(Too many levels of symbolic links)"
    ]
    assert describe_folder(tmp_path / "new" / "run") == []


def test_a_run_folder_without_write_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The superuser may write everywhere, so the system's answer is replaced."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    below = f"below {tmp_path}, which is "
    assert describe_folder(tmp_path) == ["a folder that you may not write to"]
    assert describe_folder(tmp_path / "run") == [below + "a folder that you may not write to"]


def test_folders_without_a_whole_model_are_refused_with_the_fix(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (problem,) = find_model_problems(CausalLMConfig(model_name=str(adapter)))
    assert problem.key == "model_name"
    assert problem.found == f'"{adapter}", an adapter without its base'
    assert problem.fix == (
        f"merge the adapter into its base: AutoPeftModelForCausalLM.from_pretrained('{adapter}')"
        ".merge_and_unload().save_pretrained(FOLDER), from peft; then name FOLDER"
    )

    only_tokenizer = {"model_config_file": "hydra.json", "tokenizer_name": str(adapter)}
    problems = find_model_problems(CausalLMConfig(**only_tokenizer))
    assert [problem.key for problem in problems] == ["model_config_file"]

    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    (run / "model" / "config.json").write_text("{}")
    (problem,) = find_model_problems(CausalLMConfig(model_name=str(run)))
    assert problem.found == f'"{run}", the folder of a run'
    assert problem.fix == f"model_name={run}/model"
    assert list(find_model_problems(CausalLMConfig(model_name=f"{run}/model"))) == []
