"""The same on many machines: datatrove's executors, and the programs of SLURM that they call."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from datatrove.executor import LocalPipelineExecutor

from bsmeta.annotate.command import run_task
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.inputs.sources import list_inputs
from bsmeta.core.errors import ConfigurationError, DataError
from tests.annotate.helpers import annotate, rows, some_pages, write_pages
from tests.conftest import REPOSITORY
from tests.waiting import STUCK_S

NAMES = ["html", "url", "title"]

# What `sbatch`, `srun` and `scontrol` do, as far as datatrove uses them, on this machine: each task
# of an array is run to its end.
PROGRAMS = {
    "sbatch": """
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "${@: -1}")
[ -n "$last" ] || { echo Submitted batch job 2; exit; }
for task in $(seq 0 "$last"); do
    SLURM_ARRAY_TASK_ID=$task SLURM_NODELIST=m0 RUN_OFFSET=0 bash "${@: -1}" || echo failed
done >"$SLURM_TEST_LOG" 2>&1
echo Submitted batch job 1
""",
    "srun": 'while [ "$1" != launch_pickled_pipeline ]; do shift; done; exec "$@"',
    "scontrol": "echo m0",
}


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Five files of pages."""
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(5):
        write_pages(folder / f"{number}.jsonl.gz", some_pages(number + 1))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.gz"))}


@pytest.mark.long
def test_tasks_share_the_files(pages: Path, tmp_path: Path) -> None:
    annotate(str(pages), tmp_path / "alone")
    config = AnnotateConfig(output=str(tmp_path / "out"), annotators=NAMES, workers=1)
    step = partial(run_task, config, list_inputs(str(pages)))
    options: dict[str, Any] = {"tasks": 2, "workers": 2, "skip_completed": False}
    log = str(tmp_path / "log")
    LocalPipelineExecutor([step], logging_dir=log, **options).run()
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_a_task_makes_only_its_shards_and_names_damaged_files(pages: Path, tmp_path: Path) -> None:
    (pages / "2.jsonl.gz").write_bytes(b"\x1f\x8b\x08")
    config = AnnotateConfig(output=str(tmp_path / "out"), annotators=NAMES, workers=1)
    step = partial(run_task, config, list_inputs(str(pages)))
    with pytest.raises(DataError, match=r"2\.jsonl\.gz: damaged"):
        step(None, rank=0, world_size=2)
    assert list(contents(tmp_path / "out")) == ["0.jsonl.gz", "4.jsonl.gz"]


@pytest.mark.long
def test_tasks_are_submitted_to_slurm(pages: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}")
        (programs / name).chmod(0o755)
    command = [
        sys.executable, str(REPOSITORY / "bsmeta" / "annotate.py"), f"input={pages}",
        "output=out", f"annotators=[{','.join(NAMES)}]", "executor=slurm", "tasks=2", "workers=1",
        "slurm_partition=main",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_TEST_LOG": str(tmp_path / "log"),
    }

    def run() -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=STUCK_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "queued as job 1: 2 tasks" in run()
    script = (tmp_path / "out/_annotation/slurm/launch_script.slurm").read_text()
    for line in ("--partition=main", "--cpus-per-task=1", "--signal=USR1@90", "--array=0-1"):
        assert f"#SBATCH {line}\n" in script
    annotate(str(pages), tmp_path / "alone")
    assert contents(tmp_path / "out") == contents(tmp_path / "alone"), (
        tmp_path / "log"
    ).read_text()
    # When all is done, the same command reports.
    assert "15 pages, 15 rows in 5 shards" in run()
    # A changed input is a task again.
    write_pages(pages / "1.jsonl.gz", some_pages(9))
    assert "queued as job 1: 1 task;" in run()
    assert len(rows(tmp_path / "out/1.jsonl.gz")) == 9


@pytest.mark.slow
def test_ray_runs_the_tasks(pages: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="not required: pip install ray")
    annotate(str(pages), tmp_path / "alone")
    command = (
        sys.executable, str(REPOSITORY / "bsmeta" / "annotate.py"), f"input={pages}",
        f"output={tmp_path / 'out'}", f"annotators=[{','.join(NAMES)}]", "executor=ray", "tasks=2",
        "workers=1", "task_memory_gb=1",
    )  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=STUCK_S
    )
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_without_datatrove_only_its_executors_are_refused(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datatrove.executor", None)
    annotate(str(pages), tmp_path / "out")
    message = r"executor=slurm needs datatrove: pip install -e .\[cluster\]"
    with pytest.raises(ConfigurationError, match=message):
        annotate(str(pages), tmp_path / "more", executor="slurm", slurm_partition="main")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"executor": "slurm"}, "slurm_partition is not set"),
        ({"executor": "ray"}, "ray is not installed"),
        ({"executor": "slurm", "replace": ["title"]}, r"replace=\['title'\]: executor=slurm does"),
    ],
)
def test_impossible_settings_are_refused(
    settings: dict[str, Any], message: str, pages: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        annotate(str(pages), tmp_path / "out", **settings)
