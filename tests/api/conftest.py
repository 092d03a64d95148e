"""Short real runs, and the commands whose results the interface must have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, command, run_warm

DEMO = (
    "--config-name", "demo", "max_train_steps=4", "num_warmup_steps=0", "eval_steps=2",
    "eval_documents=2", "save_steps=2", "logging_steps=1", "trackers=[]", "log_documents=true",
    "data_config.metadata_config.max_seq_len=64",
)  # fmt: skip


def run(program: str, *arguments: str, processes: int = 1) -> str:
    """Runs a program of the repository to its end; returns its standard output."""
    script = REPOSITORY / "bsmeta" / f"{program}.py"
    done = run_warm(command(script, *arguments, processes=processes))
    assert done.returncode == 0, done.stderr[-4000:]
    return str(done.stdout)


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps of the demo, on short sequences."""
    folder = tmp_path_factory.mktemp("api") / "demo"
    run("train", *DEMO, f"out_dir={folder}")
    return folder
