"""Rows 1 to 3 and 9 of the fault matrix for a run in a bucket, under each engine.

Each start has an empty staging folder, like a start on another machine, unless a test says
otherwise.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bsmeta.training.buckets.choice import open_bucket
from tests.data.bucket_server import RUN_PREFIX, BucketServer, Environ, failing
from tests.disks import small_disk
from tests.faults.conftest import RESUME, Run, documents, events, list_metrics
from tests.training.bucket_runs import (
    copy_logs,
    kill_at,
    list_names,
    list_published,
    matches,
)
from tests.training.conftest import gcs, s3, server

__all__ = ["gcs", "s3", "server", "small_disk"]

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ENGINES = pytest.mark.parametrize(
    ("server", "stage"),
    [("s3", ""), ("s3", "2"), ("s3", "fsdp2"), ("gcs", "")],  # a store sees only files
    ids=["s3-ddp", "s3-zero2", "s3-fsdp2", "gcs-ddp"],
    indirect=["server"],
)
Start = Callable[..., Run]


@pytest.fixture
def begin(start: Start, server: BucketServer, tmp_path: Path) -> Start:
    """Starts two processes of a run in the bucket: `begin("key=value", stage="2", …)`."""
    numbers = itertools.count()

    def begin_in(*keys: str, staging: Path | None = None, **named: Any) -> Run:
        folder = staging or tmp_path / f"staging-{next(numbers)}"
        return start(folder, f"out_dir={server.run_url}", f"staging_dir={folder}", *keys, **named)

    return begin_in


def wait_for_success(run: Run) -> None:
    """Waits for the end of a run that must succeed."""
    assert run.wait() == 0, run.errors[-3000:]


def assert_same_run(server: BucketServer, whole: Path, folder: Path) -> None:
    """Compares steps, documents and weights of the run in the bucket with a local run."""
    copy_logs(server, folder)
    assert list_metrics(folder) == list_metrics(whole)
    assert documents(folder) == documents(whole)
    weights = (whole / "model/model.safetensors").read_bytes()
    assert open_bucket(server.run_url).read("model/model.safetensors") == weights


PHASES = [
    ("PUT", r"checkpoint-\d+step/state/"),
    ("PUT", r"checkpoint-\d+step/manifest"),
    ("PUT", r"metrics\.jsonl/\d+-000002"),
    ("DELETE", r"checkpoint-\d+step/manifest"),
    ("DELETE", r"checkpoint-\d+step/state/"),
]


@ENGINES
@pytest.mark.parametrize("changes_machine", [True, False], ids=["elsewhere", "same machine"])
def test_row_1_a_run_killed_in_any_phase_of_an_upload_resumes_exactly(
    stage: str,
    changes_machine: bool,
    begin: Start,
    complete: Start,
    server: BucketServer,
    tmp_path: Path,
) -> None:
    """Each resumed run is killed in the next phase; the last one finishes."""
    keys = ("keep_last_checkpoints=1", "max_train_steps=12")
    complete(tmp_path / "whole", *keys, stage=stage)
    staging = None if changes_machine else tmp_path / "staging"
    published = []
    for method, path in PHASES:
        run = begin(*keys, RESUME, stage=stage, staging=staging)
        server.faults = [kill_at(method, path, run.list_pids)]
        assert run.wait() != 0
        server.faults = []
        published.append(list_published(server, tmp_path))

    wait_for_success(begin(*keys, RESUME, stage=stage, staging=staging))
    assert published == [[], [], [2, 4], [2, 4, 6], [4, 6, 8]]
    last = [8, 12]  # step 8 is kept by the process that has resumed from it
    assert list_published(server, tmp_path) == last
    folders = {name.partition("/")[0] for name in list_names(server) if "step/" in name}
    assert folders == {f"checkpoint-{step}step" for step in last}  # no remnants
    assert_same_run(server, tmp_path / "whole", tmp_path / "logs")


@ENGINES
@pytest.mark.parametrize("phase", ["state", "commit"])
def test_row_1_a_run_in_a_bucket_killed_before_an_upload_resumes_exactly(
    stage: str, phase: str, begin: Start, complete: Start, server: BucketServer, tmp_path: Path
) -> None:
    """The staging folder of the same machine has a checkpoint that the bucket lacks."""
    staging = tmp_path / "staging"
    complete(tmp_path / "whole", stage=stage)
    run = begin(stage=stage, staging=staging, fault=f"kill_after:{phase}:0")
    assert run.wait() != 0
    assert [*staging.rglob("*checkpoint-2step")] != []
    assert list_published(server, tmp_path) == []

    wait_for_success(begin(RESUME, stage=stage, staging=staging))
    assert_same_run(server, tmp_path / "whole", tmp_path / "logs")


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


def delete(_: bytes) -> None:
    """Stands for the deletion of the object."""


def list_states(server: BucketServer, step: int) -> list[str]:
    """Lists the objects of weights and optimizer in the checkpoint of a step."""
    return [name for name in list_names(server) if f"checkpoint-{step}step/state/__" in name]


def damage(server: BucketServer, name: str, change: Callable[[bytes], bytes | None]) -> None:
    """Replaces or deletes an object of the run."""
    content = change(open_bucket(server.run_url).read(name) or b"")
    if content is None:
        server.remove(f"{RUN_PREFIX}/{name}")
    else:
        server.put({f"{RUN_PREFIX}/{name}": content})


@ENGINES
def test_row_2_changed_objects_are_named_and_an_earlier_checkpoint_is_used(
    stage: str, begin: Start, complete: Start, server: BucketServer, tmp_path: Path
) -> None:
    """The objects of step 8 are cut, then those of step 6 flipped, then those of 4 deleted."""
    complete(tmp_path / "whole", stage=stage)
    wait_for_success(begin("keep_last_checkpoints=0", stage=stage))
    damaged = []
    for step, change in ((8, cut), (6, flip_a_bit), (4, delete)):
        damaged.append(list_states(server, step)[-1])
        damage(server, damaged[-1], change)

    run = begin("keep_last_checkpoints=0", RESUME, stage=stage)
    wait_for_success(run)
    for name, fault in zip(damaged, ("has changed", "has changed", "is missing"), strict=True):
        assert f"{server.run_url}/{name}: the object {fault}" in run.errors
    assert_same_run(server, tmp_path / "whole", tmp_path / "logs")
    [resumed] = events(tmp_path / "logs", "resume")
    assert Path(resumed["checkpoint"]).name == "checkpoint-2step"


@ENGINES
def test_row_3_a_resume_with_only_changed_objects_is_refused(
    stage: str, begin: Start, server: BucketServer, tmp_path: Path
) -> None:
    wait_for_success(begin("max_train_steps=4", stage=stage))
    for step in (2, 4):
        damage(server, list_states(server, step)[0], flip_a_bit)
    names = [name for name in list_names(server) if "step/" in name]

    run = begin(RESUME, stage=stage)
    assert run.wait() != 0
    message = "configuration error: resume_from_checkpoint_dir=latest: every checkpoint is damaged"
    assert run.errors.count(message) == 1
    assert [name for name in list_names(server) if "step/" in name] == names


@ENGINES
def test_row_9_a_bucket_without_room_ends_the_run_with_an_intact_checkpoint(
    stage: str, begin: Start, complete: Start, server: BucketServer, tmp_path: Path
) -> None:
    complete(tmp_path / "whole", stage=stage)
    server.faults = [failing(403, "QuotaExceeded", 99, matches("PUT", "checkpoint-4step/state"))]
    run = begin(stage=stage)
    assert run.wait() != 0
    assert re.search(r"writing checkpoint-4step/state/.*QuotaExceeded", run.errors)
    assert list_published(server, tmp_path) == [2]

    server.faults = []
    wait_for_success(begin(RESUME, stage=stage))
    assert_same_run(server, tmp_path / "whole", tmp_path / "logs")


@ENGINES
def test_row_9_a_full_staging_disk_is_named_before_the_first_step(
    stage: str, begin: Start, server: BucketServer, small_disk: Path
) -> None:
    run = begin(stage=stage, staging=small_disk, TOY_WIDTH="6000")
    assert run.wait() != 0
    assert re.search(rf"staging_dir: {small_disk}\S* has .* free; expected", run.errors)
    assert list_published(server, small_disk) == []


@ENGINES
def test_row_9_a_staging_disk_filled_during_the_run_is_named(
    stage: str, begin: Start, server: BucketServer, small_disk: Path, tmp_path: Path
) -> None:
    """Other files leave 40 kB, too little for the checkpoint of step 4."""

    def fill(environ: Environ) -> None:
        if is_first_manifest(environ):
            free = shutil.disk_usage(small_disk).free
            (small_disk / "filler").write_bytes(bytes(free - 40_000))

    is_first_manifest = matches("PUT", "checkpoint-2step/manifest")
    server.faults = [fill]
    run = begin(stage=stage, staging=small_disk, TOY_WIDTH="1000")
    assert run.wait() != 0
    assert re.search(rf"{small_disk}\S* has .* free", run.errors)
    assert list_published(server, tmp_path) == [2]

    server.faults = []
    wait_for_success(begin(RESUME, stage=stage, TOY_WIDTH="1000"))
    assert list_published(server, tmp_path)[-1] == 8
