"""The promises that Cloud Storage and Azure share, on small servers that speak their APIs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.remote.stores import find_file_store, find_store
from bsmeta.data.io.shards import list_shards
from tests.data.bucket_server import ObjectServer
from tests.data.cloud_storage_server import Storage
from tests.data.forked import read_in_fork
from tests.data.helpers import Run, run, same, small_config, write_shards
from tests.data.hub_server import shards_in
from tests.data.io.remote.test_objects import CONTENT, STEPS, read


@pytest.fixture(params=["gs", "az"])
def storage(request: pytest.FixtureRequest) -> ObjectServer:
    """A server with one bucket, small blocks and short delays."""
    server: ObjectServer = request.getfixturevalue(request.param)
    return server


def list_refs(folder: Path, train_file: str, cache_gb: float = 20.0) -> list[FileRef]:
    config = DataConfig(
        train_file=train_file,
        cache_dir=str(folder / "cache"),
        hub_cache_gb=cache_gb,
        hub_retries=4,
    )
    paths = [shard.path for shard in list_shards(config)]
    assert all(isinstance(path, FileRef) for path in paths)
    return paths  # type: ignore[return-value]


def test_objects_are_listed_read_and_verified(storage: ObjectServer, tmp_path: Path) -> None:
    """An object stored with an encoding is read as it is stored."""
    contents = {f"web/{name}.jsonl": CONTENT for name in ("a b+ü", "b", "composed", "c")}
    storage.put({**contents, "web/": b"", "web/2020/d.jsonl": b"x"})
    storage.statuses = [503, 429]
    listed = list_refs(tmp_path, f"{storage.url}/web/*.jsonl")
    assert [ref.path for ref in listed] == sorted(contents)
    storage.statuses = [500]
    assert [read(ref) for ref in listed] == [CONTENT] * 4
    for ref, is_right in zip(listed, (True, True, True, None), strict=True):
        verifier = find_file_store(ref).make_verifier(ref)
        if verifier is not None:
            verifier.update(CONTENT)
        assert (verifier and verifier.matches_hash()) is is_right


def test_an_overwritten_object_is_refused(storage: ObjectServer, tmp_path: Path) -> None:
    storage.put({"a.jsonl": CONTENT})
    (ref,) = list_refs(tmp_path, f"{storage.url}/a.jsonl")
    storage.put({"a.jsonl": CONTENT[::-1]})
    with pytest.raises(DataError) as error:
        read(ref)
    assert str(error.value).startswith(
        f"{storage.url}/a.jsonl: the file has changed since it was listed: found "
    )


def test_a_process_that_is_forked_after_a_read_reads_too(
    storage: ObjectServer, tmp_path: Path
) -> None:
    storage.put({"a.jsonl": CONTENT})
    (ref,) = list_refs(tmp_path, f"{storage.url}/a.jsonl", cache_gb=0.0)
    assert read(ref) == CONTENT
    assert read_in_fork(ref) == CONTENT
    assert read(ref) == CONTENT


def test_a_missing_bucket_and_a_private_one_are_named(
    storage: ObjectServer, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"there is no such (bucket|container).*: corpse"):
        list_refs(tmp_path, storage.url.replace("corpus", "corpse") + "/*.jsonl")
    storage.statuses = [401]
    with pytest.raises(DataError, match=r"HTTP 401 \(.+\): it is not public, and"):
        list_refs(tmp_path, f"{storage.url}/*.jsonl")


def test_unreadable_credentials_are_named(gs: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")
    with pytest.raises(ConfigurationError, match=r"unset it for a public bucket: .* was not found"):
        find_store("gs")


def test_batches_equal_batches_of_local_files(storage: ObjectServer, tmp_path: Path) -> None:
    folder = write_shards(tmp_path, [30, 41, 17, 26])
    storage.put(shards_in(folder))
    whole = run(small_config(folder), STEPS)
    values = {"train_file": f"{storage.url}/*.jsonl.gz", "cache_dir": str(tmp_path / "cache")}
    first = run(small_config(tmp_path, **values), 3)
    storage.statuses = [503]
    rest = run(small_config(tmp_path, **values), STEPS - 3, state=first.state)
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), whole)
