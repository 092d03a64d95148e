"""The run folder: one run at a time, nothing overwritten unasked, logs cut where a run resumes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.training.run_folder import (
    MARK,
    METRICS,
    LineLog,
    RunFolder,
    write_refusal,
    write_status,
)


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    first.open(CausalLMConfig(), resume=False, overwrite=False)
    with pytest.raises(ConfigurationError, match="held by another run"):
        second.open(CausalLMConfig(), resume=True, overwrite=True)


def test_an_earlier_run_is_only_replaced_when_asked(tmp_path: Path) -> None:
    earlier = RunFolder(tmp_path)
    earlier.open(CausalLMConfig(), resume=False, overwrite=False)
    earlier._lock.release()
    (tmp_path / METRICS).write_text("{}\n")
    with pytest.raises(ConfigurationError, match="resume_from_checkpoint_dir=latest"):
        RunFolder(tmp_path).open(CausalLMConfig(), resume=False, overwrite=False)
    assert (tmp_path / METRICS).exists()
    RunFolder(tmp_path).open(CausalLMConfig(), resume=False, overwrite=True)
    assert not (tmp_path / METRICS).exists()
    assert (tmp_path / MARK).exists()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("names", [["thesis.tex"], [METRICS], ["a", "b", "c", "config.yaml"]])
def test_a_folder_that_no_run_has_made_is_refused_and_stays_as_it_is(
    tmp_path: Path, names: list[str], overwrite: bool, resume: bool
) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigurationError, match=f"holds .*{names[0]}.* expected a new or empty"):
        RunFolder(tmp_path).open(CausalLMConfig(), resume=resume, overwrite=overwrite)
    write_refusal(tmp_path, "learning_rate")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(names)
    assert {entry.read_text() for entry in tmp_path.iterdir()} == {"mine"}


def test_copied_checkpoints_may_be_resumed_but_their_folder_is_never_emptied(
    tmp_path: Path,
) -> None:
    (tmp_path / "checkpoint-5step").mkdir()
    (tmp_path / "thesis.tex").write_text("mine")
    run = RunFolder(tmp_path)
    run.open(CausalLMConfig(), resume=True, overwrite=True)
    run._lock.release()
    assert not (tmp_path / MARK).exists()
    with pytest.raises(ConfigurationError, match="thesis.tex"):
        RunFolder(tmp_path).open(CausalLMConfig(), resume=False, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_folder_that_also_holds_other_runs_is_not_emptied(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "first"):
        run = RunFolder(path)
        run.open(CausalLMConfig(), resume=False, overwrite=False)
        run._lock.release()
        (path / METRICS).write_text("{}\n")
    with pytest.raises(ConfigurationError, match="first, which belong to other runs"):
        RunFolder(tmp_path).open(CausalLMConfig(), resume=False, overwrite=True)
    assert (tmp_path / "first" / METRICS).exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "file" / "run", tmp_path / "loop" / "run", Path("/proc/run")):
        with pytest.raises(ConfigurationError, match="cannot be used: "):
            RunFolder(path).open(CausalLMConfig(), resume=False, overwrite=False)
        write_refusal(path, "learning_rate")


def test_a_start_after_a_refused_one_takes_the_folder(tmp_path: Path) -> None:
    write_refusal(tmp_path / "run", "learning_rate")
    RunFolder(tmp_path / "run").open(CausalLMConfig(), resume=False, overwrite=False)
    assert (tmp_path / "run" / MARK).exists()


def test_a_refusal_leaves_the_status_of_a_finished_run(tmp_path: Path) -> None:
    write_status(tmp_path, "done", 8, 0)
    write_refusal(tmp_path, "learning_rat")
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "done"
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_a_refusal_does_not_wait_for_accelerate() -> None:
    code = "import sys, bsmeta.training.run_folder; sys.exit('accelerate' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_lines_after_the_resumed_step_and_a_cut_line_are_dropped(tmp_path: Path) -> None:
    lines = [json.dumps({"event": "step", "step": step}) for step in (1, 2, 3)]
    for file in (METRICS, "documents-rank0.jsonl"):
        (tmp_path / file).write_text("\n".join([*lines, '{"event": "st']))
    RunFolder(tmp_path).begin(CausalLMConfig(), 2)
    for file in (METRICS, "documents-rank0.jsonl"):
        assert (tmp_path / file).read_text() == lines[0] + "\n" + lines[1] + "\n"


def test_the_configuration_of_an_earlier_run_stays_until_the_new_one_begins(tmp_path: Path) -> None:
    def seed() -> int:
        return int(yaml.safe_load((tmp_path / "config.yaml").read_text())["seed"])

    first = RunFolder(tmp_path)
    first.open(CausalLMConfig(seed=1), resume=False, overwrite=False)
    assert seed() == 1
    first.begin(CausalLMConfig(seed=1), 0)
    del first
    (tmp_path / "checkpoint-4step").mkdir()
    again = RunFolder(tmp_path)
    again.open(CausalLMConfig(seed=2), resume=True, overwrite=False)
    assert seed() == 1
    again.begin(CausalLMConfig(seed=2), 3)
    assert seed() == 2
    assert not (tmp_path / "checkpoint-4step").exists()


def test_a_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    log = LineLog(tmp_path / "log")
    log.write({"step": 1})
    assert (tmp_path / "log").read_text() == '{"step": 1}\n'
    log.close()


def test_status(tmp_path: Path) -> None:
    write_status(tmp_path / "run", "failed", 3, 2, "no shards")
    assert json.loads((tmp_path / "run" / "status.json").read_text()) == {
        "state": "failed",
        "step": 3,
        "exit_code": 2,
        "message": "no shards",
    }
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["status.json"]


def test_a_refusal_replaces_an_old_status_but_not_that_of_a_live_run(tmp_path: Path) -> None:
    def state() -> str:
        return json.loads((tmp_path / "status.json").read_text())["state"]

    write_status(tmp_path, "preempted", 8, 75)
    write_refusal(tmp_path, "num_processes")
    assert state() == "failed"
    live = RunFolder(tmp_path)
    live.open(CausalLMConfig(), resume=False, overwrite=False)
    write_status(tmp_path, "running", 0, None)
    write_refusal(tmp_path, "num_processes")
    assert state() == "running"
