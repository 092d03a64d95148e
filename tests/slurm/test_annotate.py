"""Raw pages annotated by a job array."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.annotate.helpers import annotate, some_pages, write_pages
from tests.conftest import REPOSITORY
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm


def test_a_job_array_annotates_the_shards(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    for number in range(4):
        write_pages(tmp_path / "pages" / f"{number}.jsonl.gz", some_pages(20))
    annotate(str(tmp_path / "pages"), tmp_path / "alone")
    command = (
        sys.executable, str(REPOSITORY / "bsmeta" / "annotate.py"), f"input={tmp_path / 'pages'}",
        f"output={tmp_path / 'out'}", "annotators=[html,url,title]", "executor=slurm", "tasks=2",
        "workers=1", "task_memory_gb=1", "slurm_partition=main", "slurm_time=10",
    )  # fmt: skip
    done = cluster.command(*command, cwd=tmp_path, environment=os.environ)
    assert done.returncode == 0, done.stderr
    cluster.wait_until(lambda: len(list((tmp_path / "out").glob("*.gz"))) == 4)
    for number in range(4):
        name = f"{number}.jsonl.gz"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    done = cluster.command(*command, cwd=tmp_path, environment=os.environ)
    assert "80 pages, 80 rows in 4 shards" in done.stdout
