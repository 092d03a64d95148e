"""Starts the launch scripts as a user does, each as a process of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.waiting import STUCK_S

EXPERIMENTS = REPOSITORY / "experiments"
SMALL = (
    "num_warmup_steps=2",
    "save_steps=0",
    "eval_steps=0",
    "trackers=[]",
    "gradient_accumulation_steps=1",
    "data_config.per_device_train_batch_size=1",
    "data_config.metadata_config.max_seq_len=64",
)
_OURS = ("BSMETA_", "SLURM_", "ACCELERATE_", "PET_")


def environment(**variables: str) -> dict[str, str]:
    """Returns this process's environment without launch settings, plus `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "BSMETA_LAUNCH_FILE": "cpu.yaml", **variables}


def start(
    folder: Path, script: str, *arguments: str, prefix: Sequence[str] = (), **variables: str
) -> subprocess.Popen[str]:
    """Starts `experiments/SCRIPT` in `folder`, after `prefix`; its output is kept for `end`."""
    return subprocess.Popen(
        [*prefix, str(EXPERIMENTS / script), *arguments],
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def list_pasted(line: str, folder: Path) -> list[str]:
    """Returns the commands that a printed command starts from a new bash in `folder`."""
    done = subprocess.run(
        ["bash", "-c", f"{line.partition('  # ')[0]} --dry-run"],
        cwd=folder,
        env=environment(BSMETA_RESUME="another/run"),
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout.splitlines()[-1])


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Returns exit code and all output; kills a script that hangs, and fails the test."""
    try:
        output, _ = process.communicate(timeout=STUCK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, output


def run(folder: Path, script: str, *arguments: str, **variables: str) -> tuple[int, str]:
    """Runs `experiments/SCRIPT` in `folder` to its end."""
    return end(start(folder, script, *arguments, **variables))
