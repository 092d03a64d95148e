"""Objects of a run on a local S3 server: parts, conditional uploads, interruptions, refusals."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.training.bucket import ObjectExistsError, RunBucket, StoredObject
from tests.data.s3_server import BUCKET, SECRET, Environ, S3Server, error, failing

URL = f"s3://{BUCKET}/runs/first"
MEGABYTE = 1 << 20
LARGE = random.Random(0).randbytes(11 * MEGABYTE)


def is_upload(environ: Environ) -> bool:
    return environ["REQUEST_METHOD"] == "PUT"


def test_a_large_file_is_uploaded_in_parts_and_read_back(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(LARGE)
    bucket = RunBucket(URL, part_bytes=5 * MEGABYTE)
    s3.faults = [failing(503, "SlowDown", 1, is_upload)]
    bucket.upload("state/large", tmp_path / "large")

    parts = [path for method, path, _ in s3.requests if "partNumber" in path and method == "PUT"]
    assert len(parts) == 4  # three parts, the first one twice
    assert bucket.list_objects("state/") == [StoredObject("state/large", 11 * MEGABYTE)]
    bucket.download("state/large", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == LARGE


def test_objects_that_mark_folders_are_not_listed(s3: S3Server) -> None:
    s3.put({"runs/first/": b"", "runs/first/model/": b"", "runs/first/model/config.json": b"{}"})
    assert RunBucket(URL).list_objects() == [StoredObject("model/config.json", 2)]


def test_an_interrupted_download_continues(s3: S3Server, tmp_path: Path) -> None:
    bucket = RunBucket(URL)
    bucket.write("state", LARGE)
    cuts = iter([3 * MEGABYTE])

    def cut(environ: Environ) -> int | None:
        is_download = environ["REQUEST_METHOD"] == "GET" and "list-type" not in str(environ)
        return next(cuts, None) if is_download else None

    s3.faults = [cut]
    bucket.download("state", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == LARGE
    assert s3.content_requests() == [f"bytes={3 * MEGABYTE}-"]


def test_only_one_conditional_upload_succeeds(s3: S3Server) -> None:
    bucket = RunBucket(URL)
    bucket.write("claim", b"first", is_new=True)
    bucket.write("claim", b"first", is_new=True)  # as after a lost response
    with pytest.raises(ObjectExistsError, match="s3://corpus/runs/first/claim"):
        bucket.write("claim", b"second", is_new=True)
    assert bucket.read("claim") == b"first"
    bucket.delete("claim", "claim")
    assert bucket.read("claim") is None


def test_an_incomplete_upload_leaves_no_object(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(LARGE)
    bucket = RunBucket(URL, part_bytes=5 * MEGABYTE)
    s3.faults = [
        failing(503, "SlowDown", 99, lambda environ: "partNumber=3" in environ["QUERY_STRING"])
    ]
    with pytest.raises(DataError, match=r"s3://corpus/runs/first: writing large: .*SlowDown"):
        bucket.upload("large", tmp_path / "large")
    assert bucket.list_objects() == []
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=BUCKET)


def test_an_error_in_one_of_several_files_drops_the_incomplete_objects(
    s3: S3Server, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("first", "second", "small")}
    for name, file in files.items():
        file.write_bytes(b"{}" if name == "small" else LARGE)
    bucket = RunBucket(URL, part_bytes=5 * MEGABYTE)

    def is_second_part(environ: Environ) -> bool:
        is_part = "partNumber=2" in environ["QUERY_STRING"]
        return is_part and environ["PATH_INFO"].endswith("/second")

    s3.faults = [failing(503, "SlowDown", 99, is_second_part)]
    with pytest.raises(DataError, match=r"s3://corpus/runs/first: writing second: .*SlowDown"):
        bucket.upload_all(files)
    assert "first" not in [entry.name for entry in bucket.list_objects()]
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=BUCKET)

    s3.faults = []
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
def test_a_refusal_names_the_keys_and_no_secret(s3: S3Server, status: int, code: str) -> None:
    bucket = RunBucket(URL)
    body = error(code).replace(b">m<", f">{SECRET}<".encode())
    s3.faults = [lambda _: (status, {}, body)]
    with pytest.raises(ConfigurationError, match=f"out_dir={URL}: writing claim: .*{code}") as info:
        bucket.write("claim", b"")
    assert "AWS_PROFILE" in str(info.value)
    assert SECRET not in str(info.value)


def test_missing_credentials_are_refused(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="no credentials; set AWS_ACCESS_KEY_ID"):
        RunBucket(URL)
