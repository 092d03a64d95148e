"""`--version`: the versions that a bug report needs."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

import pytest

import bsmeta
from tests.conftest import REPOSITORY, run_warm


@pytest.mark.parametrize(
    "command",
    [["-m", "bsmeta"], [str(REPOSITORY / "bsmeta" / "train.py")], ["-m", "bsmeta", "annotate"]],
    ids=" ".join,
)
def test_every_program_prints_the_versions(command: list[str]) -> None:
    done = run_warm([sys.executable, *command, "--version"])
    assert done.returncode == 0, done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows["bsmeta"] == bsmeta.__version__
    assert rows["torch"] == metadata.version("torch")
    assert rows["python"].startswith(platform.python_version())
    assert {"transformers", "accelerate", "deepspeed", "hydra-core", "system"} <= rows.keys()
