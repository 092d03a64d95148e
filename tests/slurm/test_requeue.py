"""A job stopped by its time limit is requeued and continues as if never stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launching.helpers import EXPERIMENTS, SMALL, environment, run
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm

Steps = Callable[[Path], dict[int, dict[str, Any]]]
LIMIT_MINUTES = 2
# SLURM looks at the limits twice a minute, and gives notice up to a minute early: the signal comes
# between 60 and 90 seconds after the start. A run of this length is stopped once for certain.
TRAINING_S = 120
NOTICE = "--signal=B:USR1@30"
OVERRIDES = (*SMALL, "lr_scheduler_type=constant")
# The machines of the test cluster have names that nobody resolves.
JOB = environment(BSMETA_CONFIG="demo", BSMETA_MASTER_ADDR="127.0.0.1")


def list_losses(steps: dict[int, dict[str, Any]]) -> dict[int, float]:
    return {step: event["loss"] for step, event in steps.items()}


def number_of_steps(folder: Path, steps: Steps) -> int:
    """Returns a number of steps that takes long enough on this machine at present."""
    code, output = run(
        folder, "train.sh", *OVERRIDES, "max_train_steps=40", "out_dir=probe", BSMETA_CONFIG="demo"
    )
    assert code == 0, output
    last = [event for step, event in steps(folder / "probe").items() if step > 20]
    tokens = (last[-1]["tokens"] - last[0]["tokens"]) / (len(last) - 1)
    seconds = sum(tokens / event["tokens_per_s"] for event in last) / len(last)
    return math.ceil(TRAINING_S / seconds)


def wait_for_the_end(cluster: Cluster, job: str) -> dict[str, str]:
    unfinished = ("PENDING", "RUNNING", "COMPLETING")
    cluster.wait_until(lambda: cluster.job(job)["JobState"] not in unfinished)
    return cluster.job(job)


def test_a_job_stopped_by_its_time_limit_is_requeued_and_continues(
    cluster: Cluster, steps: Steps, tmp_path: Path
) -> None:
    number = number_of_steps(tmp_path, steps)
    overrides = (*OVERRIDES, f"max_train_steps={number}")
    job = cluster.submit(
        tmp_path,
        f"--time={LIMIT_MINUTES}",
        NOTICE,
        "--nodes=2",
        "--ntasks-per-node=1",
        "--output=job.out",
        str(EXPERIMENTS / "slurm" / "train.sbatch"),
        *overrides,
        "out_dir=preempted",
        environment=JOB,
    )
    ended = wait_for_the_end(cluster, job)
    output = (tmp_path / "job.out").read_text()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), output[-4000:]
    assert int(ended["Restarts"]) >= 1
    assert "job.sh: SIGUSR1: passed on" in output
    assert output.count("job.sh: stopped; queued again, to resume") == int(ended["Restarts"])

    code, output = run(
        tmp_path, "train.sh", *overrides, "out_dir=undisturbed", BSMETA_CONFIG="demo"
    )
    assert code == 0, output
    preempted = steps(tmp_path / "preempted")
    assert list(preempted) == list(range(1, number + 1))
    assert list_losses(preempted) == list_losses(steps(tmp_path / "undisturbed"))
    status = json.loads((tmp_path / "preempted" / "status.json").read_text())
    assert (status["state"], status["step"], status["exit_code"]) == ("done", number, 0)


def test_a_job_with_a_wrong_configuration_is_not_requeued(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(
        tmp_path,
        "--time=60",
        "--output=job.out",
        str(EXPERIMENTS / "slurm" / "train.sbatch"),
        "learning_rate=-1",
        "out_dir=wrong",
        environment=JOB,
    )
    ended = wait_for_the_end(cluster, job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "2:0", "0")
    assert "learning_rate in Hydra" in (tmp_path / "job.out").read_text()


def test_a_launch_inside_an_allocation_starts_all_machines_or_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    """`train.sh` starts all machines, or with BSMETA_FORCE_LOCAL=true this machine only."""
    script = [str(EXPERIMENTS / "train.sh"), *SMALL, "max_train_steps=3", "log_documents=true"]
    ranks = {}
    for name, local in (("all", "false"), ("one", "true")):
        done = cluster.command(
            *("salloc", "--nodes=2", "--time=60", *script, f"out_dir={name}"),
            cwd=tmp_path,
            environment={**JOB, "BSMETA_PROCESSES": "1", "BSMETA_FORCE_LOCAL": local},
        )
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / name / "status.json").read_text())["state"] == "done"
        ranks[name] = sorted(path.name for path in (tmp_path / name).glob("documents-*"))
    assert ranks == {
        "all": ["documents-rank0.jsonl", "documents-rank1.jsonl"],
        "one": ["documents-rank0.jsonl"],
    }
