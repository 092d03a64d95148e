"""Listing shards: sorted, each once, without the held-out file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.data.shards import list_shards, shards_fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in [("b.jsonl.gz", 3), ("a.jsonl.gz", 2), ("test.jsonl.gz", 5), ("notes", 1)]:
        (tmp_path / name).write_bytes(b"x" * size)
    return tmp_path


def names(**values: object) -> list[str]:
    return [shard.name for shard in list_shards(DataConfig(**values))]


def test_a_folder_a_glob_a_file_and_a_list(folder: Path) -> None:
    everything = ["a.jsonl.gz", "b.jsonl.gz", "test.jsonl.gz"]
    assert names(train_file=str(folder)) == everything
    assert names(train_file=f"{folder}/*.gz") == everything
    assert names(train_file=f"{folder}/b.jsonl.gz") == ["b.jsonl.gz"]
    assert names(train_file=[f"{folder}/b*", f"{folder}/a.jsonl.gz", str(folder)]) == everything


def test_the_validation_file_is_left_out_by_its_name(folder: Path) -> None:
    kept = ["a.jsonl.gz", "b.jsonl.gz"]
    assert names(train_file=str(folder), validation_file="elsewhere/test.jsonl.gz") == kept
    assert names(train_file=str(folder), exclude=["t*.gz"]) == kept
    assert names(train_file=str(folder), exclude=[f"{folder}/t*"]) == kept


def test_a_link_to_the_validation_file_is_left_out(folder: Path) -> None:
    (folder / "c.jsonl.gz").symlink_to(folder / "test.jsonl.gz")
    links = [f"{folder}/c.jsonl.gz", f"{folder}/a.jsonl.gz"]
    assert names(train_file=links, validation_file=f"{folder}/test.jsonl.gz") == ["a.jsonl.gz"]


def test_one_name_in_several_folders(tmp_path: Path) -> None:
    for dump in ("2019", "2020"):
        (tmp_path / dump).mkdir()
        (tmp_path / dump / "0.jsonl").write_text("{}")
    assert names(train_file=f"{tmp_path}/**/*.jsonl") == ["2019/0.jsonl", "2020/0.jsonl"]


def test_the_fingerprint_has_names_and_sizes(folder: Path) -> None:
    shards = list_shards(DataConfig(train_file=str(folder)))
    assert shards_fingerprint(shards) == {"a.jsonl.gz": 2, "b.jsonl.gz": 3, "test.jsonl.gz": 5}


def test_nothing_set() -> None:
    with pytest.raises(ConfigurationError, match=r"data_config\.train_file is not set"):
        names()


def test_a_missing_file_and_an_empty_glob(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train_file: \S+gone\.jsonl\.gz does not exist"):
        names(train_file=f"{tmp_path}/gone.jsonl.gz")
    with pytest.raises(DataError, match=r"train_file: \S+\*\.gz matches no file"):
        names(train_file=f"{tmp_path}/*.gz")
    with pytest.raises(DataError, match=r"no file in \S+ ends in one of .*jsonl"):
        names(train_file=str(tmp_path))


def test_only_the_test_file_left(folder: Path) -> None:
    with pytest.raises(DataError, match=r"leaves no training shard.*validation file \(test\.jsonl"):
        names(train_file=f"{folder}/test.jsonl.gz", validation_file="test.jsonl.gz")
