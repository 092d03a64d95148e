"""Whether a SLURM job queues itself again; `srun` and `scontrol` are scripts of the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.launching.helpers import run

STOPPED = """
echo '{"state": "preempted", "step": 25, "exit_code": 75, "message": ""}' > run/status.json
exit 1
"""
SAVED = "mkdir run/checkpoint-25step; echo '{}' > run/checkpoint-25step/manifest.json\n"
SET_ASIDE = "mv run/checkpoint-40step run/superseded-checkpoint-40step\n"


@pytest.mark.parametrize(
    ("training", "is_queued"),
    [
        (SET_ASIDE + SAVED, True),
        pytest.param(SAVED, True, marks=pytest.mark.slow),
        (SET_ASIDE, False),
    ],
)
def test_a_job_is_requeued_if_it_has_saved_a_new_checkpoint(
    tmp_path: Path, training: str, is_queued: bool
) -> None:
    """Also if the run has skipped a damaged checkpoint of a later step."""
    for name, text in {
        "srun": training + STOPPED,
        "scontrol": '[[ $1 == show ]] && echo localhost || echo "$@" >> calls\n',
    }.items():
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text("#!/usr/bin/env bash\n" + text)
        script.chmod(0o755)
    for step in (20, 40):
        saved = tmp_path / "run" / f"checkpoint-{step}step"
        saved.mkdir(parents=True)
        (saved / "manifest.json").write_text("{}")
    code, output = run(
        tmp_path, "slurm/job.sh", "out_dir=run", BSMETA_CONFIG="demo", BSMETA_REQUEUE="true",
        SLURM_JOB_ID="7", SLURM_JOB_NODELIST="localhost",
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    )  # fmt: skip
    calls = tmp_path / "calls"
    assert (calls.read_text() if calls.exists() else "") == ("requeue 7\n" if is_queued else "")
    assert ("stopped without a new checkpoint" in output) is not is_queued
    assert code == (75 if is_queued else 1), output
