"""An elastic launch: one of two machines dies, and another takes its place later."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from bsmeta.core.environment import hash_machine_name
from bsmeta.training.run_folder.events import read_environments
from bsmeta.training.run_folder.status import read_status
from tests.conftest import run_warm
from tests.engine_variables import ENGINE_NAMES, ENGINE_VARIABLES, FSDP_2, PLAIN, ZERO_2
from tests.launching.helpers import SMALL, environment
from tests.launching.networks import Network, free_port, loopback, namespaces
from tests.waiting import wait_until
from tests.warm import REPOSITORY, Warm

SCRIPT = Path(__file__).with_name("paced_train.py")
KILLED = REPOSITORY / "tests" / "tasks" / "killed_train.py"
UNSHARED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
STEPS = 24
OVERRIDES = (
    *(key for key in SMALL if not key.startswith("save_steps")),
    f"max_train_steps={STEPS}",
    "save_steps=5",
    "log_documents=true",
    "resume_from_checkpoint_dir=latest",
    "gradient_accumulation_processes=2",
)
Agent = Warm | subprocess.Popen[bytes]
Launch = Callable[..., subprocess.CompletedProcess[str]]
Steps = Callable[[Path], dict[int, dict[str, Any]]]
Documents = Callable[[Path], dict[int, list[str]]]


def set_pace(file: Path, step: int) -> None:
    """Allows all steps up to this one."""
    new = file.with_suffix(".new")
    new.write_text(str(step))
    new.replace(file)


def make_agent_command(address: str, port: str, *settings: str) -> list[str]:
    """Returns the beginning of a command line of torchrun that starts one process."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"),
        *("--rdzv-backend=c10d", "--rdzv-id=run", f"--rdzv-endpoint={address}:{port}", *settings),
    ]


def start_agent(
    network: Network, machine: int, host: int, folder: Path, port: str, engine: str
) -> Agent:
    """Starts torchrun on a machine, with one process that trains in `folder`/run.

    Args:
        host: The machine that hosts the rendezvous.
        engine: A key of `ENGINE_VARIABLES`.
    """
    rendezvous = f"is_host={int(machine == host)},last_call_timeout=10,keep_alive_interval=1"
    command = make_agent_command(
        network.hosts[host],
        port,
        "--nnodes=1:2",
        "--max-restarts=3",
        f"--rdzv-conf={rendezvous}",
        f"--local-addr={network.hosts[machine]}",
    )
    command += [str(SCRIPT), *OVERRIDES, f"out_dir={folder / 'run'}"]
    prefix = network.prefixes[machine]
    interface = "eth0" if prefix else "lo"
    variables = {
        **environment(**UNSHARED, PACE=str(folder / "pace"), GLOO_SOCKET_IFNAME=interface),
        **ENGINE_VARIABLES[engine],
    }
    if not prefix:
        return Warm(command, variables, REPOSITORY)
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            [*prefix, *command], cwd=REPOSITORY, env=variables, stdout=output, stderr=output
        )


def kill_machine(agent: Agent) -> None:
    """Kills an agent and its processes, as the loss of their machine does."""
    launcher = psutil.Process(agent.pid)
    for process in [launcher, *launcher.children(recursive=True)]:
        process.kill()


def read_events(out_dir: Path, kind: str) -> list[dict[str, Any]]:
    file = out_dir / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def has_reached(out_dir: Path, step: int, processes: int) -> Callable[[], bool]:
    """Returns whether the last start has this number of processes and has done a step."""

    def check() -> bool:
        starts = read_environments(out_dir)
        steps = [event["step"] for event in read_events(out_dir, "step")]
        return bool(starts) and starts[-1]["processes"] == processes and step in steps

    return check


@pytest.fixture(
    params=[
        pytest.param(loopback, marks=pytest.mark.long, id="loopback"),
        pytest.param(
            partial(namespaces, drops_packets=False), marks=pytest.mark.slow, id="namespaces"
        ),
    ]
)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(request.param())
        except PermissionError as error:
            pytest.skip(str(error))


def hash_hosts(network: Network) -> list[str]:
    """Returns the hashed names of the machines, as a run records them."""
    if not network.prefixes[0]:
        return [hash_machine_name()]
    return [hashlib.sha256(host.encode()).hexdigest()[:12] for host in network.hosts]


@pytest.mark.parametrize(
    ("lost_machine", "engine"),
    [
        (1, PLAIN),
        (1, FSDP_2),
        pytest.param(1, ZERO_2, marks=pytest.mark.slow),
        pytest.param(0, PLAIN, marks=pytest.mark.slow),
    ],
)
def test_a_run_loses_a_machine_and_gets_another(
    network: Network, lost_machine: int, engine: str, launch: Launch, steps: Steps,
    documents: Documents, tmp_path: Path,
) -> None:  # fmt: skip
    """Two processes until step 8, one from step 6 to about 14, then two again.

    Machine 0 has rank 0; the machine that stays hosts the rendezvous.
    """
    pace = tmp_path / "pace"
    set_pace(pace, STEPS)
    whole = tmp_path / "whole"
    launch(
        SCRIPT,
        *OVERRIDES,
        f"out_dir={whole}",
        processes=2,
        PACE=str(pace),
        **ENGINE_VARIABLES[engine],
    )

    out_dir = tmp_path / "run"
    port = free_port()
    set_pace(pace, 8)
    host = 1 - lost_machine
    staying = start_agent(network, host, host, tmp_path, port, engine)
    lost = start_agent(network, lost_machine, host, tmp_path, port, engine)
    agents = [staying, lost]
    try:
        wait_until(has_reached(out_dir, 8, processes=2), staying, lost)
        kill_machine(lost)
        set_pace(pace, 14)
        wait_until(has_reached(out_dir, 14, processes=1), staying)
        agents.append(start_agent(network, lost_machine, host, tmp_path, port, engine))
        wait_until(lambda: len(read_events(out_dir, "resume")) == 2, staying)
        set_pace(pace, STEPS)
        ends = [(agent.communicate(), agent.wait()) for agent in (staying, agents[-1])]
    finally:
        for agent in agents:
            agent.kill()
    assert [code for _, code in ends] == [0, 0], ends

    reduced, joined = read_events(out_dir, "resume")
    hosts = hash_hosts(network)
    left = hosts[-1:] if lost_machine == 0 else hosts[:1]
    assert (reduced["step"], reduced["processes"], reduced["restarts"]) == (5, [2, 1], 1)
    assert (reduced["previous_state"], reduced["machines"]) == ("failed", [hosts, left])
    assert reduced["engines"] == [ENGINE_NAMES[engine]] * 2
    assert reduced["changed"] == {
        "gradient_accumulation_processes": [2, 1],
        "gradient_accumulation_steps": [1, 2],
    }
    assert (joined["processes"], joined["restarts"]) == ([1, 2], 2)
    assert (joined["previous_state"], joined["machines"]) == ("preempted", [left, hosts])
    assert joined["step"] in (14, 15)  # the step in progress at the signal

    status = json.loads((out_dir / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["step"]) == ("done", 0, STEPS)
    assert documents(out_dir) == documents(whole)
    assert [*documents(whole)] == [*range(1, STEPS + 1)]
    for step, event in steps(whole).items():
        assert steps(out_dir)[step]["loss"] == pytest.approx(event["loss"], rel=1e-4)


@pytest.mark.long
def test_a_run_that_always_fails_at_one_step_ends(tmp_path: Path) -> None:
    """One start from step 0 and two from step 5; the launcher's further starts are refused."""
    command = make_agent_command("127.0.0.1", free_port(), "--nnodes=1", "--max-restarts=4")
    command += [str(KILLED), "--config-name=demo", *OVERRIDES, f"out_dir={tmp_path / 'run'}"]
    command += ["max_failed_starts=2"]
    done = run_warm(command, **{**environment(**UNSHARED), "KILL_AT": "7"})
    assert done.returncode == 1
    assert [start["step"] for start in read_environments(tmp_path / "run")] == [0, 5, 5]
    refusal = f"max_failed_starts=2: the last 2 starts of {tmp_path / 'run'} resumed from step 5"
    assert done.stderr.count(refusal) == 2
    assert read_status(tmp_path / "run")["state"] == "failed"
