"""Requests of a run to Cloud Storage: checksums, credentials, answers of other servers.

`test_bucket.py` tests what all stores have in common.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bsmeta.core import cloud_storage
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.training.buckets import gcs as gcs_bucket
from bsmeta.training.buckets.bucket import StoredObject
from bsmeta.training.buckets.gcs import GCSBucket
from tests.core.test_cloud_storage import TOKEN, write_credentials
from tests.data.bucket_server import Environ, failing
from tests.data.cloud_storage_server import Storage
from tests.training.bucket_runs import matches

NAMES = ["a b+ü.json", "a%41?#&.json", "model/config.json", "x//y"]


def test_names_of_objects_are_encoded(gcs: Storage, tmp_path: Path) -> None:
    bucket = GCSBucket(gcs.run_url, part_bytes=4)
    for name in NAMES:
        (tmp_path / "file").write_bytes(b"0123456789")
        bucket.write(name, b"012")
        assert bucket.read(name) == b"012"
        bucket.upload(name, tmp_path / "file")  # in parts, with the other API
    assert bucket.list_objects() == [StoredObject(name, 10) for name in NAMES]
    for name in NAMES:
        assert gcs.objects[f"runs/first/{name}"][0] == b"0123456789"
        bucket.delete(name)
    assert bucket.list_objects() == []


def test_an_object_that_was_damaged_on_its_way_is_not_stored(
    gcs: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The declared hash is that of other content, as if a byte had changed."""
    bucket = GCSBucket(gcs.run_url, part_bytes=4)
    (tmp_path / "file").write_bytes(b"0123456789")
    monkeypatch.setattr(gcs_bucket, "encode_md5", lambda _: "N5QrlYIUXb8yzDcF09qI5A==")
    with pytest.raises(DataError, match=f"{gcs.run_url}: writing claim: HTTP 400 .*MD5 hash"):
        bucket.write("claim", b"012", is_new=True)
    with pytest.raises(DataError, match=f"{gcs.run_url}: writing file: HTTP 400 .BadDigest"):
        bucket.upload("file", tmp_path / "file")
    assert (gcs.objects, gcs.list_unfinished()) == ({}, [])


def test_a_completion_whose_response_was_lost_has_succeeded(gcs: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")

    def lose_response(environ: Environ) -> tuple[int, dict[str, str], bytes] | None:
        if environ["REQUEST_METHOD"] != "POST" or "uploads" in environ["QUERY_STRING"]:
            return None
        gcs.faults.clear()
        gcs.put({"runs/first/file": b"0123456789"})
        gcs.drop_uploads()
        return 503, {}, b""

    gcs.faults = [lose_response]
    bucket = GCSBucket(gcs.run_url, part_bytes=4)
    bucket.upload("file", tmp_path / "file")
    assert bucket.read("file") == b"0123456789"


@pytest.mark.parametrize("body", [b"<html>login</html>", b'{"items": 3}', b""])
def test_a_page_of_another_server_is_no_answer(gcs: Storage, tmp_path: Path, body: bytes) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    bucket = GCSBucket(gcs.run_url, part_bytes=4)
    gcs.faults = [lambda _: (200, {}, body)]
    with pytest.raises(DataError, match=f"{gcs.run_url}: listing: HTTP 200 .not of Cloud Storage"):
        bucket.list_objects()
    with pytest.raises(DataError, match="writing claim: HTTP 200 .not of Cloud Storage"):
        bucket.write("claim", b"012")
    with pytest.raises(DataError, match="writing file: HTTP 200 .the response has no UploadId"):
        bucket.upload("file", tmp_path / "file")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_transient_failures_are_retried(gcs: Storage, status: int) -> None:
    gcs.faults = [failing(status, "", 9, matches("PUT", "claim"))]
    GCSBucket(gcs.run_url).write("claim", b"012", is_new=True)
    assert [method for method, _, _ in gcs.requests] == ["PUT"] * 10


def test_a_server_that_cannot_be_reached_is_tried_ten_times(
    gcs: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []
    monkeypatch.setattr(gcs_bucket, "choose_delay", lambda number: failures.append(number) or 0.0)
    bucket = GCSBucket(gcs.run_url)
    gcs.close()
    with pytest.raises(DataError, match="reading claim: .*STORAGE_EMULATOR_HOST, a proxy"):
        bucket.read("claim")
    assert failures == [*range(1, 10)]


def test_a_missing_bucket_is_refused(gcs: Storage) -> None:
    with pytest.raises(ConfigurationError, match=r"listing: HTTP 404 \(no bucket\); expected a"):
        GCSBucket("gs://corpse/runs/first").list_objects()


def use_account(server: Storage, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Requires a token, which an account of the environment receives from the server."""
    server.token = TOKEN
    file = write_credentials(folder / "account.json", f"{server.endpoint}/token")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setattr(cloud_storage, "SERVER", server.endpoint)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))


def test_requests_have_the_token_of_the_account(
    gcs: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_account(gcs, monkeypatch, tmp_path)
    (tmp_path / "file").write_bytes(b"0123456789")
    bucket = GCSBucket(gcs.run_url, part_bytes=4)
    bucket.write("claim", b"012")
    bucket.upload("file", tmp_path / "file")
    assert bucket.list_objects() == [StoredObject("claim", 3), StoredObject("file", 10)]
    assert sum(path.startswith("/token") for _, path, _ in gcs.requests) == 1

    body = json.dumps({"error": {"message": f"no access with {TOKEN}"}}).encode()
    gcs.faults = [lambda _: (403, {}, body)]
    with pytest.raises(ConfigurationError, match="HTTP 403 .no access with") as refusal:
        bucket.write("claim", b"")
    assert TOKEN not in str(refusal.value)


def test_credentials_that_are_refused_are_named(
    gcs: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_account(gcs, monkeypatch, tmp_path)
    gcs.statuses = [400]
    message = f"out_dir={gcs.run_url}: listing: .*; run gcloud auth application-default login"
    with pytest.raises(ConfigurationError, match=message):
        GCSBucket(gcs.run_url).list_objects()


def test_missing_and_unreadable_credentials_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(ConfigurationError, match="found no credentials; run gcloud auth"):
        GCSBucket("gs://corpus/runs/first")

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ConfigurationError, match=r"opening: .*none\.json.*; run gcloud auth"):
        GCSBucket("gs://corpus/runs/first")
