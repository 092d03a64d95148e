"""Folders that not all processes share, and a save before the first step."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.ranks.shared_folder import find_leaders
from tests.disks import small_disk
from tests.launching.networks import free_port
from tests.training.ranks.rank_threads import run_ranks
from tests.warm import ENVIRONMENT, REPOSITORY, Warm

__all__ = ["small_disk"]

TRAIN = [
    sys.executable, str(REPOSITORY / "bsmeta" / "train.py"), "--config-name", "demo",
    "trackers=[]", "max_train_steps=2", "num_warmup_steps=0", "eval_steps=0", "save_steps=0",
    "gradient_accumulation_steps=1", "data_config.metadata_config.max_seq_len=64",
    "data_config.per_device_train_batch_size=1", "data_config.window_documents=8",
]  # fmt: skip
Ended = tuple[int, str]
"""Exit code and output of a process."""


def ranks(port: str) -> list[dict[str, str]]:
    """Returns the environments of two processes, each alone on its machine."""
    shared = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    return [{**ENVIRONMENT, **shared, "RANK": str(rank)} for rank in range(2)]


def train(folders: Sequence[Path], *arguments: str) -> list[Ended]:
    """Trains with two processes in separate working folders."""
    started = [
        Warm([*TRAIN, *arguments], environment, folder)
        for folder, environment in zip(folders, ranks(free_port()), strict=True)
    ]
    try:
        outputs = ["".join(process.communicate()) for process in started]
        return [(process.wait(), output) for process, output in zip(started, outputs, strict=True)]
    finally:
        for process in started:
            process.kill()


@pytest.fixture
def machines(tmp_path: Path) -> list[Path]:
    """The working folders of two machines."""
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    return folders


@pytest.mark.parametrize(
    ("machines_of_ranks", "folders_of_ranks", "leaders"),
    [
        ("aabb", "xxxx", ()),  # on a file system that both machines share
        ("aabb", "xxyy", (0, 0, 2, 2)),
        ("abba", "xyyx", (0, 1, 1, 0)),
        ("abc", "xyy", (0, 1, 1)),  # two of three machines share a folder
        ("aa", "xy", (0, 1)),
    ],
)
def test_ranks_find_those_that_share_their_folder(
    machines_of_ranks: str,
    folders_of_ranks: str,
    leaders: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = threading.local()
    monkeypatch.setattr(
        "bsmeta.training.ranks.shared_folder._identify_machine", lambda: str(machine.name)
    )
    monkeypatch.setattr("bsmeta.training.ranks.shared_folder._WAIT_S", 0.5)

    def find(processes: Processes) -> tuple[int, ...]:
        machine.name = machines_of_ranks[processes.rank]
        return find_leaders(tmp_path / folders_of_ranks[processes.rank], processes)

    found = run_ranks(len(machines_of_ranks), find)
    assert found == [leaders] * len(machines_of_ranks)
    assert not [*tmp_path.glob("*/.*")]


def test_a_folder_that_one_rank_cannot_write_is_refused_on_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folders = [tmp_path / "run", tmp_path / "file" / "run"]

    def find(processes: Processes) -> str:
        with pytest.raises(ConfigurationError) as refusal:
            find_leaders(folders[processes.rank], processes)
        return str(refusal.value)

    messages = run_ranks(2, find)
    assert messages == [messages[0]] * 2
    assert messages[0].startswith(f"staging_dir: {folders[1]} on {socket.gethostname()} cannot be ")


@pytest.mark.long
def test_two_working_folders_are_refused_before_the_first_step(machines: list[Path]) -> None:
    ended = train(machines, "out_dir=run")
    host = socket.gethostname()
    assert [code for code, _ in ended] == [2, 2]
    for _, output in ended:
        assert (
            f"out_dir: not all processes share one folder: rank 0 on {host} has "
            f"{machines[0]}/run and wrote a file there, which 1 of 2 ranks do not find: "
            f"rank 1 on {host} has {machines[1]}/run. Expected a folder on a file system that all"
        ) in output
        assert "Traceback" not in output
    left = {path.name for path in (machines[0] / "run").iterdir()}
    assert not {name for name in left if name.startswith((".shared", ".rehearsal", "checkpoint"))}
    status = json.loads((machines[0] / "run" / "status.json").read_text())
    assert (status["state"], status["step"], status["exit_code"]) == ("failed", 0, 2)
    assert not (machines[1] / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_the_same_path_on_two_file_systems_is_refused(tmp_path: Path) -> None:
    """The same absolute path leads to another disk on the second machine."""
    out_dir = tmp_path / "run"
    out_dir.mkdir()
    mount = f"mount -t tmpfs none {out_dir} && exec"
    other = ["unshare", "--mount", "sh", "-c", f'{mount} "$@"', "sh"]
    if subprocess.run([*other, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounts are not permitted here")
    started = [
        subprocess.Popen(
            [*prefix, *TRAIN, f"out_dir={out_dir}"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for prefix, environment in zip(([], other), ranks(free_port()), strict=True)
    ]  # fmt: skip
    outputs = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [2, 2], outputs
    assert f"rank 1 on {socket.gethostname()} has {out_dir}" in outputs[0]


@pytest.mark.long
def test_a_shared_folder_is_left_without_traces(machines: list[Path], tmp_path: Path) -> None:
    ended = train(machines, f"out_dir={tmp_path}/run")
    assert [code for code, _ in ended] == [0, 0], ended
    assert "rehearsed a save and a load in" in ended[0][1]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {name for name in names if "checkpoint" in name} == {"checkpoint-2step"}
    assert not {name for name in names if name.startswith((".shared", ".rehearsal"))}
    events = [
        json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    ]
    assert [event["step"] for event in events if event["event"] == "save"] == [2]


@pytest.mark.long
def test_a_save_that_cannot_succeed_fails_before_the_first_step(
    machines: list[Path], small_disk: Path
) -> None:
    (code, output), _ = train(machines, f"out_dir={small_disk}/run")
    assert code == 2
    assert f"the disk of {small_disk}/run is full or its quota used up" in output
    assert "step 1/2" not in output
    assert not [*small_disk.rglob("*checkpoint*"), *small_disk.rglob(".rehearsal")]
