"""Objects of a run on local servers: parts, conditional uploads, interruptions, refusals."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.training.buckets.bucket import ObjectExistsError, StoredObject
from bsmeta.training.buckets.choice import open_bucket
from tests.data.bucket_server import (
    SECRET,
    BucketServer,
    Environ,
    error,
    failing,
    list_ranges,
)

MEGABYTE = 1 << 20
CREDENTIAL_SOURCES = {"s3": "AWS_PROFILE", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}
LARGE = random.Random(0).randbytes(11 * MEGABYTE)


def is_upload(environ: Environ) -> bool:
    return environ["REQUEST_METHOD"] == "PUT"


def test_a_large_file_is_uploaded_in_parts_and_read_back(
    server: BucketServer, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(LARGE)
    bucket = open_bucket(server.run_url, part_bytes=5 * MEGABYTE)
    server.faults = [failing(503, "SlowDown", 1, is_upload)]
    bucket.upload("state/large", tmp_path / "large")

    parts = [
        path for method, path, _ in server.requests if "partNumber" in path and method == "PUT"
    ]
    assert len(parts) == 4  # three parts, the first one twice
    assert bucket.list_objects("state/") == [StoredObject("state/large", 11 * MEGABYTE)]
    bucket.download("state/large", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == LARGE


def test_objects_that_mark_folders_are_not_listed(server: BucketServer) -> None:
    server.put(
        {"runs/first/": b"", "runs/first/model/": b"", "runs/first/model/config.json": b"{}"}
    )
    assert open_bucket(server.run_url).list_objects() == [StoredObject("model/config.json", 2)]


def test_an_interrupted_download_continues(server: BucketServer, tmp_path: Path) -> None:
    bucket = open_bucket(server.run_url)
    bucket.write("state", LARGE)
    cuts = iter([3 * MEGABYTE])

    def cut(environ: Environ) -> int | None:
        is_download = environ["REQUEST_METHOD"] == "GET" and "list-type" not in str(environ)
        return next(cuts, None) if is_download else None

    server.faults = [cut]
    bucket.download("state", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == LARGE
    assert list_ranges(server) == [f"bytes={3 * MEGABYTE}-"]


def test_only_one_conditional_upload_succeeds(server: BucketServer) -> None:
    bucket = open_bucket(server.run_url)
    bucket.write("claim", b"first", is_new=True)
    bucket.write("claim", b"first", is_new=True)  # as after a lost response
    with pytest.raises(ObjectExistsError, match=f"{server.run_url}/claim"):
        bucket.write("claim", b"second", is_new=True)
    assert bucket.read("claim") == b"first"
    bucket.delete("claim", "claim")
    assert bucket.read("claim") is None


def test_an_incomplete_upload_leaves_no_object(server: BucketServer, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(LARGE)
    bucket = open_bucket(server.run_url, part_bytes=5 * MEGABYTE)
    server.faults = [
        failing(503, "SlowDown", 99, lambda environ: "partNumber=3" in environ["QUERY_STRING"])
    ]
    with pytest.raises(DataError, match=f"{server.run_url}: writing large: .*SlowDown"):
        bucket.upload("large", tmp_path / "large")
    assert bucket.list_objects() == []
    assert server.list_unfinished() == []


def test_an_error_in_one_of_several_files_drops_the_incomplete_objects(
    server: BucketServer, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("first", "second", "small")}
    for name, file in files.items():
        file.write_bytes(b"{}" if name == "small" else LARGE)
    bucket = open_bucket(server.run_url, part_bytes=5 * MEGABYTE)

    def is_second_part(environ: Environ) -> bool:
        is_part = "partNumber=2" in environ["QUERY_STRING"]
        return is_part and environ["PATH_INFO"].endswith("/second")

    server.faults = [failing(503, "SlowDown", 99, is_second_part)]
    with pytest.raises(DataError, match=f"{server.run_url}: writing second: .*SlowDown"):
        bucket.upload_all(files)
    assert "first" not in [entry.name for entry in bucket.list_objects()]
    assert server.list_unfinished() == []

    server.faults = []
    bucket.upload_all(files)
    assert bucket.list_objects() == [
        StoredObject("first", 11 * MEGABYTE),
        StoredObject("second", 11 * MEGABYTE),
        StoredObject("small", 2),
    ]
    bucket.download("second", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == LARGE


@pytest.mark.parametrize(
    ("status", "code"), [(403, "SignatureDoesNotMatch"), (403, "AccessDenied")]
)
def test_a_refusal_names_the_keys_and_no_secret(
    server: BucketServer, status: int, code: str
) -> None:
    bucket = open_bucket(server.run_url)
    body = error(code).replace(b">m<", f">{SECRET}<".encode())
    server.faults = [lambda _: (status, {}, body)]
    message = f"out_dir={server.run_url}: writing claim: .*{code}"
    with pytest.raises(ConfigurationError, match=message) as info:
        bucket.write("claim", b"")
    assert CREDENTIAL_SOURCES[server.run_url[:2]] in str(info.value)
    assert SECRET not in str(info.value)
