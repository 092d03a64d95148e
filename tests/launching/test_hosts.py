"""Two hosts with names, addresses and a network of their own, which loses packets or a host.

Two processes, one on each host, against two on one host: a sum of two gradients does not depend on
their order, so the losses are the same to the last bit.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launching.helpers import SMALL, end, run
from tests.launching.networks import Namespaces, namespaces
from tests.launching.test_machines import wait_for_step
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

DATA_PARALLEL, ZERO_2, FSDP_2 = "cpu.yaml", "cpu_zero2.yaml", "cpu_fsdp2.yaml"
STEPS = 60
OVERRIDES = (*SMALL, f"max_train_steps={STEPS}")
OUTAGE_S = 20
Losses = dict[int, float]


@pytest.fixture
def network() -> Iterator[Namespaces]:
    try:
        with namespaces() as network:
            yield network
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.fixture
def list_losses(steps: Callable[[Path], dict[int, dict[str, Any]]]) -> Callable[[Path], Losses]:
    return lambda out_dir: {step: event["loss"] for step, event in steps(out_dir).items()}


@pytest.fixture(scope="module")
def on_one_host(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The runs of two processes on one host, by launch file."""
    run_folders: dict[str, Path] = {}

    def train(launch_file: str) -> Path:
        if launch_file not in run_folders:
            folder = tmp_path_factory.mktemp("one_host")
            variables = {"BSMETA_LAUNCH_FILE": launch_file, "BSMETA_CONFIG": "demo"}
            code, output = run(folder, "train.sh", *OVERRIDES, "out_dir=run", **variables)
            assert code == 0, output
            run_folders[launch_file] = folder / "run"
        return run_folders[launch_file]

    return train


def start(
    network: Namespaces, folder: Path, launch_file: str, *overrides: str
) -> list[subprocess.Popen[str]]:
    """Starts a run of one process on each host, in `folder`/run."""
    arguments = (*OVERRIDES, f"out_dir={folder / 'run'}", *overrides)
    variables = {"BSMETA_LAUNCH_FILE": launch_file, "BSMETA_CONFIG": "demo"}
    return network.start(folder, *arguments, processes=(1, 1), **variables)


@pytest.mark.parametrize(
    ("launch_file", "lost_percent"),
    [(DATA_PARALLEL, 0), (ZERO_2, 0), (FSDP_2, 0), (DATA_PARALLEL, 2), (FSDP_2, 2)],
)
def test_two_hosts_train_like_one_host(
    network: Namespaces, on_one_host: Callable[[str], Path], list_losses: Callable[[Path], Losses],
    tmp_path: Path, launch_file: str, lost_percent: int,
) -> None:  # fmt: skip
    """No network interface is set, although each name resolves to a loopback address."""
    if lost_percent:
        network.lose(1, lost_percent)
    ends = [end(host) for host in start(network, tmp_path, launch_file)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert not lost_percent or network.heal(1) > 0
    assert list_losses(tmp_path / "run") == list_losses(on_one_host(launch_file))


@pytest.mark.parametrize(("launch_file", "away"), [(DATA_PARALLEL, 1), (FSDP_2, 0)])
def test_a_run_continues_after_a_host_was_unreachable(
    network: Namespaces, on_one_host: Callable[[str], Path], list_losses: Callable[[Path], Losses],
    tmp_path: Path, launch_file: str, away: int,
) -> None:  # fmt: skip
    """TCP resends lost packets, so that the run only waits."""
    hosts = start(network, tmp_path, launch_file)
    wait_for_step(tmp_path / "run", hosts, 3)
    network.cut(away)
    time.sleep(OUTAGE_S)
    assert [host.poll() for host in hosts] == [None, None]
    assert len(list_losses(tmp_path / "run")) < STEPS
    assert network.heal(away) > 0
    ends = [end(host) for host in hosts]
    assert [code for code, _ in ends] == [0, 0], ends
    assert list_losses(tmp_path / "run") == list_losses(on_one_host(launch_file))


NAMED = ("No sign of life from rank 0: its machine (gpu1)", "from rank 1 on gpu2 (last seen in")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("launch_file", "gone", "by"),
    [
        (DATA_PARALLEL, 1, "watchdog"),
        (ZERO_2, 0, "watchdog"),
        (FSDP_2, 1, "either"),
        (DATA_PARALLEL, 0, "either"),
    ],
)
def test_a_host_that_vanishes_is_named_and_the_run_resumes(
    network: Namespaces, on_one_host: Callable[[str], Path], list_losses: Callable[[Path], Losses],
    tmp_path: Path, launch_file: str, gone: int, by: str,
) -> None:  # fmt: skip
    """The watchdog detects it, or earlier a broken connection.

    The connection breaks only if something was being sent: where all that the lost host was to get
    had arrived, and the other one waits for its answer, TCP sends nothing that could fail.
    """
    timeout_s = 60
    if by == "either":
        network.give_up_after(1 - gone, 3)
    out_dir = tmp_path / "run"
    hosts = start(
        network, tmp_path, launch_file, "save_steps=5", f"distributed_timeout_s={timeout_s}"
    )
    wait_for_step(out_dir, hosts, 8)
    network.vanish(gone)
    code, output = end(hosts[1 - gone])
    assert code == 1, output
    status = json.loads((out_dir / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert NAMED[gone] in status["message"]
    if by == "watchdog":
        assert "no progress for 60 s in: step " in status["message"]
    assert NAMED[gone] in output
    assert f"ended with code 1 (failed); see {out_dir}/status.json" in output
    wait_until(lambda: network.processes(1 - gone) == [])

    network.heal(gone)
    ends = [
        end(host)
        for host in network.start(
            tmp_path, processes=(1, 1), BSMETA_LAUNCH_FILE=launch_file, BSMETA_RESUME=str(out_dir)
        )
    ]
    assert [code for code, _ in ends] == [0, 0], ends
    assert list_losses(out_dir) == list_losses(on_one_host(launch_file))


@pytest.mark.faults
def test_a_run_that_is_stopped_does_not_wait_long_for_a_lost_host(
    network: Namespaces, tmp_path: Path
) -> None:
    """Although the default timeout is half an hour, and nothing is sent that could fail."""
    hosts = start(network, tmp_path, DATA_PARALLEL)
    wait_for_step(tmp_path / "run", hosts, 3)
    network.vanish(1)
    hosts[0].send_signal(signal.SIGTERM)
    code, output = end(hosts[0])
    assert code == 1, output
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert status["message"].startswith("asked to stop, but no progress for 20 s in: step ")
    assert NAMED[1] in status["message"]
    wait_until(lambda: network.processes(0) == [])


@pytest.mark.faults
def test_hosts_that_lose_each_other_end_both(network: Namespaces, tmp_path: Path) -> None:
    hosts = start(network, tmp_path, DATA_PARALLEL, "distributed_timeout_s=60")
    wait_for_step(tmp_path / "run", hosts, 3)
    network.cut(1)
    ends = [end(host) for host in hosts]
    assert [code for code, _ in ends] == [1, 1], ends
    assert [NAMED[1 - host] in output for host, (_, output) in enumerate(ends)] == [True, True], (
        ends
    )
    wait_until(lambda: network.processes(0) + network.processes(1) == [])
