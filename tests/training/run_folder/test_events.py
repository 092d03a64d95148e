"""Events and starts that a run has logged, also after it was killed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from bsmeta.core.environment import hash_machine_name
from bsmeta.training.run_folder.events import ENVIRONMENT, read_environments, read_last_events

SCRIPT = Path(__file__).parents[1] / "toy_task.py"
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


def test_the_last_complete_event_of_a_type_is_read(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert read_last_events(metrics) == {}
    events = [("step", 4), ("eval", 4), ("step", 8), ("eval", 8), ("save", 8)]
    lines = [json.dumps({"event": kind, "step": step}) + "\n" for kind, step in events]
    metrics.write_text("".join(lines) + '{"event": "eval", "st')
    assert read_last_events(metrics) == {
        "step": {"event": "step", "step": 8},
        "eval": {"event": "eval", "step": 8},
    }
