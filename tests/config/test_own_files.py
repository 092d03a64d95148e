"""Configuration files of users win over files of the project, and all their faults are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.config.test_refusals import named, start
from tests.conftest import REPOSITORY
from tests.launching.helpers import run

CHECK = "check_only=true"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def read_table(output: str) -> dict[str, str]:
    """Returns the start-up table by row name, with the lines of a value joined."""
    values: dict[str, str] = {}
    for line in output.splitlines():
        name, value = line[:15].strip(), line[15:].strip()
        name = name or list(values)[-1]
        values[name] = values.get(name, "") + value
    return values


def test_a_file_of_the_user_wins_over_a_file_of_the_project(tmp_path: Path) -> None:
    write(
        tmp_path / "mine",
        v2="defaults:\n  - causal_lm_config\n  - data: webdocs\n  - model: llama_tiny\n  - _self_\n"
        "max_train_steps: 7\n",
    )
    write(
        tmp_path / "mine" / "model",
        llama_tiny="# @package _global_\nmodel_config_file: ${repo:examples/model/config.json}\n"
        "tokenizer_name: ${repo:examples/tokenizer}\nlearning_rate: 0.25\n",
    )
    done = start(tmp_path, "--config-dir", "mine", "--config-name", "v2", CHECK)
    assert (done.returncode, done.stderr) == (0, "")
    table = read_table(done.stdout)
    assert table["steps"].startswith("7 x ")
    assert "0.25" in table["learning rate"]
    webdocs = REPOSITORY / "hydra_configs" / "data" / "webdocs.yaml"
    assert sorted(table["configuration"].replace(" ", "").split(",")) == [
        str(webdocs),
        "mine/model/llama_tiny.yaml",
        "mine/v2.yaml",
    ]


@pytest.mark.long
def test_train_sh_accepts_a_configuration_file_of_the_user(tmp_path: Path) -> None:
    write(tmp_path / "mine", demo="defaults: [causal_lm_config, _self_]\nout_dir: runs/mine\n")
    code, output = run(tmp_path, "train.sh", BSMETA_CONFIG="mine/demo.yaml")
    assert code == 2, output
    assert "data_config.train_file in Hydra configuration: found null" in output
    assert (tmp_path / "runs" / "mine").exists()


def test_every_fault_of_the_files_is_named_with_its_path(tmp_path: Path) -> None:
    write(
        tmp_path / "mine",
        job="defaults:\n  - causal_lm_config\n  - data: webdocs\n  - model: lama_tiny\n  - _self_\n"
        "data_config.num_workers: 2\n"
        "learning_rat: 1\n"
        "adam_beta1: fast\n"
        "mixed_precision: no\n"
        "optimizer:\n"
        "data_config:\n"
        "  metadata_config:\n"
        "    metadata_list: url\n"
        "    schedule: [{shar: 1}]\n"
        "    random_sample_metadata_weights: {url: heavy}\n"
        "    html_parser_config: 3\n",
    )
    done = start(tmp_path, "--config-dir", "mine", "--config-name", "job", "seed=x", CHECK)
    assert done.returncode == 2
    assert named(done.stderr)[:11] == [
        "model",
        "adam_beta1",
        "mixed_precision",
        "data_config.metadata_config.metadata_list",
        "data_config.metadata_config.random_sample_metadata_weights.url",
        "data_config.metadata_config.schedule.0.shar",
        "data_config.metadata_config.html_parser_config",
        "data_config.num_workers",
        "learning_rat",
        "optimizer",
        "seed",
    ]
    for part in (
        'model in mine/job.yaml: found "lama_tiny", expected one of gpt2, ',
        "   Fix: - model: llama_tiny\n",
        "   Fix: write it nested, data_config: {num_workers: …}\n",
        "did you mean data_config.metadata_config.schedule.0.share?",
        "seed in the command line: found x, expected a value of type int",
        '   Fix: "no" with its quotes in YAML, or no on the command line\n',
    ):
        assert part in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [own, _self_]", "own, which is this file itself"),
        ("defaults: [other, _self_]", "other.yaml name each other"),
        ("- a", "own.yaml: found a list, expected keys and values"),
        ("3", "own.yaml: cannot be read: Invalid loaded object type: int"),
        ("a: [", "a YAML file cannot be read"),
        ("seed: 1", "expected the schema of CausalLMConfig as its first entry"),
    ],
)
def test_a_file_that_cannot_be_composed_is_refused(text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "mine", own=text, other="defaults: [own, _self_]")
    done = start(tmp_path, "--config-dir", "mine", "--config-name", "own", CHECK)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert message in done.stderr


def test_a_group_file_without_its_package_line_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "optimizer", mine="learning_rate: 3\n")
    done = start(tmp_path, "--config-dir=.", "--config-name", "demo", "optimizer=mine", CHECK)
    assert named(done.stderr) == ["optimizer"]
    assert "# @package _global_ in its first line" in done.stderr


def test_a_configuration_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.yaml")
    done = start(tmp_path, "--config-dir=.", "--config-name", "own", CHECK)
    assert done.returncode == 2
    assert f"{tmp_path}/own.yaml is a pipe, a socket or a device; expected a file" in done.stderr

    done = start(tmp_path, "--config-dir=.", "--config-name", "mine", CHECK)
    assert done.returncode == 2
    assert "expected a configuration: none in " in done.stderr
