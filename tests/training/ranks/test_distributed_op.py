"""DeepSpeed's op for CPUs: compiled once, and never waited for in vain."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bsmeta.training.ranks import distributed_op
from tests.waiting import STUCK_S, wait_until

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")

NAME = "deepspeed_shm_comm"
ANNOUNCEMENT = "DeepSpeed compiles its op for CPUs"
PREPARE = """
import logging
logging.basicConfig(level=logging.INFO)
from bsmeta.training.ranks.distributed_op import prepare_cpu_op
prepare_cpu_op()
from deepspeed.comm.torch import build_shm_op  # as DeepSpeed itself does when a group starts
print(build_shm_op().__file__)
"""
COMPILER = """#!/bin/sh
# Compiles nothing: a link copies the library that was compiled for the environment.
case "$*" in
    *--version*|*-dumpfullversion*) exec c++ "$@" ;;
    *-shared*) [ -n "$BLOCKED" ] && { echo $$ > "$BLOCKED"; exec sleep 1000; }
        while [ "$1" != -o ]; do shift; done; cp "$LIBRARY" "$2" ;;
    *) while [ "$1" != -o ]; do shift; done; : > "$2" ;;
esac
"""


@pytest.fixture(scope="module")
def compiled() -> Path:
    """The library of the environment, compiled if missing."""
    subprocess.run([sys.executable, "-c", PREPARE], check=True, capture_output=True)
    return distributed_op.find_library_path(NAME)


@pytest.fixture
def environment(compiled: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of processes that compile in a separate folder, instantly."""
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    return {
        **os.environ,
        "CXX": str(compiler),
        "LIBRARY": str(compiled),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),
    }


def prepare(environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE],
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Returns the output of a process at its end; fails if it still runs at the limit."""
    try:
        return process.communicate(timeout=STUCK_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def blocked(environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that stays inside the compilation."""
    linking = tmp_path / "linking"
    process = prepare({**environment, "BLOCKED": str(linking)})
    wait_until(linking.exists, process)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.faults
def test_after_a_process_is_killed_while_compiling_the_next_compiles(
    environment: dict[str, str], blocked: subprocess.Popen[str], tmp_path: Path
) -> None:
    """A process waits from before the kill; the compiler outlives the killed process."""
    folder = tmp_path / "extensions"
    waiting = prepare(environment)
    assert waiting.stderr is not None
    assert ANNOUNCEMENT in next(line for line in waiting.stderr if ANNOUNCEMENT in line)
    assert not list(folder.glob("*.so"))
    os.kill(blocked.pid, signal.SIGKILL)
    output, errors = end(waiting)
    assert waiting.returncode == 0, errors
    assert f"{NAME}_op built successfully" in output
    assert [file.suffix for file in sorted(folder.iterdir())] == [".so", ".lock"]


@pytest.mark.long
@pytest.mark.faults
def test_a_lock_file_left_by_a_killed_process_blocks_no_other(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """As left by a process that is killed while DeepSpeed's loader holds it."""
    stale = tmp_path / "extensions" / NAME / "lock"
    stale.parent.mkdir(parents=True)
    stale.touch()
    for _ in range(2):  # compiles, loads
        process = prepare(environment)
        output, errors = end(process)
        assert process.returncode == 0, errors
    assert Path(output.splitlines()[-1]).parent == tmp_path / "extensions"
    assert stale.exists()


@pytest.mark.long
def test_an_existing_library_is_loaded_from_a_read_only_folder(
    compiled: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "extensions"
    folder.mkdir()
    (folder / compiled.name).write_bytes(compiled.read_bytes())
    folder.chmod(0o555)
    process = prepare({**environment, "CXX": "/bin/false", "PATH": "/usr/bin:/bin"})
    output, errors = end(process)
    assert process.returncode == 0, errors
    assert output.splitlines()[-1] == str(folder / compiled.name)
    assert [file.name for file in folder.iterdir()] == [compiled.name]


@pytest.mark.parametrize("is_slow", [False, True])
def test_compiling_is_announced_when_it_takes_long(
    is_slow: bool,
    compiled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here compiling ends at once, or as soon as it is announced."""
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder

    def load(*_: object, **__: object) -> None:
        if is_slow:
            wait_until(lambda: ANNOUNCEMENT in caplog.text)
        assert os.environ["PATH"].startswith(str(Path(sys.executable).parent))
        folder = Path(os.environ["TORCH_EXTENSIONS_DIR"], NAME)
        assert folder.parent.parent == tmp_path / "torch_extensions"
        folder.mkdir()
        (folder / f"{NAME}.so").write_bytes(compiled.read_bytes())
        OpBuilder._loaded_ops[NAME] = "the op"

    monkeypatch.setattr(ShareMemCommBuilder, "load", load)
    monkeypatch.setattr(OpBuilder, "_loaded_ops", {})
    monkeypatch.setattr(distributed_op, "COMPILATION_NOTICE_S", 0.1 if is_slow else STUCK_S)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    (tmp_path / "torch_extensions").mkdir()
    with caplog.at_level(logging.INFO, logger="bsmeta"):
        distributed_op.prepare_cpu_op()
    assert OpBuilder._loaded_ops == {NAME: "the op"}
    assert (tmp_path / "torch_extensions" / compiled.name).read_bytes() == compiled.read_bytes()
    assert os.environ["PATH"] == "/usr/bin"
    assert "TORCH_EXTENSIONS_DIR" not in os.environ
    assert caplog.text.count(ANNOUNCEMENT) == is_slow


@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(sys.prefix) / "torch_extensions").exists(), reason="no op was compiled by make"
)
def test_a_run_without_make_uses_the_op_that_make_has_compiled(tmp_path: Path) -> None:
    """The home folder, where the op would be compiled otherwise, stays empty."""
    toy = str(Path(__file__).parents[1] / "toy_task.py")
    kept = {name: os.environ[name] for name in os.environ if name != "TORCH_EXTENSIONS_DIR"}
    environ = {**kept, "HOME": str(tmp_path), "TOY_ZERO_STAGE": "2", "PATH": "/usr/bin:/bin"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    run = [toy, "trackers=[]", "max_train_steps=1", "num_warmup_steps=0", f"out_dir={tmp_path}/run"]
    ended = subprocess.run(
        [*launch, *run], env=environ, capture_output=True, text=True, timeout=STUCK_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "DeepSpeed compiles" not in ended.stderr
    assert not (tmp_path / ".cache" / "torch_extensions").exists()
