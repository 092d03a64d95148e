"""Settings of all tests, and fixtures that start real processes."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from bsmeta.core import progress
from tests.warm import REPOSITORY, Warm

# Several tests, and several processes of one, share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a process of pytest holds, up to 2 GB, is not garbage of the loader processes and others that
# tests fork; each of them would take a second to look through it, and copy it.
os.register_at_fork(after_in_child=gc.freeze)

# Help and tables are folded to the width of the terminal that the tests are started in, if it is
# exported; tests of a width set their own.
os.environ.pop("COLUMNS", None)

# Runs that tests start inherit what is ignored, as it is under nohup and in the background of a
# script; those tests are about what these signals do.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Examples that take long on a busy machine are not wrong ones.
settings.register_profile("bsmeta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bsmeta")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names bytes by their number: gzip files hold the time, and workers must agree on names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(
    report: object,
) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Replaces lone surrogates: a worker that cannot send a report ends the whole session."""
    report_data = yield
    return replace_surrogates(report_data)


def replace_surrogates(value: Any) -> Any:
    """Returns a value of strings, sequences and mappings with `?` for each lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {replace_surrogates(name): replace_surrogates(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(replace_surrogates(part) for part in value)
    return value


def command(script: Path, *arguments: str, processes: int, launcher: bool = False) -> list[str]:
    """Returns the command line that starts `script`, with torchrun for several processes."""
    start = [sys.executable]
    if processes > 1 or launcher:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return [*start, str(script), *arguments]


@pytest.fixture
def launch() -> Callable[..., CompletedProcess[str]]:
    """Runs a script to its end: `launch(script, "key=value", processes=2, NAME="environment")`."""

    def run(
        script: Path, *arguments: str, processes: int = 1, check: bool = True, **environment: str
    ) -> CompletedProcess[str]:
        started = command(script, *arguments, processes=processes)
        done = run_warm(started, REPOSITORY, **environment)
        assert not check or done.returncode == 0, done.stderr[-4000:]
        return done

    return run


def run_warm(
    command: list[str], folder: Path = REPOSITORY, **environment: str
) -> CompletedProcess[str]:
    """Runs a command line of Python to its end, forked from a warm interpreter."""
    process = Warm(command, {**os.environ, **environment}, folder)
    try:
        output, errors = process.communicate()
    finally:
        process.kill()
    return CompletedProcess(command, process.wait(), output, errors)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list with an item for each progress report of this process to a watchdog."""
    times: list[int] = []
    monkeypatch.setattr(progress._Progress, "report", lambda _: times.append(len(times)))
    return times


@pytest.fixture
def steps() -> Callable[[Path], dict[int, dict[str, Any]]]:
    """Returns a function that reads the step events of a run folder, by step."""

    def read(out_dir: Path) -> dict[int, dict[str, Any]]:
        events = [json.loads(line) for line in (out_dir / "metrics.jsonl").read_text().splitlines()]
        return {event["step"]: event for event in events if event["event"] == "step"}

    return read


@pytest.fixture
def documents() -> Callable[[Path], dict[int, list[str]]]:
    """Returns a function that reads the sorted documents of each step of a run over all ranks."""

    def read(out_dir: Path) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for file in sorted(out_dir.glob("documents-rank*.jsonl")):
            for line in map(json.loads, file.read_text().splitlines()):
                found.setdefault(line["step"], []).extend(line["documents"])
        return {step: sorted(names) for step, names in found.items()}

    return read
