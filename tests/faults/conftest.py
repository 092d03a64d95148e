"""Runs of the faulty task: started, watched, signalled, and compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import command
from tests.waiting import STUCK_S, wait_until
from tests.warm import REPOSITORY, Warm

SCRIPT = Path(__file__).with_name("faulty_task.py")
COMMON = (
    "trackers=[]",
    "max_train_steps=8",
    "save_steps=2",
    "eval_steps=4",
    "num_warmup_steps=2",
    "learning_rate=0.03",
    "log_documents=true",
    "data_config.per_device_train_batch_size=2",
    "gradient_accumulation_steps=2",
)
RESUME = "resume_from_checkpoint_dir=latest"


class Run:
    """A run of the faulty task in a separate process group.

    It is forked from a warm interpreter, unless there is a `wrapper` (the beginning of its command
    line) or `cold` asks for a new one.
    """

    def __init__(
        self,
        out_dir: Path,
        *arguments: str,
        processes: int = 2,
        stage: str = "",
        fault: str = "none:",
        script: Path = SCRIPT,
        options: Sequence[str] = (),
        wrapper: Sequence[str] = (),
        cold: bool = False,
        **env: str,
    ) -> None:
        self.out_dir = out_dir
        overridden = any(argument.startswith("out_dir=") for argument in arguments)
        own_folder = () if overridden else (f"out_dir={out_dir}",)
        environment = {"TOY_WIDTH": "64", "TOY_ZERO_STAGE": stage}
        arguments = (*options, *COMMON, *own_folder, *arguments)
        environment["PET_SHUTDOWN_TIMEOUT"] = str(STUCK_S)  # of torchrun, before it kills
        environment = {**os.environ, **environment, "FAULT": fault, **env}
        parts = [*wrapper, *command(script, *arguments, processes=processes, launcher=bool(stage))]
        cold = cold or bool(wrapper)
        self.process = begin(parts, environment) if cold else Warm(parts, environment)
        self.errors = ""

    def wait(self) -> int:
        """Waits for the end; returns the exit code and keeps the errors."""
        _, self.errors = self.process.communicate(timeout=STUCK_S)
        return self.process.returncode

    def until(self, reached: Callable[[], bool]) -> None:
        """Waits until `reached` returns true."""
        wait_until(reached, self.process)

    def workers(self) -> list[int]:
        """Returns the process ids of the ranks, in the order of their start."""
        listed = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in listed.stdout.split()]

    def list_pids(self) -> list[int]:
        """Returns the process ids of the launcher and the ranks."""
        return [self.process.pid, *self.workers()]

    def end(self) -> None:
        """Kills the remaining processes."""
        workers = self.workers() if self.process.poll() is None else []
        for pid in (self.process.pid, *workers):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def begin(parts: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Starts a command in a separate session."""
    return subprocess.Popen(
        parts,
        env=environment,
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    """Starts a run: `start(out_dir, "key=value", processes=2, stage="2", fault="kill:3:1")`."""
    runs: list[Run] = []

    def started(out_dir: Path, *arguments: str, **named: Any) -> Run:
        runs.append(Run(out_dir, *arguments, **named))
        return runs[-1]

    yield started
    for run in runs:
        run.end()


@pytest.fixture
def complete(start: Callable[..., Run]) -> Callable[..., Run]:
    """Returns a function that runs to a successful end."""

    def finish(out_dir: Path, *arguments: str, **named: Any) -> Run:
        run = start(out_dir, *arguments, **named)
        assert run.wait() == 0, run.errors[-3000:]
        return run

    return finish


def events(out_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the events of one type of a run."""
    lines = (out_dir / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def status(out_dir: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((out_dir / "status.json").read_text())
    return value


def list_metrics(out_dir: Path) -> dict[int, tuple[float, float]]:
    """Returns loss and learning rate of each step; for repeated steps, the last."""
    return {e["step"]: (e["loss"], e["learning_rate"]) for e in events(out_dir, "step")}


def documents(out_dir: Path) -> dict[int, list[str]]:
    """Returns the documents of each step over all ranks."""
    found: dict[int, list[str]] = {}
    for file in out_dir.glob("documents-rank*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            found.setdefault(line["step"], []).extend(line["documents"])
    return {step: sorted(names) for step, names in sorted(found.items())}


def same_weights(one: Path, other: Path) -> bool:
    """Whether two finished runs have the same weights, bit for bit."""
    a, b = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def same_run(one: Path, other: Path) -> bool:
    """Whether two runs have the same steps, documents and weights."""
    same = list_metrics(one) == list_metrics(other) and documents(one) == documents(other)
    return same and same_weights(one, other)


def checkpoints(out_dir: Path) -> list[str]:
    return sorted(entry.name for entry in out_dir.glob("*checkpoint-*"))
