"""Processes that do not come together, and that do not part."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bsmeta.training.distributed import STEPS_PER_COLLECTION, GarbageCollection
from tests.waiting import STUCK_S

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")

STUCK = """
import time
from bsmeta.training.distributed import time_limit
with time_limit(1800, "what is quick"):
    pass
with time_limit(0.1, "connecting the processes"):
    time.sleep(100)
"""


def test_connecting_has_a_time_limit() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=STUCK_S, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("connecting the processes took more than 0.1 s (distributed_")
    assert 'File "<string>", line 7 in <module>' in ended.stderr


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


@NO_GPU
@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(sys.prefix) / "torch_extensions").exists(), reason="no op was compiled by make"
)
def test_a_run_without_make_uses_the_op_that_make_has_compiled(tmp_path: Path) -> None:
    """The home folder, where the op would be compiled otherwise, stays empty."""
    toy = str(Path(__file__).with_name("toy_task.py"))
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


def test_garbage_is_collected_at_regular_steps() -> None:
    with GarbageCollection() as garbage:
        assert not gc.isenabled()
        loop: list[Any] = []
        loop.append(loop)
        before = gc.get_stats()[2]["collections"]
        garbage.collect_if_due(STEPS_PER_COLLECTION - 1)
        assert gc.get_stats()[2]["collections"] == before
        garbage.collect_if_due(STEPS_PER_COLLECTION)
        assert gc.get_stats()[2]["collections"] == before + 1
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
