"""Programs that are run from Python: their runs, their output, their errors, and their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bsmeta
from tests.conftest import REPOSITORY
from tests.waiting import wait_until

SHORT = {
    "max_train_steps": 2,
    "num_warmup_steps": 0,
    "eval_steps": 0,
    "save_steps": 1,
    "logging_steps": 1,
    "trackers": [],
    "data_config": {"metadata_config": {"max_seq_len": 64}},
}


@pytest.mark.long
def test_a_model_is_trained_and_its_run_is_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = bsmeta.train_model("demo", {**SHORT, "out_dir": str(tmp_path / "run")})
    assert run.status().state == "done"
    assert [row["step"] for row in run.metrics("step")] == [1, 2]
    assert "step 2/2" in capsys.readouterr().out

    config = replace(run.config, out_dir=str(tmp_path / "again"))
    again = bsmeta.train_model(config, {"max_train_steps": 1})
    assert [row["step"] for row in again.metrics("step")] == [1]
    assert again.metrics("step")[0]["loss"] == run.metrics("step")[0]["loss"]


@pytest.mark.slow
def test_several_processes_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch_file = tmp_path / "two.yaml"
    text = (REPOSITORY / "experiments/accelerate/cpu.yaml").read_text()
    launch_file.write_text(text.replace("num_processes: 1", "num_processes: 2"))
    overrides = {**SHORT, "gradient_accumulation_steps": 1, "out_dir": str(tmp_path / "run")}
    run = bsmeta.train_model("demo", overrides, launch_file=launch_file)
    assert run.status().state == "done"
    assert "2 processes, data parallel" in capsys.readouterr().out


def test_wrong_arguments_are_refused_before_or_by_the_program(tmp_path: Path) -> None:
    with pytest.raises(bsmeta.UserError, match="sed.*did you mean seed"):
        bsmeta.train_model("demo", {"sed": 1})
    with pytest.raises(bsmeta.UserError, match="check_only=True: makes no run"):
        bsmeta.train_model("demo", {"check_only": True})
    missing = {"data_config.train_file": f"{tmp_path}/missing/*.jsonl", "out_dir": str(tmp_path)}
    with pytest.raises(bsmeta.UserError, match=r"bsmeta train: (.|\n)*missing/\*.jsonl"):
        bsmeta.train_model("demo", missing)
    with pytest.raises(bsmeta.UserError, match="meant: bsmeta annotate"):
        bsmeta.run_program("anotate")
    with pytest.raises(bsmeta.UserError, match="arguments='a b': expected a list"):
        bsmeta.run_program("init", arguments="a b")


def test_any_program_runs_with_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bsmeta.run_program("init", arguments=[str(tmp_path / "project")])
    assert (tmp_path / "project" / "hydra_configs" / "demo.yaml").is_file()
    assert f"to {tmp_path}/project" in capsys.readouterr().out
    bsmeta.run_program("configs", show_output=False)
    assert capsys.readouterr().out == ""


@pytest.mark.long
def test_an_interruption_saves_the_run(tmp_path: Path) -> None:
    """In a separate process, which receives Ctrl+C after the first step."""
    code = (
        "import json, sys, bsmeta\n"
        "try:\n"
        "    bsmeta.train_model('demo', json.loads(sys.argv[1]))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    overrides = {**SHORT, "max_train_steps": 100_000, "out_dir": str(tmp_path / "run")}
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(overrides)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    wait_until(lambda: len(list((tmp_path / "run").glob("checkpoint-*step"))) > 0, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert output.endswith("interrupted\n")
    assert bsmeta.open_run(tmp_path / "run").status().state == "preempted"
