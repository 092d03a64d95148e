"""Two machines, with one and with two processes, against three processes on one."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.launching.helpers import EXPERIMENTS, SMALL, end, run
from tests.launching.networks import Network, loopback, namespaces
from tests.waiting import wait_until

OVERRIDES = (
    *SMALL,
    "max_train_steps=60",
    "log_documents=true",
    "data_config.num_streams=6",
)
Steps = Callable[[Path], dict[int, dict[str, Any]]]


def wait_for_step(out_dir: Path, machines: list[subprocess.Popen[str]], step: int) -> None:
    file = out_dir / "metrics.jsonl"
    wait_until(
        lambda: file.exists() and file.read_text().count('"event": "step"') >= step, *machines
    )


def count_per_rank(out_dir: Path) -> dict[str, dict[int, list[str]]]:
    return {
        file.name: {
            line["step"]: line["documents"]
            for line in map(json.loads, file.read_text().splitlines())
        }
        for file in out_dir.glob("documents-rank*.jsonl")
    }


@pytest.fixture(scope="module")
def three_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of three processes on one machine."""
    folder = tmp_path_factory.mktemp("three")
    variables = {"BSMETA_CONFIG": "demo", "BSMETA_PROCESSES": "3"}
    code, output = run(folder, "train.sh", *OVERRIDES, "out_dir=run", **variables)
    assert code == 0, output
    return folder / "run"


@pytest.fixture(params=[loopback, namespaces], ids=["loopback", "namespaces"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(request.param())
        except PermissionError as error:
            pytest.skip(str(error))


@pytest.mark.slow
def test_one_and_two_processes_on_two_machines_equal_three_on_one_machine(
    network: Network, three_processes: Path, steps: Steps, tmp_path: Path
) -> None:
    """The run is stopped by a signal to one machine, and continued from another folder."""
    two = tmp_path / "two"
    machines = network.start(tmp_path, *OVERRIDES, f"out_dir={two}", BSMETA_CONFIG="demo")
    wait_for_step(two, machines, 3)
    machines[1].send_signal(signal.SIGTERM)
    ends = [end(machine) for machine in machines]
    assert [code for code, _ in ends] == [75, 75], ends
    assert "SIGTERM: passed on" in ends[1][1]
    stopped = json.loads((two / "status.json").read_text())
    assert (stopped["state"], stopped["exit_code"]) == ("preempted", 75)
    assert 3 <= stopped["step"] < 60

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ends = [end(machine) for machine in network.start(elsewhere, BSMETA_RESUME=str(two))]
    assert [code for code, _ in ends] == [0, 0], ends
    assert [*steps(two)] == [*range(1, 61)]
    assert count_per_rank(two) == count_per_rank(three_processes)
    assert len(count_per_rank(three_processes)) == 3
    for step, event in steps(two).items():  # gloo adds in the order in which ranks are ready
        assert event["loss"] == pytest.approx(steps(three_processes)[step]["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "rank", "expected"),
    [
        ('{"127.0.0.1": 2, "192.0.2.7": 3}', "", "0 2 2 127.0.0.1 5\n"),
        ('{"192.0.2.7": 3, "127.0.1.1": 1}', "", "1 1 2 192.0.2.7 4\n"),  # Debian's own name
        ('{"192.0.2.7": 3, "localhost": 1}', "", "1 1 2 192.0.2.7 4\n"),
        ('{"127.0.0.1": 2, "localhost": 3}', "1", "1 3 2 127.0.0.1 5\n"),
        ('{"127.0.0.1": 2, "localhost": 3}', "", "is more than one of 127.0.0.1, localhost"),
        ('{"192.0.2.7": 2, "192.0.2.8": 3}', "", "is none of 192.0.2.7, 192.0.2.8"),
        ('{"127.0.0.1": 2}', "1", "BSMETA_NODE_RANK=1: expected 0 to 0"),
        ('{"127.0.0.1": "2"}', "", "127.0.0.1: found '2', expected a positive number"),
        ('{"127.0.0.1": true}', "", "127.0.0.1: found True, expected a positive number"),
        ('{"127.0.0.1": 2, "127.0.0.1": 3}', "", "machines.json: 127.0.0.1 more than once; "),
        ('{"192.0.2.7": 2}', "", "is none of 192.0.2.7; say which with BSMETA_NODE_RANK"),
        ('{"192.0.2.7": 2}', "1", "there is no GPU to count its processes by; add it to the file"),
        ('{"192.0.2.7": 2}', "0", "0 2 1 192.0.2.7 2\n"),
        ("[1, 2]", "", 'expected {"host": processes, ...}, found [1, 2]'),
        ("{", "", "not a JSON file"),
        (None, "", "No such file or directory"),
    ],
)
def test_a_machine_finds_its_rank_in_the_file(
    text: str | None, rank: str, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "machines.json"
    if text is not None:
        file.write_text(text)
    command = ["python", str(EXPERIMENTS / "machines.py"), str(file), rank]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if expected.endswith("\n"):
        assert (done.returncode, done.stdout) == (0, expected)
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert expected in done.stderr


def test_a_machine_missing_in_the_file_comes_last_with_all_its_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import machines

    monkeypatch.setattr(machines, "count_gpus", lambda: 4)
    hosts = {"192.0.2.7": 2, "192.0.2.8": 3}
    left_out = machines.with_left_out(hosts, "2")
    assert list(left_out.values()) == [2, 3, 4]
    assert machines.rank_of(left_out, "2") == 2
    assert machines.with_left_out(hosts, "1") == hosts
    assert machines.with_left_out({**hosts, "localhost": 1}, "3") == {**hosts, "localhost": 1}


@pytest.mark.parametrize(
    ("usable", "count", "chosen"),
    [
        (["GPU-a", "GPU-b", "GPU-c", "GPU-d"], 2, ["GPU-d", "GPU-c"]),
        (["GPU-a", "GPU-b", "GPU-c"], 2, ["GPU-c", "GPU-b"]),
        (["GPU-a", "GPU-b"], 1, ["GPU-b"]),
        (["GPU-a", "GPU-x"], 1, []),
    ],
)
def test_the_least_busy_gpus_are_chosen(
    usable: list[str], count: int, chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By free memory, and by utilization if memory is about the same."""
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import gpus

    report = "GPU-a, 900, 0\nGPU-b, 40200, 90\nGPU-c, 40100, 10\nGPU-d, 80000, 99\n"
    report += "GPU-e, [N/A], [N/A]\n"
    assert gpus.least_busy(report, usable, count) == chosen
