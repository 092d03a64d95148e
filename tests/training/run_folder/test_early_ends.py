"""A refused start is recorded, unless the folder belongs to another run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.run_folder.early_ends import write_refusal
from bsmeta.training.run_folder.folder import MARK, RunFolder
from bsmeta.training.run_folder.status import write_status


def test_a_start_after_a_refused_start_uses_the_folder(tmp_path: Path) -> None:
    write_refusal(tmp_path / "run", "learning_rate")
    RunFolder(tmp_path / "run").open(CausalLMConfig(), resume=False, overwrite=False)
    assert (tmp_path / "run" / MARK).exists()


def test_a_refusal_keeps_the_status_of_a_finished_run(tmp_path: Path) -> None:
    write_status(tmp_path, "done", 8, 0)
    write_refusal(tmp_path, "learning_rat")
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "done"
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_a_refusal_replaces_an_old_status_but_not_of_a_live_run(tmp_path: Path) -> None:
    def state() -> str:
        return json.loads((tmp_path / "status.json").read_text())["state"]

    write_status(tmp_path, "preempted", 8, 75)
    write_refusal(tmp_path, "num_processes")
    assert state() == "failed"
    live = RunFolder(tmp_path)
    live.open(CausalLMConfig(), resume=False, overwrite=False)
    write_status(tmp_path, "running", 0, None)
    write_refusal(tmp_path, "num_processes")
    assert state() == "running"


def test_a_refusal_does_not_wait_for_accelerate() -> None:
    code = (
        "import sys, bsmeta.training.run_folder.early_ends; sys.exit('accelerate' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
