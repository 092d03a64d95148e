"""Blobs on a local server: listed, read in ranges, retried, checked, and refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.programs.copying import StageConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.remote import store
from bsmeta.data.io.shards import find_validation_path, fingerprint_shards, list_shards
from bsmeta.data.stage import stage_data
from tests.data.azure_server import (
    ACCOUNT,
    KEY,
    SAS,
    SIGNATURE,
    AzureServer,
    format_etag,
    format_listing,
    refuse,
)
from tests.data.cloud_storage_server import forget
from tests.data.forked import read_in_fork
from tests.data.helpers import small_config
from tests.data.io.remote.test_objects import CONTENT, config, names, read

URL = AzureServer.url


def list_blob(az: AzureServer, folder: Path, content: bytes = CONTENT, **values: Any) -> FileRef:
    """Stores a blob, and returns it as it is listed."""
    az.put({"web/data.jsonl": content})
    (shard,) = list_shards(config(folder, train_file=f"{URL}/web/data.jsonl", **values))
    assert isinstance(shard.path, FileRef)
    az.requests.clear()
    return shard.path


@pytest.mark.parametrize(
    ("train_file", "expected"),
    [
        (f"{URL}/web/*.jsonl.gz", ["a b+ü.jsonl.gz", "test.jsonl.gz"]),
        (f"{URL}/web/[a]*", ["a b+ü.jsonl.gz"]),
        (f"{URL}/web", ["a b+ü.jsonl.gz", "test.jsonl.gz"]),
        (f"{URL}/web/**", ["a b+ü.jsonl.gz", "c.jsonl", "notes.txt", "test.jsonl.gz"]),
        (f"{URL}/*/2020/c.*", ["c.jsonl"]),
        ([f"{URL}/web/test.jsonl.gz", f"{URL}/top.jsonl"], ["test.jsonl.gz", "top.jsonl"]),
        (URL, ["top.jsonl"]),
    ],
)
def test_an_address_lists_the_matching_blobs(
    az: AzureServer, tmp_path: Path, train_file: Any, expected: list[str]
) -> None:
    """A page of the listing has two blobs."""
    blobs = ["web/", "web/a b+ü.jsonl.gz", "web/test.jsonl.gz", "web/notes.txt"]
    az.put(dict.fromkeys([*blobs, "web/2020/c.jsonl", "webs/d.jsonl", "top.jsonl"], b"x"))
    assert names(tmp_path, train_file) == expected


def test_only_names_with_the_prefix_of_a_pattern_are_requested(
    az: AzureServer, tmp_path: Path
) -> None:
    az.put(dict.fromkeys([f"web/part {number}.jsonl" for number in range(5)], b"x"))
    az.put({"web/rest.jsonl": b"x"})
    listed = names(tmp_path, f"{URL}/web/part *.jsonl")
    assert listed == [f"part {number}.jsonl" for number in range(5)]
    start = f"/{ACCOUNT}/corpus?restype=container&comp=list&prefix=web%2Fpart%20&delimiter=%2F"
    assert [path for _, path, _ in az.requests] == [
        start,
        f"{start}&marker=2",
        f"{start}&marker=4",
    ]


@pytest.mark.parametrize(
    "name", ["web//data.jsonl", "web/./data.jsonl", "web/../data.jsonl", "web/a%41+?#&<"]
)
@pytest.mark.parametrize("key", ["", KEY])
def test_unusual_names_are_read(
    az: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    az.key = key
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_KEY", key)
    az.put({name: CONTENT, "web/z.jsonl": b"x"})
    (ref,) = [
        shard.path
        for shard in list_shards(config(tmp_path, train_file=f"{URL}/web/**"))
        if isinstance(shard.path, FileRef) and shard.path.size > 1
    ]
    assert ref.path == name
    assert read(ref) == CONTENT


def test_encoded_entries_are_decoded_and_folders_skipped(az: AzureServer, tmp_path: Path) -> None:
    """As the service lists names that XML cannot contain, and a hierarchical namespace."""
    properties = "<Etag>0x8DE1</Etag><Content-Length>1</Content-Length>"
    blobs = (
        f"<Blob><Name Encoded='true'>a%25%EF%BF%BE.jsonl</Name><Properties>{properties}"
        "<ResourceType>file</ResourceType></Properties></Blob>"
        "<BlobPrefix><Name>web/</Name></BlobPrefix>"
        f"<Blob><Name>web</Name><Properties>{properties}<ResourceType>directory</ResourceType>"
        "</Properties></Blob>"
    )
    az.answers = [(200, {}, format_listing(blobs).encode())]
    assert names(tmp_path, f"{URL}/*") == ["a%\ufffe.jsonl"]


def test_the_held_out_blob_is_left_out_by_its_name(az: AzureServer, tmp_path: Path) -> None:
    az.put({f"{name}.jsonl": b"x" for name in "ab"})
    held_out = f"{URL}/b.jsonl"
    assert names(tmp_path, f"{URL}/*.jsonl", validation_file=held_out) == ["a.jsonl"]
    assert str(find_validation_path(config(tmp_path, validation_file=held_out))) == held_out


def test_shards_are_recognized_by_their_md5_or_etag(az: AzureServer, tmp_path: Path) -> None:
    az.put({"a.jsonl": b"x", "composed.jsonl": b"x"})
    shards = list_shards(config(tmp_path, train_file=f"{URL}/*"))
    assert fingerprint_shards(shards) == {
        "a.jsonl": {"bytes": 1, "etag": "9dd4e461268c8034f5c8564e155c67a6"},
        "composed.jsonl": {"bytes": 1, "etag": "0x8DE000000000002"},
    }


def test_a_request_is_signed_with_the_account_key(
    az: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    az.key = KEY
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    ref = list_blob(az, tmp_path, hub_cache_gb=0)
    assert read(ref) == CONTENT
    assert read_in_fork(ref) == CONTENT
    assert len(az.requests) == 2 * 8


def test_a_request_has_the_sas_token(
    az: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    az.sas = SAS
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", SAS)
    assert read(list_blob(az, tmp_path)) == CONTENT
    assert az.requests[0] == ("GET", f"/{ACCOUNT}/corpus/web/data.jsonl?{SAS}", "bytes=0-999")


def test_a_cut_answer_is_resumed_after_the_requested_wait(
    az: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(store, "MAX_REQUESTED_WAIT_S", 0.01)
    ref = list_blob(az, tmp_path)
    cut = {
        "Content-Length": "1000",
        "Content-Range": "bytes 0-999/7700",
        "ETag": f'"{format_etag(2)}"',
        "Connection": "close",
    }
    az.answers = [(206, cut, CONTENT[:333]), refuse(503, "ServerBusy", Retry_After="7")]
    assert read(ref) == CONTENT
    assert [asked for _, _, asked in az.requests[:3]] == ["bytes=0-999", *["bytes=333-999"] * 2]
    assert "HTTP 503 (ServerBusy), which asks to wait 7 s; retrying" in caplog.text


def test_an_outage_is_named(az: AzureServer, tmp_path: Path) -> None:
    ref = list_blob(az, tmp_path)
    az.statuses = [503] * 99
    with pytest.raises(DataError) as error:
        read(ref)
    server = az.endpoint.removesuffix(f"/{ACCOUNT}")
    assert str(error.value).startswith(
        f"{URL}/web/data.jsonl, byte 0 of 7700: given up after 5 failures in a row, the last one: "
        f"HTTP 503 (ServerBusy); see whether {server} can be reached from here "
        "(AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ENDPOINT, a proxy)"
    )


@pytest.mark.parametrize(
    ("is_ignored", "version"),
    [(False, r"HTTP 412 \(ConditionNotMet\)"), (True, "ETag 0x8DE000000000003")],
)
def test_an_overwritten_blob_is_refused(
    az: AzureServer, tmp_path: Path, is_ignored: bool, version: str
) -> None:
    """Also where the server ignores the condition on the ETag."""
    az.ignores_conditions = is_ignored
    ref = list_blob(az, tmp_path)
    az.put({"web/data.jsonl": CONTENT[::-1]})
    with pytest.raises(DataError, match=f"changed since it was listed: found {version}, .*000002;"):
        read(ref)
    forget()
    assert read(list_blob(az, tmp_path, CONTENT[::-1])) == CONTENT[::-1]


def test_a_deleted_blob_is_refused(az: AzureServer, tmp_path: Path) -> None:
    ref = list_blob(az, tmp_path)
    del az.objects["web/data.jsonl"]
    with pytest.raises(DataError, match=r"has changed .*: found HTTP 404 \(BlobNotFound\)"):
        read(ref)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "AuthenticationFailed", "the credentials in AZURE_STORAGE_SAS_TOKEN are not of this"),
        (403, "AuthorizationPermissionMismatch", "(a SAS token needs sp=rl)"),
        (403, "KeyBasedAuthenticationNotPermitted", "the account does not permit keys; set AZURE_"),
        (409, "BlobArchived", "the object is archived; restore it first"),
        (400, "InvalidQueryParameterValue", "the request is refused"),
    ],
)
def test_refusals_are_named_and_not_retried(
    az: AzureServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    message: str,
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", SAS)
    ref = list_blob(az, tmp_path)
    az.answers = [refuse(status, code)] * 99
    with pytest.raises(DataError) as error:
        read(ref)
    server = az.endpoint.removesuffix(f"/{ACCOUNT}")
    assert str(error.value).startswith(
        f"{URL}/web/data.jsonl, bytes 0 to 1000: {server} answers HTTP {status} ({code}): "
    )
    assert message in str(error.value)
    assert len(az.requests) == 1


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "ResourceNotFound", "there is no such container, or it is not public: corpus; corr"),
        (400, "InvalidResourceName", "there is no such container, or it is not public: corpus; c"),
        (409, "PublicAccessNotPermitted", "it is not public, and there are no credentials; set A"),
    ],
)
def test_refusals_of_an_anonymous_listing_are_explained(
    az: AzureServer, tmp_path: Path, status: int, code: str, message: str
) -> None:
    az.answers = [refuse(status, code)]
    with pytest.raises(DataError, match=rf"HTTP {status} \({code}\): {message}"):
        names(tmp_path, f"{URL}/*.jsonl")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>sign in</html>", "the answer is not a listing, but html"),
        (format_listing("<Blob><Name>a</Name></Blob>"), "the answer is not a listing: invalid lit"),
    ],
)
def test_an_answer_that_is_not_a_listing_is_named(
    az: AzureServer, tmp_path: Path, body: str, message: str
) -> None:
    az.answers = [(200, {}, body.encode())] * 5
    with pytest.raises(DataError, match=f"after 5 failures .*: {message}"):
        names(tmp_path, f"{URL}/*.jsonl")


def test_wrong_addresses_are_refused(az: AzureServer, tmp_path: Path) -> None:
    az.put({"web/a.jsonl": b"x"})
    with pytest.raises(DataError, match=f"{URL}: nothing matches web/b.jsonl"):
        names(tmp_path, f"{URL}/web/b.jsonl")
    with pytest.raises(ConfigurationError, match="expected az://CONTAINER/PATH"):
        names(tmp_path, "az:///web/b.jsonl")
    with pytest.raises(ConfigurationError, match=r"\(set the account in AZURE_STORAGE_ACCOUNT_N"):
        names(tmp_path, "az://web@corpora.blob.core.windows.net/b.jsonl")


@pytest.mark.parametrize("variable", ["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_KEY"])
def test_secrets_are_not_printed(
    az: AzureServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
) -> None:
    caplog.set_level(logging.DEBUG, "bsmeta")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
    monkeypatch.setenv(variable, KEY if variable == "AZURE_STORAGE_KEY" else SAS)
    ref = list_blob(az, tmp_path)
    az.statuses = [500] * 99
    with pytest.raises(DataError) as error:
        read(ref)
    messages = [record.getMessage() for record in caplog.records if "bsmeta" in record.name]
    printed = "\n".join([str(error.value), *messages])
    assert "HTTP 500 (InternalError); retrying" in printed
    assert not any(secret in printed for secret in (KEY, SIGNATURE, "sig=", "SharedKey"))


def test_staging_copies_and_refuses_names_outside_the_folder(
    az: AzureServer, tmp_path: Path
) -> None:
    az.put({"d/keys.jsonl": CONTENT})
    data = small_config(tmp_path, train_file=f"{URL}/**", cache_dir=str(tmp_path / "cache"))
    out = tmp_path / "a/b/out"
    out.parent.mkdir(parents=True)
    stage_data(StageConfig(data_config=data, out=str(out)), out)
    assert (out / "train/keys.jsonl").read_bytes() == CONTENT

    forget()
    az.put({"d/../../../victim/keys.jsonl": CONTENT})
    out = tmp_path / "a/b/other"
    with pytest.raises(DataError) as error:
        stage_data(StageConfig(data_config=data, out=str(out)), out)
    assert str(error.value).startswith(
        f"{URL}/d/../../../victim/keys.jsonl: the name 'train/../../../victim/keys.jsonl' cannot "
        "be used for a file in"
    )
    assert [*tmp_path.rglob("*keys*")] == [tmp_path / "a/b/out/train/keys.jsonl"]
