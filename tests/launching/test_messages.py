"""The message of a refused start reaches the user on each machine, whoever exits first."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta.core.exit_codes import note_exit_code
from bsmeta.core.rank import is_reporter
from tests.conftest import REPOSITORY
from tests.launching.helpers import EXPERIMENTS, SMALL, end, environment, start
from tests.launching.networks import free_port
from tests.waiting import STUCK_S

TRAIN = str(REPOSITORY / "bsmeta" / "train.py")
MESSAGE = "1. learning_rate in Hydra configuration: found -1.0, expected a number above 0."


def call(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "launches"), [(2, 40), (8, 10)])
def test_every_launch_shows_the_message_once(processes: int, launches: int, tmp_path: Path) -> None:
    launch = ["-m", "accelerate.commands.launch", "--num_processes", str(processes)]
    launch += ["--config_file", str(EXPERIMENTS / "accelerate" / "cpu.yaml")]
    shown = []
    for number in range(launches):
        arguments = ["--config-name", "demo", "learning_rate=-1", f"out_dir=run{number}"]
        ended = call(tmp_path, *launch, TRAIN, *arguments)
        status = json.loads((tmp_path / f"run{number}" / "status.json").read_text())
        shown.append((ended.returncode, ended.stderr.count(MESSAGE), status["exit_code"]))
    assert shown == [(1, 1, 2)] * launches


def test_a_process_without_a_launcher_reports_under_any_rank(tmp_path: Path) -> None:
    ended = call(tmp_path, TRAIN, "--config-name", "demo", RANK="1")
    assert ended.returncode == 2
    assert "RANK in the environment: found 1, expected 0 to 0" in ended.stderr


def test_a_process_reports_if_the_first_of_its_machine_did_not(tmp_path: Path) -> None:
    """As if the first process had not found the error, so that no launcher ends this process."""
    code = (
        "import runpy, sys\nfrom bsmeta.core import process\nprocess.REPORTER_WAIT_S = 0.1\n"
        f"sys.argv = [{TRAIN!r}, '--config-name', 'demo', 'learning_rate=-1', 'out_dir=run']\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    launched = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "LOCAL_WORLD_SIZE": "2"}
    ended = call(tmp_path, "-c", code, **launched)
    assert (ended.returncode, MESSAGE in ended.stderr) == (2, True), ended.stderr


@pytest.mark.parametrize(
    ("environ", "reports"),
    [
        ({}, True),
        ({"RANK": "1", "LOCAL_RANK": "1"}, True),
        ({"RANK": "8", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}, True),
        ({"RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}, False),
    ],
)
def test_only_one_process_per_machine_reports_under_a_launcher(
    environ: dict[str, str], reports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert is_reporter() is reports


@pytest.mark.slow
@pytest.mark.parametrize("refused", [0, 1])
def test_a_machine_that_refuses_ends_the_other_in_seconds(refused: int, tmp_path: Path) -> None:
    """Learning rates differ between two machines; the other would wait for half an hour."""
    port, machines = free_port(), []
    for machine in (1, 0):
        rate = "-1" if machine == refused else "1e-3"
        variables = {
            "BSMETA_CONFIG": "demo",
            "BSMETA_NODES": "2",
            "BSMETA_NODE_RANK": str(machine),
            "BSMETA_MASTER_ADDR": "127.0.0.1",
            "BSMETA_MASTER_PORT": port,
            "BSMETA_PROCESSES": "1",
        }
        arguments = [*SMALL, f"learning_rate={rate}", f"out_dir={tmp_path / 'run'}"]
        machines.append(start(tmp_path, "several_machines.sh", *arguments, **variables))
    ends = [end(machine) for machine in machines][::-1]
    assert [MESSAGE in output for _, output in ends] == [True, True], ends
    assert [code for code, _ in ends] == [2, 2], ends
    assert "another machine did not start: " in ends[1 - refused][1]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 2)


def test_the_first_exit_code_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later codes come from processes that the launcher ended because of the first."""
    file = tmp_path / "code"
    file.touch()
    monkeypatch.setenv("BSMETA_EXIT_CODE_FILE", str(file))
    for code in (0, 2, 75):
        note_exit_code(code)
    assert file.read_text() == "2\n"


def test_the_state_of_a_run_is_read_in_a_turkish_locale(tmp_path: Path) -> None:
    """There, sed's range a-z does not contain the letter i."""
    compiler = shutil.which("localedef")
    if compiler is None:
        pytest.skip("no localedef to make the locale")
    locale = ["-i", "tr_TR", "-f", "UTF-8", str(tmp_path / "tr_TR.UTF-8")]
    if subprocess.run([compiler, *locale], capture_output=True, check=False).returncode:
        pytest.skip("the sources of the locale are not installed")

    (tmp_path / "status.json").write_text('{"state": "failed", "exit_code": 1}\n')
    script = f"OUT_DIR=. LAUNCHER_CODE=1; . {EXPERIMENTS}/common.sh; read_outcome -; echo $STATE"
    variables = environment(LC_ALL="tr_TR.UTF-8", LOCPATH=str(tmp_path))
    shell = ["bash", "-c", script]
    ended = subprocess.run(
        shell, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "failed\n"
