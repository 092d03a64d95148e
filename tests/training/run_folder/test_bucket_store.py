"""A run in a bucket: claims, checkpoints that appear with their manifest, logs in parts, kills."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.errors import CheckpointError, ConfigurationError, DataError, TrainingError
from bsmeta.models.manifest import FileEntry, Manifest, describe_file, write_manifest
from bsmeta.training.buckets.choice import open_bucket
from bsmeta.training.checkpoints.checkpoint import FORMAT, Checkpoint, list_checkpoints
from bsmeta.training.ranks.processes import ALONE, Processes
from bsmeta.training.run_folder.bucket_store import BucketStore
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.run_folder.run_objects import join_logs, list_log_parts
from tests.data.bucket_server import (
    BUCKET,
    RUN_PREFIX,
    SECRET,
    BucketServer,
    Environ,
    failing,
)
from tests.launching.networks import free_port
from tests.training.bucket_runs import (
    copy_logs,
    kill_at,
    list_names,
    list_published,
    matches,
)
from tests.training.conftest import SLOW_ON_GCS
from tests.training.ranks.rank_threads import run_ranks
from tests.waiting import wait_until
from tests.warm import REPOSITORY, Warm

SCRIPT = Path(__file__).parents[1] / "toy_task.py"
FAULTY_SCRIPT = REPOSITORY / "tests/faults/faulty_task.py"
KEYS = (
    "trackers=[]",
    "max_train_steps=12",
    "save_steps=4",
    "eval_steps=0",
    "keep_last_checkpoints=1",
    "num_warmup_steps=2",
    "learning_rate=0.1",
    "data_config.per_device_train_batch_size=2",
)
RESUME = "resume_from_checkpoint_dir=latest"


def open_folder(server: BucketServer, folder: Path, **options: Any) -> RunFolder:
    """Opens a run folder of a bucket, like a process on a machine of its own."""
    bucket = open_bucket(server.run_url)
    run = RunFolder(folder, BucketStore(folder, bucket, options.pop("max_bytes", None)))
    run.open(CausalLMConfig(), **{"resume": False, "overwrite": False, **options})
    return run


def save(folder: Path, step: int, weights: bytes = b"weights") -> Checkpoint:
    """Writes a checkpoint of a run folder, without an engine."""
    saved = Checkpoint(folder / f"checkpoint-{step}step", step)
    (saved.folder / "state").mkdir(parents=True)
    (saved.folder / "state" / "__0_0.distcp").write_bytes(weights)
    for name in ("trainer_state.json", "data_state.json", "config.yaml"):
        (saved.folder / name).write_text("{}")
    paths = [path for path in sorted(saved.folder.rglob("*")) if path.is_file()]
    entries: dict[str, FileEntry] = {
        str(path.relative_to(saved.folder)): describe_file(path) for path in paths
    }
    write_manifest(saved.folder, Manifest(FORMAT, entries, step))
    return saved


def test_another_machine_resumes_with_the_address_alone(
    server: BucketServer, tmp_path: Path
) -> None:
    first = open_folder(server, tmp_path / "a")
    first.begin(CausalLMConfig(), 0)
    log = first.open_log("metrics.jsonl")
    for step in (1, 2, 3):
        log.write({"event": "step", "step": step})
        if step < 3:
            first.store.publish(save(first.path, step), ALONE)
    assert (first.path / "checkpoint-1step/state").is_dir()
    assert not (first.path / "checkpoint-1step/state/__0_0.distcp").exists()  # a stub
    first.store.close()
    assert [name for name in list_names(server) if "claim" in name] == []

    second = open_folder(server, tmp_path / "b", resume=True)
    assert [saved.step for saved in list_checkpoints(second.path)] == [1, 2]
    assert not (second.path / "checkpoint-2step/state/__0_0.distcp").exists()
    second.store.fetch_newest(ALONE)
    assert (second.path / "checkpoint-2step/state/__0_0.distcp").read_bytes() == b"weights"
    assert not (second.path / "checkpoint-1step/state/__0_0.distcp").exists()

    second.begin(CausalLMConfig(), 2)
    lines = [json.loads(line)["step"] for line in (second.path / "metrics.jsonl").open()]
    assert lines == [1, 2]
    parts = [name for name in list_names(server) if "metrics" in name]
    assert parts == ["metrics.jsonl/000002-000001"]
    second.store.delete(list_checkpoints(second.path)[0])
    assert list_published(server, tmp_path) == [2]
    assert [name for name in list_names(server) if "checkpoint-1step" in name] == []
    second.store.close()


def test_a_changed_object_is_named_and_an_earlier_checkpoint_is_used(
    server: BucketServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_folder(server, tmp_path / "a")
    first.begin(CausalLMConfig(), 0)
    for step in (1, 2):
        first.store.publish(save(first.path, step), ALONE)
    first.store.close()
    server.put({f"{RUN_PREFIX}/checkpoint-2step/state/__0_0.distcp": b"Weights"})

    second = open_folder(server, tmp_path / "b", resume=True)
    with caplog.at_level(logging.WARNING):
        second.store.fetch_newest(ALONE)
    assert (
        f"{server.run_url}/checkpoint-2step/state/__0_0.distcp: the object has changed: 7 bytes, "
        "xxh3 " in caplog.text
    )
    assert not (second.path / "checkpoint-2step/state/__0_0.distcp").exists()
    assert (second.path / "checkpoint-1step/state/__0_0.distcp").read_bytes() == b"weights"

    server.remove(f"{RUN_PREFIX}/checkpoint-1step/state/__0_0.distcp")
    (second.path / "checkpoint-1step/state/__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=f"{server.run_url}/.*distcp: the object is missing"):
        second.store.fetch(list_checkpoints(second.path)[0], ALONE)
    second.begin(CausalLMConfig(), 1)
    assert [name for name in list_names(server) if "checkpoint-2step" in name] == []
    second.store.close()


def test_remnants_of_a_checkpoint_are_deleted_at_the_next_start(
    server: BucketServer, tmp_path: Path
) -> None:
    first = open_folder(server, tmp_path / "a")
    first.begin(CausalLMConfig(), 0)
    for step in (1, 2):
        first.store.publish(save(first.path, step), ALONE)
    first.store.close()
    server.remove(f"{RUN_PREFIX}/checkpoint-1step/manifest.json")
    server.put({f"{RUN_PREFIX}/checkpoint-3step/state/__0_0.distcp": b"weights"})

    second = open_folder(server, tmp_path / "b", resume=True)
    assert len([name for name in list_names(server) if "step/" in name]) == 5 + 4 + 1
    second.begin(CausalLMConfig(), 2)
    second.store.close()
    assert sorted(name for name in list_names(server) if "step/" in name) == [
        "checkpoint-2step/config.yaml",
        "checkpoint-2step/data_state.json",
        "checkpoint-2step/manifest.json",
        "checkpoint-2step/state/__0_0.distcp",
        "checkpoint-2step/trainer_state.json",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("manifest.json", b'{"form', "manifest.json: cannot be read (Input data was truncated)"),
        (
            "manifest.json",
            b'{"format": 1, "step": 2, "files": {"../x": {"bytes": 1, "xxh3": "%s"}}}'
            % (b"0" * 32),
            "the name '../x' cannot be used",
        ),
        ("trainer_state.json", None, "first/checkpoint-2step/trainer_state.json: the object is m"),
    ],
)
def test_a_checkpoint_that_cannot_be_staged_is_skipped_and_deleted(
    name: str,
    content: bytes | None,
    message: str,
    server: BucketServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = open_folder(server, tmp_path / "a")
    first.begin(CausalLMConfig(), 0)
    for step in (1, 2):
        first.store.publish(save(first.path, step), ALONE)
    first.store.close()
    if content is None:
        server.remove(f"{RUN_PREFIX}/checkpoint-2step/{name}")
    else:
        server.put({f"{RUN_PREFIX}/checkpoint-2step/{name}": content})

    second = open_folder(server, tmp_path / "b", resume=True)
    second.store.fetch_newest(ALONE)
    assert message in caplog.text
    assert [saved.step for saved in list_checkpoints(second.path)] == [1, 2]
    assert (second.path / "checkpoint-1step/state/__0_0.distcp").read_bytes() == b"weights"
    second.begin(CausalLMConfig(), 1)
    assert [name for name in list_names(server) if "checkpoint-2step" in name] == []
    assert [saved.step for saved in list_checkpoints(second.path)] == [1]
    second.store.close()


def test_a_cut_part_of_a_log_loses_one_line(server: BucketServer, tmp_path: Path) -> None:
    first = open_folder(server, tmp_path / "a")
    first.begin(CausalLMConfig(), 0)
    log = first.open_log("metrics.jsonl")
    for step in (1, 2):
        log.write({"event": "step", "step": step})
        first.store.publish_files()
    first.store.close()
    server.put({f"{RUN_PREFIX}/metrics.jsonl/000001-000001": b'{"event": "step", "st'})

    second = open_folder(server, tmp_path / "b", resume=True)
    second.begin(CausalLMConfig(), 2)
    assert (second.path / "metrics.jsonl").read_text() == '{"event": "step", "step": 2}\n'
    second.store.close()


def test_unfinished_files_are_not_published(server: BucketServer, tmp_path: Path) -> None:
    run = open_folder(server, tmp_path / "a")
    for folder in ("systems.part/linear", "systems/linear"):
        (run.path / folder).mkdir(parents=True)
        (run.path / folder / "config.json").write_text("{}")
        (run.path / folder / ".0a1b.json").write_text("{}")
    run.begin(CausalLMConfig(), 0)
    published = [name for name in list_names(server) if "systems" in name]
    assert published == ["systems/linear/config.json"]
    run.store.close()


def test_other_objects_are_no_claims(server: BucketServer, tmp_path: Path) -> None:
    open_folder(server, tmp_path / "a").store.close()
    names = ("claim-x", "claim-000007/x")
    server.put({f"{RUN_PREFIX}/.bsmeta-run/{name}": b"{}" for name in names})
    run = open_folder(server, tmp_path / "b", resume=True)
    assert ".bsmeta-run/claim-000001" in list_names(server)
    run.store.close()


def test_a_run_below_the_prefix_is_not_deleted(server: BucketServer, tmp_path: Path) -> None:
    open_folder(server, tmp_path / "a").store.close()
    inner = {".bsmeta-run/run.txt": b"", "config.yaml": b"{}"}
    server.put({f"{RUN_PREFIX}/inner/{name}": content for name, content in inner.items()})
    for options in ({}, {"overwrite": True}):
        with pytest.raises(
            ConfigurationError, match="it also holds inner/, which belongs to anoth"
        ):
            open_folder(server, tmp_path / "b", **options)
    assert [name for name in list_names(server) if "inner" in name] == [
        "inner/.bsmeta-run/run.txt",
        "inner/config.yaml",
    ]
    open_folder(server, tmp_path / "b", resume=True).store.close()


def test_a_run_below_another_one_is_refused(server: BucketServer, tmp_path: Path) -> None:
    open_folder(server, tmp_path / "a").store.close()
    url = server.run_url
    inner = open_bucket(f"{url}/seeds/1")
    refusal = f"out_dir={url}/seeds/1: it is below {url}, which belongs to another run; expected"
    with pytest.raises(ConfigurationError, match=refusal):
        BucketStore(tmp_path / "b", inner).open(resume=False, overwrite=True)
    assert inner.list_objects() == []

    server.faults = [failing(403, "AccessDenied", 9, matches("HEAD", "run.txt"))]
    assert inner.find_parent_with(".bsmeta-run/run.txt") is None
    server.faults = [failing(503, "SlowDown", 99, matches("HEAD", "run.txt"))]
    with pytest.raises(DataError, match=f"reading {server.run_url}/seeds/.bsmeta-run/run.txt"):
        inner.find_parent_with(".bsmeta-run/run.txt")


def test_a_second_run_is_refused_and_a_replaced_one_uploads_nothing_more(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_folder(server, tmp_path / "a")
    with pytest.raises(ConfigurationError, match=r"out_dir=\w\w://.*held by process \d+ on"):
        open_folder(server, tmp_path / "b")
    with pytest.raises(ConfigurationError, match="held by process"):  # it is still alive here
        open_folder(server, tmp_path / "c", resume=True)

    hostname = "bsmeta.training.run_folder.bucket_store.socket.gethostname"
    monkeypatch.setattr(hostname, lambda: "other")
    second = open_folder(server, tmp_path / "d", resume=True)
    with pytest.raises(TrainingError, match="another process has resumed or replaced this run"):
        first.store.publish(save(first.path, 1), ALONE)
    assert list_published(server, tmp_path) == []

    second.begin(CausalLMConfig(), 0)
    second.store.publish(save(second.path, 1), ALONE)
    second.store.close()
    with pytest.raises(ConfigurationError, match="holds an earlier run"):
        open_folder(server, tmp_path / "e")
    third = open_folder(server, tmp_path / "e", overwrite=True)
    assert list_names(server) == [".bsmeta-run/claim-000001", ".bsmeta-run/run.txt"]
    third.store.close()


def test_a_dead_process_that_nobody_has_waited_for_holds_no_claim(
    server: BucketServer, tmp_path: Path
) -> None:
    open_folder(server, tmp_path / "a").store.close()
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.read()
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    claim = {"host": socket.gethostname(), "process": process.pid}
    server.put({f"{RUN_PREFIX}/.bsmeta-run/claim-000001": json.dumps(claim).encode()})
    open_folder(server, tmp_path / "b", resume=True).store.close()
    process.wait()


def test_of_two_simultaneous_starts_one_is_refused(server: BucketServer, tmp_path: Path) -> None:
    """The other run claims the prefix between the listing and the claim of this one."""

    def claim(environ: Environ) -> None:
        if environ["REQUEST_METHOD"] == "PUT" and "claim-" in environ["PATH_INFO"]:
            server.faults.clear()
            server.put({f"{RUN_PREFIX}/.bsmeta-run/claim-000001": b"{}"})

    server.faults = [claim]
    with pytest.raises(ConfigurationError, match="another run has just claimed it"):
        open_folder(server, tmp_path / "a")


def test_objects_of_others_are_refused(server: BucketServer, tmp_path: Path) -> None:
    server.put({f"{RUN_PREFIX}/notes.txt": b"mine"})
    with pytest.raises(ConfigurationError, match=r"found objects such as notes\.txt"):
        open_folder(server, tmp_path / "a", overwrite=True)
    assert list_names(server) == ["notes.txt"]


def test_a_manifest_of_another_process_ends_the_run(server: BucketServer, tmp_path: Path) -> None:
    run = open_folder(server, tmp_path / "a")
    server.put({f"{RUN_PREFIX}/checkpoint-1step/manifest.json": b"{}"})
    with pytest.raises(TrainingError, match="manifest.json was written by another"):
        run.store.publish(save(run.path, 1), ALONE)
    run.store.close()


def test_two_checkpoints_must_fit(server: BucketServer, tmp_path: Path) -> None:
    run = open_folder(server, tmp_path / "a", max_bytes=1_500_000)
    run.store.check_room(700_000)
    with pytest.raises(ConfigurationError, match=r"staging_max_gb=0\.0015: found 1,500 kB"):
        run.store.check_room(800_000)
    with pytest.raises(ConfigurationError, match=r"staging_dir: .* free; expected"):
        run.store.check_room(10**18)
    run.store.close()


def test_ranks_of_two_folders_upload_and_download_their_shares(
    server: BucketServer, tmp_path: Path
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    stores = [BucketStore(folder, open_bucket(server.run_url)) for folder in folders]
    runs = [RunFolder(store.folder, store) for store in stores]
    for folder in folders:
        folder.mkdir()
    runs[0].open(CausalLMConfig(), resume=False, overwrite=False)
    leaders = (0, 1)
    run_ranks(2, lambda processes: runs[processes.rank].join(processes, resume=False), leaders)

    saved = [save(folder, 1) for folder in folders]
    for folder in folders:
        (folder / "checkpoint-1step/state/__0_0.distcp").rename(folder / "__0_0.distcp")
    (folders[1] / "__0_0.distcp").rename(folders[1] / "checkpoint-1step/state/__0_0.distcp")
    (folders[0] / "__0_0.distcp").unlink()

    def publish(processes: Processes) -> str:
        try:
            runs[processes.rank].store.publish(saved[processes.rank], processes)
        except DataError as error:
            return str(error)
        return ""

    server.faults = [failing(503, "SlowDown", 99, matches("PUT", "state/__0_0.distcp"))]
    errors = run_ranks(2, publish, leaders)
    assert errors == [errors[0]] * 2
    assert f"{server.run_url}: writing checkpoint-1step/state/__0_0.distcp: " in errors[0]
    assert list_published(server, tmp_path) == []

    server.faults = []
    server.requests.clear()
    assert run_ranks(2, publish, leaders) == ["", ""]
    assert list_published(server, tmp_path) == [1]
    assert sorted(list_uploads(server)) == [
        "checkpoint-1step/config.yaml",
        "checkpoint-1step/data_state.json",
        "checkpoint-1step/manifest.json",
        "checkpoint-1step/state/__0_0.distcp",
        "checkpoint-1step/trainer_state.json",
    ]

    assert not (folders[0] / "checkpoint-1step/state/__0_0.distcp").exists()
    shutil.rmtree(folders[1] / "checkpoint-1step")
    run_ranks(
        2, lambda processes: runs[processes.rank].store.fetch(saved[processes.rank], processes),
        leaders,
    )  # fmt: skip
    for folder in folders:
        assert (folder / "checkpoint-1step/state/__0_0.distcp").read_bytes() == b"weights"

    (folders[1] / "checkpoint-1step/state/__0_0.distcp").unlink()
    server.put({f"{RUN_PREFIX}/checkpoint-1step/state/__0_0.distcp": b"Weights"})

    def fetch(processes: Processes) -> str:
        with pytest.raises(CheckpointError) as refusal:
            runs[processes.rank].store.fetch(saved[processes.rank], processes)
        return str(refusal.value)

    errors = run_ranks(2, fetch, leaders)
    assert errors == [errors[0]] * 2
    assert "checkpoint-1step/state/__0_0.distcp: the object has changed" in errors[0]
    runs[1].store.close()
    runs[0].store.close()


def start(
    out_dir: str, folder: Path, *keys: str, script: Path = SCRIPT, **environment: str
) -> Warm:
    """Starts a run from a working folder of its own."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(script), *KEYS, f"out_dir={out_dir}", *keys]
    return Warm(command, {**os.environ, **environment}, folder)


def complete(out_dir: str, folder: Path, *keys: str) -> str:
    """Runs to the end; returns the errors."""
    run = start(out_dir, folder, *keys)
    _, errors = run.communicate()
    assert run.poll() == 0, errors[-3000:]
    return errors


def read_losses(lines: bytes) -> dict[int, float]:
    events = [json.loads(line) for line in lines.splitlines()]
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a run in a local folder that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    complete("run", folder)
    losses = read_losses((folder / "run/metrics.jsonl").read_bytes())
    assert sorted(losses) == [*range(1, 13)]
    return losses


PHASES = (
    ("PUT", "checkpoint-8step/state", [4]),
    ("PUT", "checkpoint-8step/manifest", [4]),
    ("PUT", "metrics.jsonl/000001-000002", [4, 8]),
    ("DELETE", "checkpoint-4step/manifest", [4, 8]),
    ("DELETE", "checkpoint-4step/state", [8]),
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "method", "path", "checkpoints"),
    [
        *(("s3", *phase) for phase in PHASES),
        ("gcs", *PHASES[0]),
        *(pytest.param("gcs", *phase, marks=pytest.mark.slow) for phase in PHASES[1:]),
    ],
    indirect=["server"],
)
def test_a_run_killed_in_any_phase_of_a_save_resumes_elsewhere(
    method: str,
    path: str,
    checkpoints: list[int],
    whole: dict[int, float],
    server: BucketServer,
    tmp_path: Path,
) -> None:
    """`checkpoints` exist when the run is killed at its first request of this form."""
    run = start(server.run_url, tmp_path / "a")
    server.faults = [kill_at(method, path, lambda: [run.pid])]
    run.communicate()
    assert run.poll() == -signal.SIGKILL
    server.faults = [failing(503, "SlowDown", 1, matches("PUT", "state"))]
    assert list_published(server, tmp_path) == checkpoints

    complete(server.run_url, tmp_path / "b", RESUME)
    resumed_from = checkpoints[-1]  # kept by the process that has resumed from it
    assert list_published(server, tmp_path) == [resumed_from, 12]
    parts = list_log_parts(list_names(server))["metrics.jsonl"]
    assert read_losses(join_logs(open_bucket(server.run_url), parts)) == whole


@pytest.mark.long
@SLOW_ON_GCS
def test_a_run_that_cannot_write_is_refused_before_step_1(
    server: BucketServer, tmp_path: Path
) -> None:
    refused = failing(403, "SignatureDoesNotMatch", 99, lambda _: True)
    server.faults = [refused]
    run = start(server.run_url, tmp_path / "a")
    output, errors = run.communicate()
    assert run.poll() == 2, errors[-3000:]
    assert f"out_dir={server.run_url}: listing: " in errors
    assert "SignatureDoesNotMatch" in errors
    assert SECRET not in output + errors

    server.faults = []
    run = start(server.run_url, tmp_path / "b", "staging_max_gb=0.00001")
    output, errors = run.communicate()
    assert run.poll() == 2, errors[-3000:]
    assert "staging_max_gb=1e-05: found 10 kB, expected at least" in errors
    assert "step 1/12" not in output + errors
    assert list_published(server, tmp_path) == []

    complete(server.run_url, tmp_path / "b")
    assert json.loads(open_bucket(server.run_url).read("status.json") or b"")["state"] == "done"


@pytest.mark.long
@SLOW_ON_GCS
def test_a_server_that_fails_ends_the_run_with_an_intact_checkpoint(
    server: BucketServer, tmp_path: Path
) -> None:
    server.faults = [failing(503, "SlowDown", 99, matches("PUT", "checkpoint-8step/state"))]
    run = start(server.run_url, tmp_path / "a")
    _, errors = run.communicate()
    assert run.poll() == 2, errors[-3000:]
    assert "writing checkpoint-8step/state/" in errors
    assert list_published(server, tmp_path) == [4]


@pytest.mark.long
@SLOW_ON_GCS
@pytest.mark.parametrize("stage", ["", "2"], ids=["ddp", "zero2"])
def test_two_ranks_save_in_a_thread_and_resume_elsewhere(
    stage: str, server: BucketServer, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    keys = (*KEYS, "async_save=true", f"out_dir={server.run_url}")
    ranks: dict[str, Any] = {"processes": 2, "TOY_ZERO_STAGE": stage}
    launch(SCRIPT, *keys, "max_train_steps=6", f"staging_dir={tmp_path / 'a'}", **ranks)
    assert list_published(server, tmp_path) == [6]
    launch(SCRIPT, *keys, RESUME, f"staging_dir={tmp_path / 'b'}", **ranks)
    assert list_published(server, tmp_path) == [6, 12]
    parts = list_log_parts(list_names(server))["metrics.jsonl"]
    assert sorted(read_losses(join_logs(open_bucket(server.run_url), parts))) == [*range(1, 13)]


ENGINES = pytest.mark.parametrize("stage", ["", "2", "fsdp2"], ids=["ddp", "zero2", "fsdp2"])
SHARDED_ENGINES = pytest.mark.parametrize("stage", ["2", "fsdp2"], ids=["zero2", "fsdp2"])
"""Engines under which each machine has files of a checkpoint that no other machine has."""


def start_machines(
    server: BucketServer,
    tmp_path: Path,
    *keys: str,
    stage: str,
    script: Path = SCRIPT,
    fault: str = "none:",
) -> list[Warm]:
    """Starts two processes that share no folder, like those of two machines."""
    port = free_port()
    machines = []
    for rank in range(2):
        variables = {
            "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "RANK": str(rank), "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TOY_ZERO_STAGE": stage,
            "FAULT": fault,
        }  # fmt: skip
        folder = tmp_path / f"machine-{rank}"
        machines.append(start(server.run_url, folder, *keys, script=script, **variables))
    return machines


def end_machines(machines: list[Warm]) -> list[tuple[int, str]]:
    """Waits for processes; returns their exit codes and errors."""
    errors = [machine.communicate()[1] for machine in machines]
    return [(machine.wait(), text) for machine, text in zip(machines, errors, strict=True)]


def list_uploads(server: BucketServer) -> list[str]:
    """Lists the objects of checkpoints that were uploaded, in order."""
    prefix = f"/{BUCKET}/{RUN_PREFIX}/"
    paths = [path.partition("?")[0] for method, path, _ in server.requests if method == "PUT"]
    names = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
    return [name for name in names if name.startswith("checkpoint-")]


@pytest.mark.long
@SLOW_ON_GCS
@ENGINES
def test_two_machines_without_a_shared_folder_save_and_resume(
    stage: str, server: BucketServer, tmp_path: Path
) -> None:
    keys = ("async_save=true", "log_documents=true")
    ended = end_machines(start_machines(server, tmp_path, *keys, "max_train_steps=8", stage=stage))
    assert [code for code, _ in ended] == [0, 0], ended
    assert list_published(server, tmp_path) == [8]
    assert not [name for name in list_names(server) if "rehearsal" in name or "claim" in name]
    uploads = list_uploads(server)
    assert uploads.count("checkpoint-8step/manifest.json") == 1
    assert uploads[-1] == "checkpoint-8step/manifest.json"

    [second] = (tmp_path / "machine-1/runs/staging").iterdir()
    staged = {path.name for path in (second / "checkpoint-8step/state").rglob("*.*")}
    # The shard of its own rank, which it has uploaded; rank 0 alone writes under DDP.
    assert staged == (set() if stage == "" else {"__1_0.distcp"})

    shutil.rmtree(tmp_path / "machine-0")  # another machine takes its place
    ended = end_machines(start_machines(server, tmp_path, *keys, RESUME, stage=stage))
    assert [code for code, _ in ended] == [0, 0], ended
    assert list_published(server, tmp_path) == [8, 12]
    parts = list_log_parts(list_names(server))
    bucket = open_bucket(server.run_url)
    assert sorted(read_losses(join_logs(bucket, parts["metrics.jsonl"]))) == [*range(1, 13)]
    for rank in range(2):
        lines = join_logs(bucket, parts[f"documents-rank{rank}.jsonl"]).splitlines()
        assert [json.loads(line)["step"] for line in lines] == [*range(1, 13)]
        assert f"rank {rank} of 2".encode() in join_logs(bucket, parts[f"log-rank{rank}.txt"])


def assert_machines_resume(server: BucketServer, tmp_path: Path, stage: str) -> None:
    """Resumes both machines after step 4, and expects the last checkpoint of the run."""
    ended = end_machines(start_machines(server, tmp_path, RESUME, stage=stage))
    assert [code for code, _ in ended] == [0, 0], ended
    assert list_published(server, tmp_path) == [4, 12]


@pytest.mark.long
@SLOW_ON_GCS
@SHARDED_ENGINES
def test_a_failed_upload_of_the_second_machine_fails_the_save_on_both(
    stage: str, server: BucketServer, tmp_path: Path
) -> None:
    server.faults = [failing(503, "SlowDown", 99, matches("PUT", "checkpoint-8step/state/__1_0"))]
    ended = end_machines(start_machines(server, tmp_path, stage=stage))
    assert [code for code, _ in ended] == [2, 2], ended
    for _, errors in ended:
        assert "writing checkpoint-8step/state/__1_0.distcp" in errors
    assert list_published(server, tmp_path) == [4]

    server.faults = []
    assert_machines_resume(server, tmp_path, stage)


@pytest.mark.long
@SLOW_ON_GCS
@pytest.mark.parametrize("path", ["checkpoint-8step/state/__1_0", "checkpoint-8step/manifest"])
@SHARDED_ENGINES
def test_a_machine_that_is_killed_in_a_save_leaves_the_earlier_checkpoint(
    stage: str, path: str, server: BucketServer, tmp_path: Path
) -> None:
    machines = start_machines(server, tmp_path, stage=stage)
    server.faults = [kill_at("PUT", path, lambda: [machines["__1_0" in path].pid])]
    codes = [code for code, _ in end_machines(machines)]
    assert -signal.SIGKILL in codes
    assert 0 not in codes
    assert list_published(server, tmp_path) == [4]

    server.faults = []
    assert_machines_resume(server, tmp_path, stage)


@pytest.mark.long
@SLOW_ON_GCS
@SHARDED_ENGINES
def test_a_changed_object_on_one_machine_is_skipped_by_both(
    stage: str, server: BucketServer, tmp_path: Path
) -> None:
    """Only the second machine downloads the changed object: the first still has its copy."""
    keys = ("keep_last_checkpoints=0", "max_train_steps=8")
    ended = end_machines(start_machines(server, tmp_path, *keys, stage=stage))
    assert [code for code, _ in ended] == [0, 0], ended
    server.put({f"{RUN_PREFIX}/checkpoint-8step/state/__0_0.distcp": b"changed"})

    ended = end_machines(start_machines(server, tmp_path, *keys, RESUME, stage=stage))
    assert [code for code, _ in ended] == [0, 0], ended
    assert "checkpoint-8step/state/__0_0.distcp: the object has changed" in ended[0][1]
    assert list_published(server, tmp_path) == [4, 8]


@pytest.mark.long
@SLOW_ON_GCS
@SHARDED_ENGINES
def test_two_machines_roll_back_to_a_checkpoint_in_the_bucket(
    stage: str, server: BucketServer, tmp_path: Path
) -> None:
    """The spike of step 7 rolls back to step 4, of which each machine has only its own files."""
    keys = ("loss_spike_deviations=20", "loss_spike_window=4", "learning_rate=0.001")
    machines = start_machines(
        server,
        tmp_path,
        *keys,
        "max_train_steps=8",
        stage=stage,
        script=FAULTY_SCRIPT,
        fault="spike:7",
    )
    ended = end_machines(machines)
    assert [code for code, _ in ended] == [0, 0], ended
    copy_logs(server, tmp_path / "logs")
    events = [json.loads(line) for line in (tmp_path / "logs/metrics.jsonl").open()]
    rollbacks = [event for event in events if event["event"] == "rollback"]
    assert [(event["step"], event["to_step"]) for event in rollbacks] == [(7, 4)]
    assert list_published(server, tmp_path) == [8]
