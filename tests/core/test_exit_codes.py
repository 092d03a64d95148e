"""The scripts exit with the run's own code, although the launchers turn each one into 1."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from bsmeta.training.run_folder.folder import MARK
from tests.conftest import REPOSITORY, command, run_warm
from tests.launching.helpers import SMALL, end, run, start
from tests.waiting import wait_until

DEMO = {"BSMETA_CONFIG": "demo", "BSMETA_PROCESSES": "1"}


@pytest.fixture
def finished_run(tmp_path: Path) -> dict[str, str]:
    """The folder `run` of a finished run: content by file name."""
    folder = tmp_path / "run"
    folder.mkdir()
    files = {
        MARK: "",
        "metrics.jsonl": '{"event": "step", "step": 8}\n',
        "status.json": '{"state": "done", "step": 8, "exit_code": 0, "message": ""}\n',
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return files


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=1", "holds an earlier run; expected an empty folder"),
        pytest.param(
            "learning_rate=-1",
            "learning_rate in Hydra configuration: found -1.0",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_failed_start_leaves_the_folder_of_a_finished_run_unchanged(
    override: str, message: str, finished_run: dict[str, str], tmp_path: Path
) -> None:
    code, output = run(tmp_path, "train.sh", *SMALL, override, "out_dir=run", **DEMO)
    assert (code, message in output) == (2, True), output
    kept = {name: (tmp_path / "run" / name).read_text() for name in finished_run}
    assert kept == finished_run


@pytest.mark.parametrize("override", ["seed=1", "learning_rate=-1", "overwrite_out_dir=true"])
def test_a_run_refuses_a_folder_of_other_files(override: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    train = command(REPOSITORY / "bsmeta/train.py", "--config-name", "demo", processes=1)
    done = run_warm([*train, *SMALL, override, "out_dir=run"], tmp_path)
    assert done.returncode == 2, done.stderr
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("out_dir", [pytest.param(".", marks=pytest.mark.slow), "'${oc.env:HOME}'"])
def test_the_working_folder_and_home_are_refused_and_get_no_files(
    out_dir: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    code, output = run(home, "train.sh", *SMALL, f"out_dir={out_dir}", HOME=str(home), **DEMO)
    assert (code, "a folder of its own for the run" in output) == (2, True), output
    assert [entry for entry in home.iterdir() if entry.name != ".cache"] == []


@pytest.mark.slow
def test_a_signal_after_the_end_leaves_the_exit_code_0(tmp_path: Path) -> None:
    """The signal arrives when the run is done but its launcher still runs."""
    steps = ["max_train_steps=2", "num_warmup_steps=1"]
    script = start(tmp_path, "train.sh", *SMALL, *steps, "out_dir=run", **DEMO)
    status = tmp_path / "run" / "status.json"
    wait_until(
        lambda: status.exists() and json.loads(status.read_text())["state"] == "done", script
    )
    script.send_signal(signal.SIGTERM)
    code, output = end(script)
    assert code == 0, output
