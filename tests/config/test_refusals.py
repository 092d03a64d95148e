"""Broken command lines in separate processes: exit code 2, one message, all faults in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta import train
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.process import run_and_report
from tests.conftest import REPOSITORY, run_warm

TRAIN = REPOSITORY / "bsmeta" / "train.py"
DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_MIXED_PRECISION": "no"}
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}


def start(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_warm([sys.executable, str(TRAIN), *arguments], folder, **HIDDEN, **environ)


def named(message: str) -> list[str]:
    return re.findall(r"^\d+\. (\S+) in .*\n   Fix: .+$", message, re.M)


def test_one_message_names_faults_of_every_kind(tmp_path: Path) -> None:
    document = json.loads((REPOSITORY / "deepspeed_configs" / "cpu.json").read_text())
    document["gradient_accumulation_steps"] = "2"
    del document["gradient_clipping"]
    (tmp_path / "ds.json").write_text(json.dumps(document))
    ended = start(
        tmp_path,
        "--config-name",
        "demo",
        "model=lama_tiny",
        "learning_rat=1e-4",
        "logging_steps=${oc.env:UNSET_STEPS}",
        "data_config.train_file=nowhere/*.jsonl.gz",
        "data_config.metadata_config.prefix_on=last_piece",
        "mixed_precision=fp16",
        "out_dir=run",
        WORLD_SIZE="3",
        RANK="0",
        MASTER_PORT="29500",
        ACCELERATE_DEEPSPEED_CONFIG_FILE="ds.json",
        **DEEPSPEED,
    )
    assert ended.returncode == 2
    assert named(ended.stderr) == [
        "model",
        "learning_rat",
        "logging_steps",
        "data_config.metadata_config.prefix_on",
        "data_config.train_file",
        "MASTER_ADDR",
        "mixed_precision",
        "gradient_clipping",
        "gradient_accumulation_steps",
        "fp16.enabled",
        "data_config.num_streams",
    ]
    assert ended.stderr.count("configuration error: ") == 1
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 2)
    assert named(status["message"]) == named(ended.stderr)


def test_a_config_folder_of_the_user_is_composed_and_checked(tmp_path: Path) -> None:
    (tmp_path / "mine" / "parts").mkdir(parents=True)
    (tmp_path / "mine" / "parts" / "metadata.yaml").write_text(
        "metadata_list: [url]\nmax_seq_len: ${oc.env:LENGTH,256}\nprefix_maxtokens: 8\n"
    )
    (tmp_path / "mine" / "job.yaml").write_text(
        "defaults:\n  - causal_lm_config\n  - data: webdocs\n  - model: llama_tiny\n  - _self_\n"
        "data_config:\n  metadata_config: ${from_file:parts/metadata.yaml}\n"
    )
    arguments = ["--config-dir", "mine", "--config-name", "job", "check_only=true"]
    wrong = start(tmp_path, *arguments)
    assert wrong.returncode == 2
    assert "prefix_maxtokens" in wrong.stderr
    assert "did you mean data_config.metadata_config.prefix_max_tokens?" in wrong.stderr
    file = tmp_path / "mine" / "parts" / "metadata.yaml"
    file.write_text(file.read_text().replace("prefix_maxtokens", "prefix_max_tokens"))
    changed = "data_config.metadata_config.max_seq_len=${oc.env:LENGTH}"
    fine = start(tmp_path, *arguments, changed, LENGTH="512")
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "= 8 sequences = 4,096 tokens of 512 a sequence" in " ".join(fine.stdout.split())


def test_an_unreadable_launch_does_not_hide_other_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    monkeypatch.setenv("RANK", "first")
    config = compose_command_line(
        CausalLMConfig, "demo", ["save_steps=-1", f"out_dir={tmp_path}/run"]
    )
    assert run_and_report(lambda: train.main(config)) == 2
    errors = capsys.readouterr().err
    assert "1. WORLD_SIZE in the environment: found 'two'" in errors
    assert "2. save_steps in Hydra configuration: found -1" in errors


def test_secrets_that_a_saved_configuration_lacks_must_be_given_again(tmp_path: Path) -> None:
    secret = "https://" + "a1" * 12 + "@host.invalid/x"
    config = compose_command_line(CausalLMConfig, "demo", [f"data_config.exclude=['{secret}']"])
    (tmp_path / "config.yaml").write_text(format_yaml(config))
    saved = ("--config-dir", str(tmp_path), "--config-name", "config", "check_only=true")
    refused = start(tmp_path, *saved)
    assert refused.returncode == 2
    assert (
        "1. data_config.exclude in Hydra configuration: found "
        "['https://[redacted]@host.invalid/x'],"
        " expected the value with its secret, which no run saves with its configuration.\n"
        "   Fix: pass data_config.exclude=VALUE again"
    ) in refused.stderr
    given = start(tmp_path, *saved, f"data_config.exclude=['{secret}']")
    assert given.returncode == 0, given.stderr
    assert secret not in given.stdout + given.stderr
