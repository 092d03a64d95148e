"""Launches that cannot work end with a message, and never hang."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY
from tests.launching.helpers import SMALL, end, environment, run, start
from tests.launching.networks import free_port
from tests.waiting import STUCK_S, wait_until

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
MACHINE_0 = {"BSMETA_NODES": "2", "BSMETA_NODE_RANK": "0", "BSMETA_MASTER_ADDR": "127.0.0.1"}
MACHINE_1 = {**MACHINE_0, "BSMETA_NODE_RANK": "1"}


@pytest.mark.parametrize(
    ("script", "arguments", "variables", "message"),
    [
        ("train.sh", [], {}, "neither BSMETA_CONFIG (a name in hydra_configs/, or a YAML file)"),
        (
            "train.sh",
            [],
            {"BSMETA_CONFIG": "demo", "BSMETA_RESUME": "runs/demo"},
            "BSMETA_CONFIG=demo and BSMETA_RESUME=runs/demo: expected one of them",
        ),
        ("train.sh", [], {"BSMETA_CONFIG": "dmo"}, "BSMETA_CONFIG=dmo: there is no"),
        ("train.sh", [], {"BSMETA_CONFIG": "./demo.yaml"}, "there is no such file"),
        ("train.sh", [], {"BSMETA_RESUME": "runs/demo"}, "no config.yaml there"),
        ("train.sh", ["--dryrun"], {"BSMETA_CONFIG": "demo"}, "--dryrun: expected key=value"),
        ("train.sh", ["learning_rat=1"], {"BSMETA_CONFIG": "demo"}, "did you mean learning_rate"),
        (
            "train.sh",
            [],
            {"BSMETA_CONFIG": "demo", "BSMETA_LAUNCH_FILE": "zero4.yaml"},
            "BSMETA_LAUNCH_FILE=zero4.yaml: no such file",
        ),
        (
            "train.sh",
            [],
            {"BSMETA_CONFIG": "demo", "BSMETA_PROCESSES": "two"},
            "BSMETA_PROCESSES=two: expected a positive number",
        ),
        (
            "several_machines.sh",
            [],
            {"BSMETA_CONFIG": "demo", "BSMETA_NODES": "2", "BSMETA_NODE_RANK": "0"},
            "BSMETA_MASTER_ADDR is not set",
        ),
        (
            "several_machines.sh",
            [],
            {"BSMETA_CONFIG": "demo", **MACHINE_0, "BSMETA_NODE_RANK": "2"},
            "BSMETA_NODE_RANK=2: expected 0 to 1, as BSMETA_NODES=2",
        ),
        (
            "several_machines.sh",
            [],
            {"BSMETA_CONFIG": "demo", "BSMETA_MACHINES": "m.json", "BSMETA_NODES": "2"},
            "BSMETA_MACHINES=m.json says all about the machines: unset BSMETA_NODES",
        ),
        ("slurm/job.sh", [], {"BSMETA_CONFIG": "demo"}, "not in a SLURM job"),
        ("slurm/train.sbatch", [], {"BSMETA_CONFIG": "demo"}, "not in a SLURM job"),
    ],
)
def test_a_wrong_call_is_refused(
    script: str, arguments: list[str], variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    code, output = run(tmp_path, script, *arguments, **variables)
    assert (code, message in output) == (2, True), output


@pytest.mark.long
def test_an_unreachable_master_is_named(tmp_path: Path) -> None:
    variables = {**MACHINE_1, "BSMETA_MASTER_PORT": free_port(), "BSMETA_START_TIMEOUT": "2"}
    code, output = run(tmp_path, "several_machines.sh", BSMETA_CONFIG="demo", **variables)
    assert code == 2
    assert f"nobody answers at 127.0.0.1:{variables['BSMETA_MASTER_PORT']} after 2 s" in output
    assert "Expected the address of machine 0 (BSMETA_MASTER_ADDR)" in output


@pytest.mark.long
def test_a_missing_machine_ends_the_wait(tmp_path: Path) -> None:
    variables = {**MACHINE_0, "BSMETA_MASTER_PORT": free_port(), "BSMETA_START_TIMEOUT": "3"}
    code, output = run(tmp_path, "several_machines.sh", BSMETA_CONFIG="demo", **variables)
    assert code == 1
    assert "2 machines must meet" in output
    assert "within 3 s (BSMETA_START_TIMEOUT); is each started" in output


@pytest.mark.slow
def test_a_master_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    """192.0.2.1 belongs to no machine (RFC 5737)."""
    variables = {**MACHINE_0, "BSMETA_MASTER_PORT": free_port(), "BSMETA_START_TIMEOUT": "3"}
    variables |= {"BSMETA_MASTER_ADDR": "192.0.2.1"}
    code, output = run(tmp_path, "several_machines.sh", BSMETA_CONFIG="demo", **variables)
    assert code == 1
    assert "2 machines must meet at 192.0.2.1:" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- MULTI_GPU\n", "launch.yaml: found list, expected keys and values"),
        ("distributed_type: [\n", "launch.yaml: not a YAML file"),
        ("distributed_type: MULTI_GPU\ndynamo_config: 'no'\n", "dynamo_config in launch.yaml: "),
        ("distributed_type: deepspeed\n", "(did you mean DEEPSPEED?)"),
        ("distributed_type: MULTI_GPU\nmixed_precision: no\n", "YAML reads no without quotes"),
        ("distributed_type: MULTI_GPU\nnum_proceses: 2\n", "(did you mean num_processes?)"),
    ],
)
@pytest.mark.parametrize(
    ("script", "variables"),
    [
        ("train.sh", {}),
        ("several_machines.sh", {**MACHINE_0}),
        ("slurm/job.sh", {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a"}),
    ],
)
def test_a_launch_file_that_accelerate_cannot_use_is_refused(
    script: str, variables: dict[str, str], text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "launch.yaml").write_text(text)
    variables = {"BSMETA_CONFIG": "demo", "BSMETA_LAUNCH_FILE": "launch.yaml", **variables}
    code, output = run(tmp_path, script, **variables)
    assert (code, "Traceback" in output) == (2, False), output
    assert "BSMETA_LAUNCH_FILE: " in output
    assert message in output


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ({"127.0.0.1": 1, "localhost": 1}, {"127.0.0.1": 1, "localhost": 1, "192.0.2.7": 1}),
            "machine 0 was given 2 machines, machine 1 of 3; expected the same BSMETA_MACHINES",
        ),
        pytest.param(
            ({"127.0.0.1": 1, "localhost": 1, "192.0.2.7": 1}, {"127.0.0.1": 1, "localhost": 1}),
            "machine 0 was given 3 machines, machine 1 of 2; expected the same BSMETA_MACHINES",
            marks=pytest.mark.slow,
        ),
        (
            ({"127.0.0.1": 1, "localhost": 2}, {"127.0.0.1": 1, "localhost": 3}),
            "machine 0 was given 3 processes in all, machine 1 of 4; expected the same",
        ),
    ],
)
def test_machine_files_that_differ_are_refused_on_both_machines(
    files: tuple[dict[str, int], dict[str, int]], message: str, tmp_path: Path
) -> None:
    """Long before BSMETA_START_TIMEOUT, which exceeds the time limit of this test."""
    port, machines = free_port(), []
    for rank in (1, 0):
        file = tmp_path / f"machines{rank}.json"
        file.write_text(json.dumps(files[rank]))
        variables = {"BSMETA_MACHINES": str(file), "BSMETA_NODE_RANK": str(rank)}
        variables |= {"BSMETA_MASTER_PORT": port, "BSMETA_CONFIG": "demo"}
        variables["BSMETA_START_TIMEOUT"] = str(2 * STUCK_S)
        machines.append(start(tmp_path, "several_machines.sh", *SMALL, **variables))
    for machine in machines:
        code, output = end(machine)
        assert code == 2, output
        assert message in output


@pytest.mark.long
def test_two_machines_with_the_same_number_are_refused(tmp_path: Path) -> None:
    port, machines = free_port(), []
    for rank in (1, 1, 0):
        variables = {**MACHINE_0, "BSMETA_NODES": "3", "BSMETA_NODE_RANK": str(rank)}
        variables |= {"BSMETA_MASTER_PORT": port, "BSMETA_CONFIG": "demo"}
        machines.append(start(tmp_path, "several_machines.sh", *SMALL, **variables))
    for machine in machines:
        code, output = end(machine)
        assert code == 2, output
        assert "two machines have the number 1; expected a BSMETA_NODE_RANK of its own" in output


def test_a_signal_ends_the_wait_for_the_other_machines(tmp_path: Path) -> None:
    port = free_port()
    variables = {**MACHINE_0, "BSMETA_MASTER_PORT": port, "BSMETA_CONFIG": "demo"}
    machine = start(tmp_path, "several_machines.sh", *SMALL, **variables)
    wait_until(lambda: listens(port), machine)
    machine.send_signal(signal.SIGTERM)
    code, output = end(machine)
    assert code == 1, output
    assert not listens(port)


def listens(port: str) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", int(port))) == 0


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, output = run(
            tmp_path,
            "several_machines.sh",
            BSMETA_CONFIG="demo",
            **MACHINE_0,
            BSMETA_MASTER_PORT=port,
        )
    assert code == 2
    assert f"port {port} of this machine is in use; choose another" in output


@pytest.mark.long
def test_a_wrong_number_of_processes_is_refused(tmp_path: Path) -> None:
    out_dir = f"out_dir={tmp_path / 'run'}"
    variables = {"BSMETA_CONFIG": "demo", "BSMETA_PROCESSES": "2", "BSMETA_WORLD_SIZE": "3"}
    code, output = run(tmp_path, "train.sh", *SMALL, out_dir, **variables)
    assert code == 2
    assert "WORLD_SIZE in the environment: found 2, expected 3, as BSMETA_WORLD_SIZE" in output


@pytest.mark.long
@NO_GPU
def test_a_launch_for_gpus_without_gpus_is_refused(tmp_path: Path) -> None:
    """Refused by the script, and by the training itself if no script was used."""
    variables = {"BSMETA_CONFIG": "demo", "BSMETA_LAUNCH_FILE": "zero2.yaml"}
    code, output = run(tmp_path, "train.sh", **variables)
    assert code == 2
    assert "zero2.yaml starts one process a GPU: found 0 GPUs" in output
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1"]
    command += ["--config_file", str(REPOSITORY / "experiments" / "accelerate" / "zero2.yaml")]
    command += [str(REPOSITORY / "bsmeta" / "train.py"), "--config-name", "demo", "out_dir=run"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (done.returncode, status["state"], status["exit_code"]) == (1, "failed", 2)
    assert "GPUs in this machine: found 0, expected one GPU per process" in status["message"]
