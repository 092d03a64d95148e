"""Rows 6 and 7 of the fault matrix with the language model and the real stream of documents.

The shards are so small that a run of twelve steps comes into its second epoch and beyond.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.data.helpers import write_shards
from tests.data.s3_server import S3Server
from tests.engine_variables import ENGINE_NAMES, ENGINE_VARIABLES, FSDP_2, PLAIN, ZERO_2
from tests.faults.conftest import (
    RESUME,
    Run,
    documents,
    events,
    list_metrics,
    same_run,
    same_weights,
)
from tests.training.bucket_runs import copy_logs, kill_at, list_published
from tests.training.conftest import s3

__all__ = ["s3"]

pytestmark = pytest.mark.faults

Start = Callable[..., Run]
Launch = Callable[..., CompletedProcess[str]]
EVALUATE = REPOSITORY / "bsmeta" / "evaluate.py"
STEPS = 12
SHARDS = [10, 14, 9, 12]
MODEL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


class Job:
    """The language model on small shards, under one engine unless a start names another."""

    def __init__(self, folder: Path, stage: str) -> None:
        self.folder = folder
        self._stage = stage
        (folder / "shards").mkdir()
        write_shards(folder / "shards", SHARDS)
        shape = json.loads((REPOSITORY / "examples" / "model" / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(shape | MODEL))

    def start(self, out_dir: Path, *keys: str, processes: int = 2, stage: str | None = None) -> Run:
        """Starts to train with a global batch of 8 sequences."""
        stage = self._stage if stage is None else stage
        return Run(
            out_dir,
            f"max_train_steps={STEPS}",
            "save_steps=1",
            "keep_last_checkpoints=0",
            "eval_steps=0",
            f"gradient_accumulation_steps={4 // processes}",
            f"model_config_file={self.folder}/config.json",
            f"data_config.train_file={self.folder}/shards",
            "data_config.validation_file=null",
            "data_config.num_streams=4",
            "data_config.window_documents=4",
            "data_config.metadata_config.max_seq_len=64",
            *keys,
            options=("--config-name", "demo"),
            script=REPOSITORY / "bsmeta" / "train.py",
            processes=processes,
            stage=stage,
            **ENGINE_VARIABLES[stage],
        )

    def run(self, out_dir: Path, *keys: str, **named: Any) -> None:
        """Trains to the end."""
        run = self.start(out_dir, *keys, **named)
        try:
            assert run.wait() == 0, run.errors[-3000:]
        finally:
            run.end()


@pytest.fixture(
    scope="module",
    params=[PLAIN, pytest.param(ZERO_2, marks=pytest.mark.slow)],
    ids=["ddp", "zero2"],
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A finished run with a checkpoint of each step, and the job that starts further runs."""
    folder = tmp_path_factory.mktemp("job")
    job = Job(folder, request.param)
    job.run(folder / "whole")
    yield job
    shutil.rmtree(folder)


def epochs(checkpoint: Path) -> list[int]:
    """Returns the epoch of each stream."""
    streams = json.loads((checkpoint / "data_state.json").read_text())["streams"]
    return [position["epoch"] for position in streams.values()]


def saved(out_dir: Path, step: int) -> Path:
    """Returns the checkpoint of a step."""
    return out_dir / f"checkpoint-{step}step"


@pytest.mark.long
def test_row_6_checkpoints_without_a_model_can_be_resumed_and_exported(
    job: Job, tmp_path: Path, launch: Launch
) -> None:
    """They resume the same run, are refused by `evaluate.py`, and a resume exports them."""
    whole, run, alone = job.folder / "whole", tmp_path / "run", tmp_path / "alone"
    job.run(run, "export_steps=4")
    exported = [step for step in range(1, STEPS + 1) if (saved(run, step) / "model").exists()]
    assert exported == [4, 8, 12]
    for later in range(7, STEPS + 1):
        shutil.rmtree(saved(run, later))
    job.run(run, "export_steps=4", RESUME)
    assert same_run(run, whole)
    done = launch(EVALUATE, f"checkpoint={saved(run, 6)}", check=False)
    assert done.returncode == 2
    assert "has no model/, which export_steps of its run has left out" in done.stderr
    named = f"resume_from_checkpoint_dir={saved(run, 6)}"
    job.run(alone, named, "max_train_steps=6")
    assert same_weights(alone, saved(whole, 6))


def first_steps(whole: Path, out_dir: Path, step: int) -> None:
    """Copies a run as it was after a step."""
    shutil.copytree(whole, out_dir)
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(out_dir / f"checkpoint-{later}step")


@pytest.mark.parametrize(
    ("place", "workers"),
    [
        ("the end of an epoch", 2),
        pytest.param("the end of an epoch", 0, marks=pytest.mark.slow),
        pytest.param("a later epoch", 0, marks=pytest.mark.slow),
        pytest.param("a later epoch", 2, marks=pytest.mark.slow),
    ],
)
def test_row_6_a_resume_at_the_end_of_an_epoch_continues_the_run(
    job: Job, tmp_path: Path, place: str, workers: int
) -> None:
    """With and without loader workers, after a run without."""
    whole = job.folder / "whole"
    epochs_by_step = {
        step: epochs(whole / f"checkpoint-{step}step") for step in range(1, STEPS + 1)
    }
    steps = {
        "the end of an epoch": [k for k in epochs_by_step if max(epochs_by_step[k]) == 0][-1],
        "a later epoch": next(k for k in epochs_by_step if min(epochs_by_step[k]) >= 1),
    }
    assert steps["a later epoch"] < STEPS
    first_steps(whole, tmp_path / "run", steps[place])
    job.run(tmp_path / "run", RESUME, f"data_config.num_workers={workers}")
    assert same_run(tmp_path / "run", whole)


@pytest.mark.slow
def test_row_7_two_one_and_two_processes_train_the_language_model_alike(
    job: Job, tmp_path: Path
) -> None:
    whole, changed = job.folder / "whole", tmp_path / "run"
    first_steps(whole, changed, 4)
    job.run(changed, RESUME, processes=1)
    for later in range(9, STEPS + 1):
        shutil.rmtree(changed / f"checkpoint-{later}step")
    job.run(changed, RESUME)
    assert documents(changed) == documents(whole)
    for step, (loss, rate) in list_metrics(whole).items():
        assert list_metrics(changed)[step][1] == rate
        assert list_metrics(changed)[step][0] == pytest.approx(loss, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "processes"),
    [
        (FSDP_2, 1),
        pytest.param(PLAIN, 1, marks=pytest.mark.slow),
        pytest.param(PLAIN, 4, marks=pytest.mark.slow),
        pytest.param(FSDP_2, 4, marks=pytest.mark.slow),
    ],
)
def test_row_7_a_run_killed_under_zero_2_continues_elsewhere_under_another_engine(
    stage: str, processes: int, s3: S3Server, tmp_path: Path
) -> None:
    """From a bucket alone: another machine has none of its files."""
    job = Job(tmp_path, ZERO_2)
    job.run(tmp_path / "whole")

    keys = ("keep_last_checkpoints=2", "save_steps=3", f"out_dir={s3.run_url}")
    killed = job.start(tmp_path, *keys, f"staging_dir={tmp_path / 'first'}")
    s3.faults = [kill_at("PUT", "checkpoint-9step/manifest", killed.list_pids)]
    assert killed.wait() != 0
    assert list_published(s3, tmp_path) == [3, 6]

    s3.faults = []
    shutil.rmtree(tmp_path / "first")
    staging = f"staging_dir={tmp_path / 'second'}"
    job.run(tmp_path, *keys, RESUME, staging, processes=processes, stage=stage)
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    copy_logs(s3, moved)
    [resumed] = events(moved, "resume")
    assert (resumed["step"], resumed["processes"]) == (6, [2, processes])
    assert resumed["engines"] == [ENGINE_NAMES[ZERO_2], ENGINE_NAMES[stage]]
    assert documents(moved) == documents(whole)
    losses = {step: loss for step, (loss, _) in list_metrics(whole).items()}
    for step, (loss, _) in list_metrics(moved).items():
        assert loss == pytest.approx(losses[step], rel=0, abs=1e-6), step
    assert [*list_metrics(moved)] == [*losses]
