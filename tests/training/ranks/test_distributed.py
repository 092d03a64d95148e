"""A run is done even if its processes cannot disconnect."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path


def test_a_finished_run_stays_done_if_its_groups_cannot_be_closed(
    launch: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """The status is done before the groups are closed, and afterward."""
    run, closed = tmp_path / "run", tmp_path / "closed"
    closed.mkdir()
    script = Path(__file__).with_name("closing_groups.py")
    keys = ["trackers=[]", "max_train_steps=1", "num_warmup_steps=0", "distributed_timeout_s=60"]
    folders = {"RUN": str(run), "CLOSED": str(closed)}
    ended = launch(script, *keys, f"out_dir={run}", processes=2, **folders)
    assert sorted(path.name for path in closed.iterdir()) == ["0", "1"]
    assert json.loads((closed / "0").read_text())["state"] == "done"
    assert "have not disconnected within 0.5 s; all work is done" in ended.stderr
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("done", 0)
