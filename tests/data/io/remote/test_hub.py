"""Which shards `hf://` and `dataset_name` stand for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.secrets import redact
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.remote.hub import resolve_commit
from bsmeta.data.io.remote.store import Pattern
from bsmeta.data.io.shards import find_validation_path, fingerprint_shards, list_shards
from bsmeta.data.stream.columns import describe_missing_types
from tests.data.hub_server import COMMIT, TOKEN, Hub, failing, is_anything

FILES = ["a.jsonl.gz", "b.jsonl.gz", "notes.txt", "test.jsonl.gz", "2019/c.jsonl.gz"]
FILES += ["2019/en/d.jsonl.gz", "2020/c.jsonl.zst"]
URL = "hf://datasets/owner/name"


@pytest.fixture
def files(hub: Hub) -> Hub:
    """A server with files in several folders."""
    hub.files = {name: name.encode() for name in FILES}
    hub.listed = dict(hub.files)
    return hub


def config(folder: Path, **values: Any) -> DataConfig:
    return DataConfig(**{"cache_dir": str(folder / "cache"), "hub_retries": 3, **values})


def names(folder: Path, **values: Any) -> list[str]:
    return [shard.name for shard in list_shards(config(folder, **values))]


@pytest.mark.parametrize(
    ("train_file", "expected"),
    [
        (f"{URL}/*.jsonl.gz", ["a.jsonl.gz", "b.jsonl.gz", "test.jsonl.gz"]),
        (f"{URL}@main/[ab].jsonl.gz", ["a.jsonl.gz", "b.jsonl.gz"]),
        (f"{URL}@{COMMIT}/a.jsonl.gz", ["a.jsonl.gz"]),
        (f"{URL}@refs/pr/1/2019", ["c.jsonl.gz"]),
        (f"{URL}/2019/**", ["c.jsonl.gz", "d.jsonl.gz"]),
        (f"{URL}/**/c.*", ["c.jsonl.gz", "c.jsonl.zst"]),
        (f"{URL}/20*/*/d.jsonl.gz", ["d.jsonl.gz"]),
        ([f"{URL}/b*", f"{URL}/a*", f"{URL}/a.jsonl.gz"], ["a.jsonl.gz", "b.jsonl.gz"]),
        (URL, [*FILES[:2], "c.jsonl.gz", "d.jsonl.gz", "test.jsonl.gz"]),
    ],
)
def test_names_and_globs_list_the_matching_shards(
    files: Hub, tmp_path: Path, train_file: Any, expected: list[str]
) -> None:
    assert names(tmp_path, train_file=train_file) == expected


def test_the_name_of_a_data_set_lists_its_shards(files: Hub, tmp_path: Path) -> None:
    (tmp_path / "local.jsonl").write_text("{}")
    dataset = {"dataset_name": "owner/name"}
    everything = [*FILES[:2], "c.jsonl.gz", "d.jsonl.gz", "test.jsonl.gz"]
    assert names(tmp_path, **dataset) == everything
    assert names(tmp_path, **dataset, train_file="2019/*.gz") == ["c.jsonl.gz"]
    mixed = [f"{tmp_path}/local.jsonl", "a*"]
    assert names(tmp_path, **dataset, train_file=mixed) == ["a.jsonl.gz", "local.jsonl"]


def test_the_validation_file_is_left_out_by_its_name(files: Hub, tmp_path: Path) -> None:
    kept = ["a.jsonl.gz", "b.jsonl.gz"]
    for held_out in ("elsewhere/test.jsonl.gz", f"{URL}/test.jsonl.gz", f"{URL}/t*.jsonl.gz"):
        glob = f"{URL}/*.jsonl.gz"
        assert names(tmp_path, train_file=glob, validation_file=held_out) == kept
    assert names(tmp_path, train_file=glob, exclude=["t*"]) == kept
    assert names(tmp_path, train_file=glob, exclude=["hf://*/test.jsonl.gz"]) == kept


def test_the_validation_file_is_read_locally_or_from_the_hub(files: Hub, tmp_path: Path) -> None:
    def path(**values: Any) -> str | None:
        path = find_validation_path(config(tmp_path, **values))
        return None if path is None else str(path)

    on_hub = f"{URL}@{COMMIT}/test.jsonl.gz"
    assert path() is None
    assert path(validation_file="here/test.jsonl.gz") == "here/test.jsonl.gz"
    assert path(validation_file=f"{URL}/test.jsonl.gz") == on_hub
    assert path(validation_file=f"{URL}/t*.gz") == on_hub
    assert path(validation_file="test.jsonl.gz", dataset_name="owner/name") == on_hub
    assert path(validation_file="/x/test.jsonl.gz", dataset_name="owner/name") == "/x/test.jsonl.gz"
    with pytest.raises(DataError, match="expected one file, found 3: hf://"):
        path(validation_file=f"{URL}/*.jsonl.gz")


def test_a_pattern_of_held_out_files_is_refused_by_its_own_key(files: Hub, tmp_path: Path) -> None:
    """The pattern excludes all shards, but the error is not in `train_file`."""
    everything, none = f"{URL}/*.jsonl.gz", f"{URL}/none*.jsonl.gz"
    with pytest.raises(DataError, match=r"^data_config\.validation_file=.*: expected one file"):
        names(tmp_path, train_file=everything, validation_file=everything)
    with pytest.raises(DataError, match=r"^data_config\.validation_file: hf.*: nothing matches"):
        find_validation_path(config(tmp_path, validation_file=none))
    with pytest.raises(DataError, match=r"^data_config\.train_file: hf.*: nothing matches"):
        names(tmp_path, train_file=none)


def test_equal_names_in_several_folders_are_shown_with_the_folder(
    files: Hub, tmp_path: Path
) -> None:
    files.listed = {"2019/0.jsonl": b"1", "2020/0.jsonl": b"2"}
    assert names(tmp_path, train_file=f"{URL}/**") == ["2019/0.jsonl", "2020/0.jsonl"]


def test_two_revisions_of_a_file_are_refused(files: Hub, tmp_path: Path) -> None:
    other = "f" * 40
    names(tmp_path, train_file=f"{URL}@{COMMIT}/a*")
    files.commit = other
    with pytest.raises(ConfigurationError, match=r"several files would be called a\.jsonl\.gz"):
        names(tmp_path, train_file=[f"{URL}@{COMMIT}/a*", f"{URL}@{other}/a*"])


def test_the_fingerprint_contains_sizes_and_commits(files: Hub, tmp_path: Path) -> None:
    shards = list_shards(config(tmp_path, train_file=f"{URL}/[ab].*"))
    assert fingerprint_shards(shards) == {URL: COMMIT, "a.jsonl.gz": 10, "b.jsonl.gz": 10}
    assert isinstance(shards[0].path, FileRef)
    assert str(shards[0].path) == f"{URL}@{COMMIT}/a.jsonl.gz"


def test_a_revision_is_resolved_only_once(files: Hub, tmp_path: Path) -> None:
    values = {"dataset_name": "owner/name", "dataset_revision": "v1"}
    for _ in range(2):
        names(tmp_path, **values)
        find_validation_path(config(tmp_path, **values, validation_file="test.jsonl.gz"))
    asked = [path for _, path, _ in files.requests if "/revision/" in path]
    assert asked == ["/api/datasets/owner/name/revision/v1"]


def test_the_listing_of_a_commit_is_cached(files: Hub, tmp_path: Path) -> None:
    names(tmp_path, train_file=URL)
    files.requests.clear()
    names(tmp_path, train_file=f"{URL}@{COMMIT}")
    assert not files.requests


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_few_bad_answers_are_retried(files: Hub, tmp_path: Path, status: int) -> None:
    files.faults = [failing(status, 3, {"Retry-After": "0"}, is_anything)]
    assert names(tmp_path, train_file=f"{URL}/[ab].*") == ["a.jsonl.gz", "b.jsonl.gz"]


def test_an_outage_of_the_hub_is_named(files: Hub, tmp_path: Path) -> None:
    files.faults = [failing(502, 1000, where=is_anything)]
    with pytest.raises(DataError, match=r"owner/name@main: given up after 4 failures .*HTTP 502"):
        names(tmp_path, train_file=URL)
    assert len(files.requests) == 4


def test_an_endpoint_that_is_not_a_hub_is_named(files: Hub, tmp_path: Path) -> None:
    def page(answer: Any) -> bool:
        answer.give(200, {}, b"<html>")
        return True

    files.faults = [page]
    with pytest.raises(DataError, match="given up after 4 failures .*the answer is not JSON"):
        names(tmp_path, train_file=URL)


@pytest.mark.parametrize(
    ("train_file", "message"),
    [
        ("hf://datasets/owner/other/*.gz", "HTTP 404: there is no such data set, file or revision"),
        (
            f"{URL}@gone/*.gz",
            "HTTP 404: there is no such revision; correct data_config",
        ),
        (f"{URL}/nowhere/*.gz", "HTTP 404: there is no such file or folder in this revision"),
        (
            f"{URL}/*.csv",
            r"nothing matches \*\.csv at revision main; there is, for example, ",
        ),
        (f"{URL}/gone.jsonl.gz", r"nothing matches gone\.jsonl\.gz at revision main"),
        (f"{URL}/2019/en/*.zst", "nothing matches"),
    ],
)
def test_missing_files_and_repositories_are_named(
    files: Hub, tmp_path: Path, train_file: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        names(tmp_path, train_file=train_file)


def test_a_private_data_set_needs_a_valid_token(
    files: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.token = "hf_another"
    with pytest.raises(DataError, match=r"HTTP 401: the token \(HF_TOKEN\) is not valid") as error:
        names(tmp_path, train_file=URL)
    assert TOKEN not in str(error.value)
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    assert len(names(tmp_path, train_file=URL)) == 5


def test_a_token_read_from_a_file_is_redacted_afterward(
    files: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.token = token = "token-of-a-file"
    (tmp_path / "token").write_text(token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN")
    assert redact(f"401 for {token}") == f"401 for {token}"
    assert len(names(tmp_path, train_file=URL)) == 5
    assert redact(f"401 for {token}") == "401 for [redacted]"


@pytest.mark.parametrize("url", ["hf://owner/name/*.gz", "hf://datasets/owner", "hf://models/a/b"])
def test_malformed_addresses_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        list_shards(config(tmp_path, train_file=url))
    assert f"data_config.train_file={url}: expected hf://datasets/OWNER/NAME" in str(error.value)


@pytest.mark.parametrize("key", ["hub_cache_gb", "hub_retries"])
def test_negative_limits_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"data_config.{key} in .*: found -1(\.0)?, expected 0 or more"
    ):
        list_shards(config(tmp_path, train_file=URL, **{key: -1}))


def test_offline_a_listing_comes_from_the_cache(
    files: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = names(tmp_path, train_file=f"{URL}/[ab].*")
    resolve_commit.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    files.requests.clear()
    assert names(tmp_path, train_file=f"{URL}/[ab].*") == online
    assert names(tmp_path, train_file=f"{URL}@{COMMIT}/b*") == ["b.jsonl.gz"]
    with pytest.raises(
        DataError, match=r"no listing of 2019/\*\.gz in hf://datasets/owner/name at"
    ):
        names(tmp_path, train_file=f"{URL}/2019/*.gz")
    assert not files.requests


@pytest.mark.parametrize(
    ("pattern", "file", "expected"),
    [
        ("*", "a", True),
        ("*", "a/b", False),
        ("**", "a/b", True),
        ("**/b", "b", True),
        ("**/b", "x/y/b", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "c/b", False),
        ("a?c", "a/c", False),
        ("[ab].gz", "b.gz", True),
    ],
)
def test_only_two_stars_of_a_glob_match_across_folders(
    pattern: str, file: str, expected: bool
) -> None:
    assert Pattern("hf", "owner/name", pattern).matches(file) is expected


@pytest.mark.long
def test_endpoint_and_token_are_read_from_the_environment(files: Hub, tmp_path: Path) -> None:
    files.token = TOKEN
    command = [
        sys.executable,
        "-m",
        "bsmeta.data.io.lines",
        "--cache",
        str(tmp_path),
        f"{URL}/[ab]*",
    ]
    environment = {**os.environ, "HF_ENDPOINT": files.endpoint, "HF_HUB_OFFLINE": "0"}
    files.files = files.listed = {"a.jsonl": b"{}\n" * 9, "b.jsonl": b"{}\n"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"{URL}@{COMMIT}/a.jsonl\n{URL}@{COMMIT}/b.jsonl\n", done.stderr
    environment["HF_TOKEN"] = "hf_wrong"
    command[-1] = f"{URL}/b*"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "may not read this data set" in done.stderr
    assert "hf_wrong" not in done.stderr


def test_files_on_the_hub_are_not_read_before_a_run(files: Hub, tmp_path: Path) -> None:
    metadata = MetadataConfig(metadata_list=["title"], metadata_probability=1.0)
    hub_config = config(tmp_path, train_file=f"{URL}/[ab].*", metadata_config=metadata)
    assert describe_missing_types(hub_config) == []
    assert not [path for _, path, _ in files.requests if path.startswith("/stored/")]
