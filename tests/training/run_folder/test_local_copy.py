"""Copies of runs in buckets, as `open_run` and `locate_model` make them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bsmeta
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.core.errors import CheckpointError, DataError
from bsmeta.core.files import UnsafeNameError
from bsmeta.models.manifest import write_model_manifest
from bsmeta.tasks.causal_lm.evaluation.training_shards import read_saved_fingerprint
from bsmeta.tasks.checkpoints import locate_model
from bsmeta.training.buckets.bucket import RunBucket, StoredObject
from bsmeta.training.buckets.choice import open_bucket
from bsmeta.training.run_folder.bucket_store import BucketStore
from bsmeta.training.run_folder.folder import RunFolder
from bsmeta.training.run_folder.local_copy import RunCopy
from tests.core.hostile_names import HOSTILE_NAMES
from tests.data.bucket_server import BUCKET, BucketServer

MODEL = {"config.json": b"{}", "model.safetensors": b"weights"}


@pytest.fixture
def run(server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run in progress that has logged a step and exported a model."""
    monkeypatch.setenv("BSMETA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "staging"
    run = RunFolder(folder, BucketStore(folder, open_bucket(server.run_url)))
    run.open(CausalLMConfig(), resume=False, overwrite=False)
    run.write_status("running", 3, None)
    (folder / "metrics.jsonl").write_text('{"event": "step", "step": 3, "loss": 0.5}\n')
    (folder / "model").mkdir()
    for name, content in MODEL.items():
        (folder / "model" / name).write_bytes(content)
    write_model_manifest(folder / "model")
    run.begin(CausalLMConfig(), 3)
    return run


def test_a_run_in_progress_is_read_by_its_address(run: RunFolder, server: BucketServer) -> None:
    opened = bsmeta.open_run(server.run_url)
    assert repr(opened) == f"bsmeta.open_run('{server.run_url}')"
    assert opened.config.task == "causal_lm"
    assert opened.status().state == "running"
    assert opened.metrics() == [{"event": "step", "step": 3, "loss": 0.5}]
    assert opened.checkpoints() == []
    assert not (opened.path / "model").exists()

    with (run.path / "metrics.jsonl").open("a") as log:
        log.write('{"event": "step", "step": 4, "loss": 0.25}\n')
    run.write_status("done", 4, 0)
    run.store.close()
    assert [event["step"] for event in opened.metrics("step")] == [3, 4]
    assert opened.status().state == "done"


def test_a_process_that_has_released_the_run_is_not_running(
    run: RunFolder, server: BucketServer
) -> None:
    run.store.close()
    assert bsmeta.open_run(server.run_url).status().state == "failed"


def test_an_object_that_is_deleted_during_the_copy_is_left_out(
    run: RunFolder, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_objects = RunBucket.list_objects

    def list_with_deleted_checkpoint(bucket: RunBucket, folder: str = "") -> list[StoredObject]:
        return [
            *listed_objects(bucket, folder),
            StoredObject("checkpoint-2step/manifest.json", 10),
        ]

    monkeypatch.setattr(RunBucket, "list_objects", list_with_deleted_checkpoint)
    opened = bsmeta.open_run(server.run_url)
    assert opened.status().state == "running"
    assert not (opened.path / "checkpoint-2step/manifest.json").exists()


def test_a_model_is_copied_once_and_verified(run: RunFolder, server: BucketServer) -> None:
    location = locate_model(server.run_url)
    model = Path(location.model)
    assert location.name == server.run_url
    assert {path.name: path.read_bytes() for path in model.iterdir()} == {
        **MODEL,
        "manifest.json": (run.path / "model/manifest.json").read_bytes(),
    }
    assert location.run_folder == model.parent
    assert location.config == model.parent / "config.yaml"

    server.requests.clear()
    assert locate_model(f"{server.run_url}/model").model == location.model
    assert [path for _, path, _ in server.requests if "safetensors" in path] == []

    server.put({"runs/first/model/model.safetensors": b"Weights"})
    (model / "model.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=f"{server.run_url}/model/model.safetensors: the object has cha"
    ):
        locate_model(server.run_url)


def test_the_state_of_the_data_is_copied_with_a_model(run: RunFolder, server: BucketServer) -> None:
    for step in (2, 3):
        state = {"fingerprint": {"shards": {f"shard-{step}.jsonl": {"bytes": 5}}}, "streams": {}}
        folder = f"runs/first/checkpoint-{step}step"
        server.put({
            f"{folder}/data_state.json": json.dumps(state).encode(),
            f"{folder}/manifest.json": b'{"files": {}}',
        })  # fmt: skip
    location = locate_model(server.run_url)
    assert read_saved_fingerprint(location) == {"shards": {"shard-3.jsonl": {"bytes": 5}}}
    assert location.run_folder is not None
    assert not (location.run_folder / "checkpoint-2step/data_state.json").exists()


def test_an_address_without_a_run_or_model_is_refused(run: RunFolder, server: BucketServer) -> None:
    url = server.run_url.replace("first", "none")
    with pytest.raises(DataError, match=rf"{url}: found no config\.yaml"):
        bsmeta.open_run(url)
    with pytest.raises(DataError, match="found no checkpoint-4step/model; checkpoints with a mode"):
        locate_model(f"{server.run_url}/checkpoint-4step")


@pytest.mark.parametrize("name", ["config.yaml/x", "metrics.jsonl", "metrics.jsonl/x"])
def test_an_object_with_the_name_of_a_folder_is_refused(
    run: RunFolder, server: BucketServer, name: str
) -> None:
    server.put({f"runs/first/{name}": b"{}"})
    file = name.removesuffix("/x")
    with pytest.raises(DataError, match=f"found the file {file}, and further objects"):
        bsmeta.open_run(server.run_url)


def test_a_copy_loses_what_the_run_has_deleted(run: RunFolder, server: BucketServer) -> None:
    server.put(
        {
            "runs/first/checkpoint-3step/manifest.json": b"{}",
            "runs/first/checkpoint-4step/manifest.json": b"{}",
            "runs/first/evaluation": b"a file",
        }
    )
    opened = bsmeta.open_run(server.run_url)
    model = Path(locate_model(server.run_url).model)
    assert [saved.step for saved in opened.checkpoints()] == [3, 4]

    open_bucket(server.run_url).delete("checkpoint-3step/manifest.json", "evaluation")
    server.put({"runs/first/evaluation/evaluation.json": b"{}"})
    assert [saved.step for saved in opened.checkpoints()] == [4]
    assert not (opened.path / "checkpoint-3step").exists()
    assert (opened.path / "evaluation/evaluation.json").read_bytes() == b"{}"
    assert (model / "model.safetensors").read_bytes() == b"weights"


def list_downloads(server: BucketServer) -> list[str]:
    """Lists the objects that were read since the last call."""
    paths = [path.partition("?") for method, path, _ in server.requests if method == "GET"]
    server.requests.clear()
    prefix = f"/{BUCKET}/runs/first/"
    return sorted(path.removeprefix(prefix) for path, _, _ in paths if path.startswith(prefix))


def test_only_changed_objects_and_new_parts_of_logs_are_read_again(
    run: RunFolder, server: BucketServer
) -> None:
    server.put({"runs/first/evaluation/evaluation.json": b"{}"})
    copy = bsmeta.open_run(server.run_url).path
    server.requests.clear()
    bsmeta.open_run(server.run_url)
    assert list_downloads(server) == []

    with (run.path / "metrics.jsonl").open("a") as log:
        log.write('{"event": "step", "step": 4, "loss": 0.25}\n')
    run.store.publish_files()
    server.put({"runs/first/evaluation/evaluation.json": b"[]"})
    server.requests.clear()
    assert [event["step"] for event in bsmeta.open_run(server.run_url).metrics("step")] == [3, 4]
    assert list_downloads(server) == ["evaluation/evaluation.json", "metrics.jsonl/000001-000002"]
    assert (copy / "evaluation/evaluation.json").read_bytes() == b"[]"

    (copy / "evaluation/evaluation.json").write_bytes(b"{} ")  # not by a copy
    (copy / "metrics.jsonl").unlink()
    bsmeta.open_run(server.run_url)
    assert list_downloads(server) == [
        "evaluation/evaluation.json",
        "metrics.jsonl/000001-000001",
        "metrics.jsonl/000001-000002",
    ]
    assert (copy / "evaluation/evaluation.json").read_bytes() == b"[]"

    (copy / ".objects.json").write_bytes(b"{")
    bsmeta.open_run(server.run_url)
    assert "config.yaml" in list_downloads(server)


def test_a_log_of_a_later_start_replaces_the_copy(run: RunFolder, server: BucketServer) -> None:
    opened = bsmeta.open_run(server.run_url)
    assert [event["step"] for event in opened.metrics("step")] == [3]
    open_bucket(server.run_url).write(
        "metrics.jsonl/000002-000001", b'{"event": "step", "step": 2}\n'
    )
    assert [event["step"] for event in opened.metrics("step")] == [2]


def test_a_missing_evaluation_is_made_from_the_address(
    run: RunFolder, server: BucketServer
) -> None:
    with pytest.raises(DataError, match=f"evaluate checkpoint={server.run_url}` makes"):
        bsmeta.open_run(server.run_url).evaluation()


def test_a_name_that_no_object_has_is_no_address() -> None:
    for name in ("first\n", "\x1b[2J", "\udcff"):
        with pytest.raises(DataError, match="expected the address of a run, s3://BUCKET"):
            RunCopy(f"s3://{BUCKET}/{name}")


def test_names_that_lead_out_of_the_copy_are_refused(
    run: RunFolder, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = open_bucket(server.run_url).list_objects()
    monkeypatch.setattr(RunBucket, "list_objects", lambda *_: objects)
    monkeypatch.setattr(RunBucket, "read", lambda *_: b"{}")
    copy = RunCopy(server.run_url)
    for name in HOSTILE_NAMES:
        objects.append(StoredObject(name, 1))
        with pytest.raises(UnsafeNameError):
            copy.update()
        objects.pop()
