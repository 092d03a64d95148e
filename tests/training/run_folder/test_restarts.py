"""The record of a restart."""

from __future__ import annotations

import json
from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.environment import hash_machine_name
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.run_folder.events import ENVIRONMENT
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.run_folder.restarts import Restart
from bsmeta.training.run_folder.status import write_status


def test_a_restart_names_processes_and_machines_before_and_now(tmp_path: Path) -> None:
    starts = [
        {"event": "start", "step": 0, "machines": ["aaaa"]},
        {"event": "start", "step": 5, "machines": ["aaaa", "bbbb"]},
    ]
    (tmp_path / ENVIRONMENT).write_text("".join(json.dumps(start) + "\n" for start in starts))
    write_status(tmp_path, "failed", 7, 1, "No sign of life from rank 1 on gpu2")
    assert Restart.read(tmp_path, ("torch", "FSDP2"), 2, ALONE).to_event() == {
        "restarts": 2,
        "previous_state": "failed",
        "engines": ("torch", "FSDP2"),
        "processes": (2, 1),
        "machines": (["aaaa", "bbbb"], [hash_machine_name()]),
    }


def test_a_start_that_was_killed_counts_as_failed(tmp_path: Path) -> None:
    """The restarted run holds the lock, which the status of a run in progress is read with."""
    folder = RunFolder(tmp_path / "run")
    folder.open(CausalLMConfig(), resume=False, overwrite=False)
    write_status(folder.path, "running", 7, None)
    assert Restart.read(folder.path, ("torch", "torch"), 1, ALONE).previous_state == "failed"


def test_a_copied_checkpoint_has_no_earlier_starts(tmp_path: Path) -> None:
    restart = Restart.read(tmp_path, ("torch", "torch"), 4, ALONE)
    assert (restart.restarts, restart.previous_state) == (0, None)
    assert restart.machines == (None, [hash_machine_name()])
