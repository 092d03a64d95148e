"""Command lines as people type them: what is wrong, and what to type instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.command_line import read_command_line
from bsmeta.core.errors import ConfigurationError
from tests.config.test_refusals import named, start

DEMO = ["--config-name", "demo", "check_only=true"]


@pytest.mark.parametrize(
    ("arguments", "rest", "fix"),
    [
        (["--learning_rate", "1e-3", "seed=1"], ["seed=1"], "write learning_rate=1e-3"),
        (["seed=1", "--learning-rate=1e-3"], ["seed=1"], "write learning_rate=1e-3"),
        (["--learning_rat", "1e-3"], [], "write learning_rate=1e-3"),
        (["--config", "mine/v2.yaml"], [], "--config-dir mine --config-name v2"),
        (["--config", "demo"], [], "--config-name demo"),
        (["--resume", "seed=1"], ["seed=1"], "resume_from_checkpoint_dir=latest"),
        (["--resume", "runs/a"], [], "resume_from_checkpoint_dir=runs/a"),
        (
            ["--local_rank=0"],
            [],
            "accelerate launch --config_file experiments/accelerate/zero2.yaml …",
        ),
        (
            ["--num_processes", "2"],
            [],
            "accelerate launch --num_processes 2 SCRIPT …, before the script",
        ),
        (["--blub"], [], "drop it; see --help"),
    ],
)
def test_unknown_options_are_separated_from_the_arguments(
    arguments: list[str], rest: list[str], fix: str
) -> None:
    line = read_command_line(arguments, CausalLMConfig, "demo")
    assert [problem.fix for problem in line.problems] == [fix]
    assert line.overrides == rest


@pytest.mark.parametrize("quote", ["", "'"])
def test_names_that_are_not_in_utf_8_are_refused(quote: str) -> None:
    name = os.fsdecode(b"runs/caf\xe9")
    with pytest.raises(ConfigurationError) as caught:
        read_command_line([f"out_dir={quote}{name}{quote}"], CausalLMConfig, "demo")
    assert str(caught.value) == (
        "1 problem in the configuration\n"
        f"1. out_dir in the command line: found {quote}{name}{quote}, which is not in UTF-8, "
        "expected text in UTF-8.\n"
        "   Fix: correct the text, or rename the file or folder (convmv renames whole trees)"
    )


def test_a_working_folder_that_is_not_in_utf_8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigurationError) as caught:
        read_command_line([], CausalLMConfig, "demo")
    assert f"the working folder in the environment: found {folder}, which is not in UTF-8" in str(
        caught.value
    )


def test_variables_that_are_not_in_utf_8_are_refused(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    ended = start(tmp_path, *DEMO, "out_dir=${oc.env:NAME}", NAME=name)
    assert ended.returncode == 2
    assert (
        "1. out_dir in Hydra configuration: found caf\\udce9, which is not in UTF-8" in ended.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config-name", "dem"], "(did you mean demo?): demo, quick_run, v2 in "),
        (["--config-name", "mine/own.yaml"], "Fix: --config-dir mine --config-name own"),
        (["--config-dir", "mie"], "which is not there, expected a folder of configurations (did"),
        (["--config-dir", "mine/own.yaml"], "which is a file, expected a folder"),
        (["--config-dir", "mine", "--config-name", "x"], "own in {mine}; demo, quick_run, v2 in "),
        (["--config-name"], "expected one argument"),
        (["--config-name", "demo", "--info", "everything"], "invalid choice: 'everything'"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_composed_is_refused_with_the_choices(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigurationError) as caught:
        read_command_line(arguments, CausalLMConfig, "demo")
    assert message.format(mine=tmp_path / "mine") in str(caught.value)


def test_one_message_reports_all_problems(tmp_path: Path) -> None:
    done = start(tmp_path, *DEMO, "--local_rank=0", "--lr", "1", "recipes=meco", "demo", "seed=-1")
    assert done.returncode == 2
    assert named(done.stderr) == ["--local_rank", "--lr", "recipes", "demo", "seed"]
    assert "Fix: +recipes=meco" in done.stderr


def test_a_tilde_is_expanded_everywhere(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.yaml").write_text(
        "defaults: [causal_lm_config, data: webdocs, model: llama_tiny, _self_]\n"
        "out_dir: ~/from_file\n"
    )
    arguments = ["--config-dir=~/mine", "--config-name", "own"]
    environ = {"HOME": str(tmp_path)}
    done = start(tmp_path, *arguments, "check_only=true", **environ)
    assert (done.returncode, f"{tmp_path}/from_file" in "".join(done.stdout.split())) == (0, True)
    refused = start(
        tmp_path, *arguments, "out_dir=~/run", "seed=-1", "data_config.train_file=[~/a,~/b]",
        "data_config.cache_dir=~nobody_here/x", **environ,
    )  # fmt: skip
    assert (
        named(refused.stderr) == ["data_config.cache_dir", "seed"] + ["data_config.train_file"] * 2
    )
    assert f'found "{tmp_path}/a", which is not there' in refused.stderr
    assert sorted(os.listdir(tmp_path)) == ["mine", "run"]
    assert (tmp_path / "run" / "status.json").exists()


def test_a_key_that_is_given_twice_is_named_once(tmp_path: Path) -> None:
    done = start(tmp_path, *DEMO, "seed=1", "max_train_steps=40", "seed=2")
    assert done.returncode == 0
    assert done.stderr.count("seed is given twice on the command line: 2 counts, not 1") == 1


def test_warm_up_steps_are_refused_beside_a_warm_up_share(tmp_path: Path) -> None:
    done = start(tmp_path, *DEMO, "warmup_share=0.1", "num_warmup_steps=3")
    assert done.returncode == 2
    assert named(done.stderr) == ["num_warmup_steps"]
    assert "Fix: warmup_share=null num_warmup_steps=3, or only warmup_share" in done.stderr
    assert start(tmp_path, *DEMO, "warmup_share=0.1").returncode == 0  # demo.yaml has the steps
