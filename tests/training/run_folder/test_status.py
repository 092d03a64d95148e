"""The status of a run: written even on a full disk, and read as failed after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from bsmeta import open_run
from bsmeta.training.run_folder.status import read_status, write_status
from tests.disks import small_disk

__all__ = ["small_disk"]


def test_the_status_is_written_as_json(tmp_path: Path) -> None:
    write_status(tmp_path / "run", "failed", 3, 2, "no shards")
    assert json.loads((tmp_path / "run" / "status.json").read_text()) == {
        "state": "failed",
        "step": 3,
        "exit_code": 2,
        "message": "no shards",
    }
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["status.json"]


HOLDER = """
import sys, time
from pathlib import Path
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.run_folder.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.open(CausalLMConfig(), resume=False, overwrite=False)
folder.write_status("running", 3, None)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_killed_run_is_not_running(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        assert read_status(tmp_path / "run")["state"] == "running"
        assert open_run(tmp_path / "run").status().state == "running"
        process.kill()
    status = read_status(tmp_path / "run")
    assert (status["state"], status["step"], status["exit_code"]) == ("failed", 3, None)
    assert "it was killed, or its machine failed" in status["message"]
    assert open_run(tmp_path / "run").status().state == "failed"


def test_a_status_is_written_on_a_full_disk(small_disk: Path) -> None:
    write_status(small_disk, "running", 3, None)
    filler = small_disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    write_status(small_disk, "failed", 3, 2, "the disk is full " * 1000)
    status = json.loads((small_disk / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 2)
    assert status["message"].startswith("the disk is full")
