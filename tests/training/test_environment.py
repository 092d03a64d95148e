"""What a run records about its starts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from bsmeta.core.environment import hash_machine_name
from bsmeta.training.run_folder import ENVIRONMENT, read_environments

SCRIPT = Path(__file__).with_name("toy_task.py")
Launch = Callable[..., subprocess.CompletedProcess[str]]


def test_each_start_of_a_run_is_recorded(launch: Launch, tmp_path: Path) -> None:
    out = tmp_path / "run"
    keys = ("trackers=[]", "save_steps=2", "learning_rate=0.1", f"out_dir={out}")
    launch(SCRIPT, *keys, "max_train_steps=2")
    launch(SCRIPT, *keys, "max_train_steps=4", "resume_from_checkpoint_dir=latest")
    first, second = read_environments(out)
    assert (first["step"], second["step"]) == (0, 2)
    assert first["started"] < first["ended"] <= second["started"] < second["ended"]
    for start in (first, second):
        assert start["machine"] == hash_machine_name()
        assert start["processes"] == 1
        assert {"commit", "is_clean", "versions", "processor", "threads", "device"} <= set(start)


def test_a_killed_start_has_no_end(tmp_path: Path) -> None:
    assert read_environments(tmp_path) == []
    (tmp_path / ENVIRONMENT).write_text(
        '{"event": "start", "step": 0, "started": "a"}\n'
        '{"event": "start", "step": 4, "started": "b"}\n'
        '{"event": "end", "step": 8, "ended": "c"}\n'
        '{"event": "sta'
    )
    assert read_environments(tmp_path) == [
        {"step": 0, "started": "a", "ended": None},
        {"step": 4, "started": "b", "ended": "c"},
    ]
