"""Objects on a local S3 server: listed, read in ranges, retried, checked, and refused."""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from werkzeug.serving import make_ssl_devcert

from bsmeta.config.data import DataConfig
from bsmeta.config.programs.copying import StageConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.secrets import redact
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import open_file
from bsmeta.data.io.remote import remote_file, store
from bsmeta.data.io.remote.remote_file import BadCopyError
from bsmeta.data.io.remote.stores import find_file_store
from bsmeta.data.io.shards import find_validation_path, fingerprint_shards, list_shards
from bsmeta.data.stage import stage_data
from tests.data.bucket_server import (
    BUCKET,
    SECRET,
    Environ,
    cutting,
    error,
    failing,
    is_content,
    list_ranges,
)
from tests.data.cloud_storage_server import forget
from tests.data.forked import read_in_fork
from tests.data.helpers import Run, run, same, small_config, write_shards
from tests.data.hub_server import shards_in
from tests.data.s3_server import S3Server

CONTENT = random.Random(0).randbytes(7700)
URL = f"s3://{BUCKET}"
STEPS = 8


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    """A server with one bucket, small blocks and short delays."""
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(store, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(store, "MAX_DELAY_S", 0.02)
    server = S3Server()
    environment = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in (
        "AWS_CA_BUNDLE",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_SESSION_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    forget()
    server.connect()
    yield server
    server.client.close()
    server.close()
    _reset_moto()
    forget()


def _reset_moto() -> None:
    from moto.s3.models import s3_backends

    s3_backends.reset()


def config(folder: Path, **values: Any) -> DataConfig:
    return DataConfig(**{"cache_dir": str(folder / "cache"), "hub_retries": 4, **values})


def names(folder: Path, train_file: Any, **values: Any) -> list[str]:
    return [shard.name for shard in list_shards(config(folder, train_file=train_file, **values))]


def put_object(s3: S3Server, folder: Path, content: bytes = CONTENT, **values: Any) -> FileRef:
    s3.put({"web/data.jsonl": content})
    (shard,) = list_shards(config(folder, train_file=f"{URL}/web/data.jsonl", **values))
    assert isinstance(shard.path, FileRef)
    s3.requests.clear()
    return shard.path


def read(ref: FileRef) -> bytes:
    with open_file(ref) as file:
        return file.read()


@pytest.mark.long
@pytest.mark.parametrize(
    ("train_file", "expected"),
    [
        (f"{URL}/web/*.jsonl.gz", ["a b+ü.jsonl.gz", "test.jsonl.gz"]),
        (f"{URL}/web/[a]*", ["a b+ü.jsonl.gz"]),
        (f"{URL}/web/", ["a b+ü.jsonl.gz", "test.jsonl.gz"]),
        (f"{URL}/web/**", ["a b+ü.jsonl.gz", "c.jsonl", "notes.txt", "test.jsonl.gz"]),
        (f"{URL}/*/2020/c.*", ["c.jsonl"]),
        ([f"{URL}/web/test.jsonl.gz", f"{URL}/top.jsonl"], ["test.jsonl.gz", "top.jsonl"]),
        (f"{URL}/odd/part[x].jsonl", ["part[x].jsonl"]),
        (f"{URL}/odd/part[xy].jsonl", ["partx.jsonl", "party.jsonl"]),
        (f"{URL}/[z]/a.jsonl", ["a.jsonl"]),
        (URL, ["top.jsonl"]),
    ],
)
def test_a_glob_or_folder_expands_to_its_shards(
    s3: S3Server, tmp_path: Path, train_file: Any, expected: list[str]
) -> None:
    keys = ["web/", "web/a b+ü.jsonl.gz", "web/test.jsonl.gz", "web/notes.txt"]
    s3.put(dict.fromkeys([*keys, "web/2020/c.jsonl", "webs/d.jsonl", "top.jsonl"], b"x"))
    odd = ("part[x].jsonl", "partx.jsonl", "party.jsonl")
    s3.put(dict.fromkeys([*(f"odd/{name}" for name in odd), "[z]/a.jsonl"], b"x"))
    assert names(tmp_path, train_file) == expected


def test_a_listing_of_several_pages_is_read_completely(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")  # of S3 itself: 1,000
    s3.put({f"web/{number:04}.jsonl": b"x" for number in range(23)})
    s3.faults = [failing(503, "SlowDown", 2, where=lambda _: True)]
    listed = names(tmp_path, f"{URL}/web/*.jsonl")
    assert listed == [f"{number:04}.jsonl" for number in range(23)]
    assert sum("continuation-token" in query for _, query, _ in s3.requests) == 2


@pytest.mark.long
def test_only_names_with_the_prefix_of_a_pattern_are_requested(
    s3: S3Server, tmp_path: Path
) -> None:
    """A folder may have many more objects than match."""
    s3.put(dict.fromkeys(["web/part-1.jsonl", "web/part-2.jsonl", "web/rest-1.jsonl"], b"x"))
    s3.requests.clear()
    assert names(tmp_path, f"{URL}/web/part-*.jsonl") == ["part-1.jsonl", "part-2.jsonl"]
    ((_, path, _),) = s3.requests
    assert "prefix=web%2Fpart-&" in path


@pytest.mark.long
@pytest.mark.parametrize(
    "key",
    ["web//data.jsonl", "web/./data.jsonl", "web/../data.jsonl", "web/a\tb.jsonl", "web/a%41+?#&"],
)
def test_unusual_names_are_read(s3: S3Server, tmp_path: Path, key: str) -> None:
    s3.put({key: CONTENT, "web/z.jsonl": b"x"})
    (ref,) = [
        shard.path
        for shard in list_shards(config(tmp_path, train_file=f"{URL}/web/**"))
        if isinstance(shard.path, FileRef) and shard.path.size > 1
    ]
    assert ref.path == key
    assert read(ref) == CONTENT


def test_the_held_out_object_is_left_out_by_its_name(s3: S3Server, tmp_path: Path) -> None:
    s3.put({f"{key}.jsonl": b"x" for key in "ab"})
    held_out = f"{URL}/b.jsonl"
    assert names(tmp_path, f"{URL}/*.jsonl", validation_file=held_out) == ["a.jsonl"]
    path = find_validation_path(config(tmp_path, validation_file=held_out))
    assert str(path) == held_out


@pytest.mark.long
def test_an_object_is_read_in_blocks_and_cached(s3: S3Server, tmp_path: Path) -> None:
    ref = put_object(s3, tmp_path)
    assert read(ref) == CONTENT
    assert len(list_ranges(s3)) == 8
    assert read(ref) == CONTENT
    assert len(list_ranges(s3)) == 8


def test_bad_answers_are_retried_and_cut_answers_resumed(
    s3: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s3.faults = [failing(503, "SlowDown", 3), cutting(333, 2)]
    assert read(put_object(s3, tmp_path)) == CONTENT
    assert "bytes=333-999" in list_ranges(s3)
    assert "HTTP 503 (SlowDown); retrying" in caplog.text


def test_a_requested_wait_is_bounded_and_logged(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store, "MAX_REQUESTED_WAIT_S", 0.01)
    ref = put_object(s3, tmp_path)

    def ask_to_wait(environ: Environ) -> tuple[int, dict[str, str], bytes]:
        s3.faults.clear()
        return 503, {"Retry-After": "7"}, error("SlowDown")

    s3.faults = [ask_to_wait]
    assert read(ref) == CONTENT
    assert "HTTP 503 (SlowDown), which asks to wait 7 s; retrying" in caplog.text


def test_an_outage_is_named(s3: S3Server, tmp_path: Path) -> None:
    ref = put_object(s3, tmp_path)
    s3.faults = [failing(503, "SlowDown", 10**6)]
    with pytest.raises(DataError) as error:
        read(ref)
    assert str(error.value).startswith(
        f"{URL}/web/data.jsonl, byte 0 of 7700: given up after 5 failures in a row, the last one: "
        f"HTTP 503 (SlowDown); see whether {s3.endpoint} can be reached from here (AWS_ENDPOINT_URL"
    )


@pytest.mark.long
@pytest.mark.parametrize("is_ignored", [False, True])
def test_an_overwritten_object_is_refused(s3: S3Server, tmp_path: Path, is_ignored: bool) -> None:
    """Also where the server ignores the condition on the ETag."""
    ref = put_object(s3, tmp_path)

    def ignoring(environ: Environ) -> None:
        if is_ignored:
            environ.pop("HTTP_IF_MATCH", None)

    s3.faults = [ignoring]
    s3.put({"web/data.jsonl": CONTENT[::-1]})
    with pytest.raises(DataError, match=r"data\.jsonl: the file has changed since it was listed"):
        read(ref)
    forget()
    assert read(put_object(s3, tmp_path, CONTENT[::-1])) == CONTENT[::-1]


@pytest.mark.long
def test_a_deleted_object_is_refused(s3: S3Server, tmp_path: Path) -> None:
    ref = put_object(s3, tmp_path)
    s3.client.delete_object(Bucket=BUCKET, Key="web/data.jsonl")
    with pytest.raises(DataError, match=r"has changed .*: found HTTP 404 \(NoSuchKey\)"):
        read(ref)


@pytest.mark.long
@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "AccessDenied", r"do not permit s3:ListBucket of the bucket and s3:GetObject"),
        (403, "SignatureDoesNotMatch", "not valid for this endpoint; correct AWS_ACCESS_KEY_ID"),
        (400, "ExpiredToken", "the credentials have expired; renew them"),
        (403, "InvalidObjectState", "the object is archived; restore it first"),
        (400, "InvalidRequest", "the request is refused"),
    ],
)
def test_refusals_are_named_and_not_retried(
    s3: S3Server, tmp_path: Path, status: int, code: str, message: str
) -> None:
    ref = put_object(s3, tmp_path)
    s3.faults = [failing(status, code, 10**6)]
    with pytest.raises(DataError, match=message) as error:
        read(ref)
    assert str(error.value).startswith(f"{URL}/web/data.jsonl, bytes 0 to 1000: {s3.endpoint} ")
    assert f"HTTP {status} ({code})" in str(error.value)
    assert len(s3.requests) == 1


@pytest.mark.long
def test_an_answer_that_is_not_a_listing_is_named(s3: S3Server, tmp_path: Path) -> None:
    s3.faults = [lambda environ: (200, {}, b"<html>sign in</html>")]
    with pytest.raises(DataError, match="after 5 failures .*: the answer is not a listing, but ht"):
        names(tmp_path, f"{URL}/*.jsonl")


def test_keys_are_not_decoded_if_the_server_does_not_encode_them(
    s3: S3Server, tmp_path: Path
) -> None:
    entry = '<Contents><Key>a+b%20c.jsonl</Key><ETag>"e"</ETag><Size>1</Size></Contents>'
    listing = f"<ListBucketResult>{entry}</ListBucketResult>".encode()
    s3.faults = [lambda environ: (200, {}, listing)]
    assert names(tmp_path, f"{URL}/*.jsonl") == ["a+b%20c.jsonl"]


def test_a_malformed_endpoint_is_refused(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nowhere")
    with pytest.raises(ConfigurationError, match=r"^s3://… cannot be read: ValueError: In"):
        names(tmp_path, f"{URL}/*.jsonl")


def test_wrong_names_are_refused(s3: S3Server, tmp_path: Path) -> None:
    s3.put({"web/a.jsonl": b"x"})
    with pytest.raises(DataError, match="there is no such bucket: corpse; correct its name"):
        names(tmp_path, "s3://corpse/*.jsonl")
    with pytest.raises(DataError, match=f"{URL}: nothing matches web/b.jsonl"):
        names(tmp_path, f"{URL}/web/b.jsonl")
    with pytest.raises(ConfigurationError, match="expected s3://BUCKET/PATH"):
        names(tmp_path, "s3:///web/b.jsonl")


@pytest.mark.long
def test_without_credentials_only_public_buckets_are_read(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are not signed."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    ref = put_object(s3, tmp_path)
    with pytest.raises(DataError, match=r"HTTP 403.*: it is not public, and there are no cred"):
        read(ref)
    s3.client.put_object_acl(Bucket=BUCKET, Key="web/data.jsonl", ACL="public-read")
    assert read(ref) == CONTENT
    assert list_ranges(s3)
    assert "Signature" not in "".join(path for _, path, _ in s3.requests)


def test_a_bucket_in_another_region_is_read(s3: S3Server, tmp_path: Path) -> None:
    ref = put_object(s3, tmp_path)

    def elsewhere(environ: Environ) -> tuple[int, dict[str, str], bytes] | None:
        if "%2Feu-west-1%2F" in environ["QUERY_STRING"]:
            return None
        return 301, {"x-amz-bucket-region": "eu-west-1"}, b""

    s3.faults = [elsewhere]
    assert read(ref) == CONTENT
    assert len(s3.requests) == 9


def test_secrets_are_not_printed(
    s3: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bsmeta")
    ref = put_object(s3, tmp_path)
    s3.faults = [failing(500, "InternalError", 10**6)]
    with pytest.raises(DataError) as error:
        read(ref)
    messages = f"{error.value}" + "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("bsmeta")
    )
    assert "HTTP 500" in messages
    assert not any(secret in messages for secret in (SECRET, "Signature", "AKIA"))


@pytest.mark.long
def test_credentials_read_from_a_file_are_redacted_afterward(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, token = "file-secret-0123456789", "file-token-0123456789"
    content = {"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": secret}
    lines = [f"{name} = {value}" for name, value in content.items()]
    lines.append(f"aws_session_token = {token}")
    (tmp_path / "credentials").write_text("\n".join(["[default]", *lines]))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert redact(f"{secret}, {token}") == f"{secret}, {token}"
    put_object(s3, tmp_path)
    assert redact(f"{secret}, {token}") == "[redacted], [redacted]"


def test_credentials_may_come_from_a_program_of_a_profile(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id = "AKIAOFTHEPROGRAM0000"
    answer = {"Version": 1, "AccessKeyId": key_id, "SecretAccessKey": "program-secret-0123456789"}
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    profile = f"[profile work]\ncredential_process = cat {tmp_path}/answer.json\n"
    (tmp_path / "config").write_text(profile)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert read(put_object(s3, tmp_path)) == CONTENT
    assert [f"X-Amz-Credential={key_id}%2F" in path for _, path, _ in s3.requests] == [True] * 8


def test_requests_go_through_a_proxy(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers in place of a proxy."""
    s3.put({"web/data.jsonl": CONTENT})
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setenv("HTTP_PROXY", s3.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://192.0.2.1")  # of no machine (RFC 5737)
    (shard,) = list_shards(config(tmp_path, train_file=f"{URL}/web/data.jsonl"))
    assert isinstance(shard.path, FileRef)
    assert read(shard.path) == CONTENT


@pytest.mark.long
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "AWS_CA_BUNDLE"])
def test_certificates_are_checked_with_the_bundle_of_the_environment(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    s3.put({"web/data.jsonl": CONTENT})  # moto's buckets belong to the process
    certificate = make_ssl_devcert(str(tmp_path / "tls"), host="localhost")
    for name in ("SSL_CERT_DIR", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "localhost")
    with closing(S3Server(certificate)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        with pytest.raises(DataError, match="given up after 5 .*CERTIFICATE_VERIFY_FAILED"):
            names(tmp_path, f"{URL}/web/*.jsonl")

        forget()
        monkeypatch.setenv(variable, certificate[0])
        assert names(tmp_path, f"{URL}/web/*.jsonl") == ["data.jsonl"]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "FileNotFoundError"), ("no certificate", "SSLError")]
)
def test_an_unreadable_certificate_bundle_is_named(
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    message: str,
) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    with pytest.raises(ConfigurationError) as error:
        names(tmp_path, f"{URL}/web/*.jsonl")
    assert str(error.value).startswith(
        f"{bundle} (AWS_CA_BUNDLE, or ca_bundle in ~/.aws/config): found {message}"
    )


def test_threads_share_a_store(s3: S3Server, tmp_path: Path) -> None:
    ref = put_object(s3, tmp_path, hub_cache_gb=0)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, [ref] * 16)) == [CONTENT] * 16
    assert len(list_ranges(s3)) == 16 * 8


def test_a_process_that_is_forked_after_a_read_reads_too(s3: S3Server, tmp_path: Path) -> None:
    ref = put_object(s3, tmp_path, hub_cache_gb=0)
    assert read(ref) == CONTENT
    assert read_in_fork(ref) == CONTENT
    assert read(ref) == CONTENT
    assert len(list_ranges(s3)) == 3 * 8


def test_a_missing_library_is_named_with_its_extra(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "botocore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ConfigurationError, match=r"pip install 'bsmeta\[object-stores\]'"):
        names(tmp_path, f"{URL}/*.jsonl")


def flip_byte(start: int) -> Any:
    """Changes a byte in the first answer that begins at byte `start`."""
    left = [1]

    def fault(environ: Environ) -> tuple[int, dict[str, str], bytes] | None:
        if not is_content(environ) or not environ["HTTP_RANGE"].startswith(f"bytes={start}-"):
            return None
        left[0] -= 1
        if left[0] < 0:
            return None
        last = int(environ["HTTP_RANGE"].rpartition("-")[2])
        part = bytearray(CONTENT[start : last + 1])
        part[5] ^= 1
        return 206, {"Content-Range": f"bytes {start}-{last}/{len(CONTENT)}"}, bytes(part)

    return fault


def test_a_wrong_byte_is_detected_by_the_md5(s3: S3Server, tmp_path: Path) -> None:
    ref = put_object(s3, tmp_path)
    s3.faults = [flip_byte(7000)]
    with pytest.raises(BadCopyError, match="did not have the listed hash"):
        read(ref)
    assert read(ref) == CONTENT


def test_an_object_uploaded_in_parts_is_verified_by_its_composite_hash(
    s3: S3Server, tmp_path: Path
) -> None:
    part = random.Random(1).randbytes(5 << 20)
    content = part + part[::-1] + b"the rest"
    key = {"Bucket": BUCKET, "Key": "parts.jsonl"}
    upload = key | {"UploadId": s3.client.create_multipart_upload(**key)["UploadId"]}
    parts = []
    for number, data in enumerate((part, part[::-1], b"the rest"), 1):
        answer = s3.client.upload_part(**upload, PartNumber=number, Body=data)
        parts.append({"ETag": answer["ETag"], "PartNumber": number})
    s3.client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    (shard,) = list_shards(config(tmp_path, train_file=f"{URL}/parts.jsonl"))
    assert isinstance(shard.path, FileRef)
    assert shard.path.etag.endswith("-3")
    for changed, expected in ((content, True), (content[:-1] + b"T", False)):
        verifier = find_file_store(shard.path).make_verifier(shard.path)
        assert verifier is not None
        for start in range(0, len(content), 3_000_000):
            verifier.update(changed[start : start + 3_000_000])
        assert verifier.matches_hash() is expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), [30, 41, 17, 26])


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    """The run from local files."""
    return run(small_config(folder), STEPS)


@pytest.mark.parametrize(("workers", "cache_gb"), [(0, 20.0), (2, 20.0), (2, 0.0)])
def test_batches_equal_batches_of_local_files(
    s3: S3Server, tmp_path: Path, folder: Path, whole: Run, workers: int, cache_gb: float
) -> None:
    """Before and after a resume, through bad answers.

    Loader processes send requests only without a cache: otherwise, the survey fills it before.
    """
    s3.put({f"web/{name}": content for name, content in shards_in(folder).items()})
    values = {"train_file": f"{URL}/web/*.jsonl.gz", "hub_retries": 50, "num_workers": workers}
    values |= {"cache_dir": str(tmp_path / "cache"), "hub_cache_gb": cache_gb}
    s3_config = small_config(tmp_path, **values)
    s3.faults = [failing(503, "SlowDown", 3), cutting(120, 5)]
    first = run(s3_config, 3)
    forget()
    rest = run(s3_config, STEPS - 3, state=first.state)
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), whole)


def test_changed_objects_are_refused_on_resume(s3: S3Server, tmp_path: Path, folder: Path) -> None:
    s3.put(shards_in(folder))
    s3_config = small_config(tmp_path, train_file=f"{URL}/*.gz", cache_dir=str(tmp_path / "cache"))
    first = run(s3_config, 2)
    s3.put({"part-00.jsonl.gz": (folder / "part-01.jsonl.gz").read_bytes()})
    forget()
    with pytest.raises(ConfigurationError, match=r"shards\.part-00\.jsonl\.gz\.etag: "):
        run(s3_config, 1, state=first.state)
    assert set(fingerprint_shards(list_shards(s3_config))["part-00.jsonl.gz"]) == {"bytes", "etag"}


def test_documents_of_the_held_out_object_are_not_trained_on(
    s3: S3Server, tmp_path: Path, folder: Path
) -> None:
    held_out = (folder / "part-01.jsonl.gz").read_bytes()
    s3.put({**shards_in(folder), "copy.jsonl.gz": held_out})
    s3_config = small_config(
        tmp_path,
        train_file=f"{URL}/*.gz",
        validation_file=f"{URL}/part-01.jsonl.gz",
        cache_dir=str(tmp_path / "cache"),
    )
    with pytest.raises(DataError, match=r"/copy\.jsonl\.gz, line \d+: the document has the text"):
        run(s3_config, 40)


def test_names_outside_the_folder_in_a_listing_are_refused(s3: S3Server, tmp_path: Path) -> None:
    """moto would not store such keys, but a server may list them."""
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>3</Size><ETag>&quot;0&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in ("d/keys.jsonl", "d/../../../victim/keys.jsonl")
    )
    listing = f"<ListBucketResult><Name>{BUCKET}</Name>{entries}</ListBucketResult>".encode()

    def list_hostile(environ: Environ) -> tuple[int, dict[str, str], bytes] | None:
        is_listing = "list-type" in environ["QUERY_STRING"]
        return (200, {"Content-Type": "application/xml"}, listing) if is_listing else None

    s3.faults.append(list_hostile)
    data = small_config(tmp_path, train_file=f"{URL}/**", cache_dir=str(tmp_path / "cache"))
    out = tmp_path / "a/b/out"
    out.parent.mkdir(parents=True)
    with pytest.raises(DataError) as error:
        stage_data(StageConfig(data_config=data, out=str(out)), out)
    assert str(error.value).startswith(
        f"{URL}/d/../../../victim/keys.jsonl: the name 'train/../../../victim/keys.jsonl' cannot "
        "be used for a file in"
    )
    assert [*tmp_path.rglob("*keys*")] == []
