"""Listing shards: sorted, each once, without the held-out file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.shards import list_shards, validation_path


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


def test_a_local_folder_as_data_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "en").mkdir()
    (folder / "en" / "c.jsonl.gz").write_bytes(b"x")
    everything = ["a.jsonl.gz", "b.jsonl.gz", "en/c.jsonl.gz", "test.jsonl.gz"]
    name = str(folder)
    assert [Path(one).name for one in names(dataset_name=name)] == [
        Path(one).name for one in everything
    ]
    assert names(dataset_name=name, train_file="en/*.gz") == ["c.jsonl.gz"]
    both = [f"{folder}/a.jsonl.gz", "b.jsonl.gz"]
    assert names(dataset_name=name, train_file=both) == ["a.jsonl.gz", "b.jsonl.gz"]
    held_out = DataConfig(dataset_name=name, validation_file="test.jsonl.gz")
    assert validation_path(held_out) == f"{folder}/test.jsonl.gz"
    (folder / "link.jsonl.gz").symlink_to(folder / "test.jsonl.gz")
    kept = names(dataset_name=name, train_file="*.gz", validation_file="test.jsonl.gz")
    assert kept == ["a.jsonl.gz", "b.jsonl.gz"]
    # A folder that is there is meant, whether or not a data set could have its name.
    monkeypatch.chdir(folder.parent)
    (folder.parent / "owner" / "c4[en]").mkdir(parents=True)
    (folder.parent / "owner" / "c4[en]" / "d.jsonl").write_text("{}")
    assert names(dataset_name="owner/c4[en]", train_file="*.jsonl") == ["d.jsonl"]
    with pytest.raises(DataError, match=r"\./nowhere/\*\.gz matches no file"):
        names(dataset_name="./nowhere", train_file="*.gz")


def test_one_name_in_several_folders(tmp_path: Path) -> None:
    for dump in ("2019", "2020"):
        (tmp_path / dump).mkdir()
        (tmp_path / dump / "0.jsonl").write_text("{}")
    assert names(train_file=f"{tmp_path}/**/*.jsonl") == ["2019/0.jsonl", "2020/0.jsonl"]


def irregular(folder: Path, name: str) -> str:
    """What is called like a shard and is none; its name in messages."""
    path = folder / name
    if name.startswith("folder"):
        path.mkdir()
        return "a folder"
    if name.startswith("pipe"):
        os.mkfifo(path)
        return "no regular file"
    target = name if name.startswith("loop") else "gone.jsonl.gz"
    path.symlink_to(target)
    return f"a link to {target}, which leads to no file"


@pytest.mark.parametrize("name", ["folder", "pipe", "loop", "broken"])
@pytest.mark.parametrize("entry", ["{folder}", "{folder}/*", "{folder}/**/*.jsonl.gz", "{path}"])
def test_what_is_no_file_is_refused_unless_it_is_excluded(
    folder: Path, name: str, entry: str
) -> None:
    what = irregular(folder, f"{name}.jsonl.gz")
    path = f"{folder}/{name}.jsonl.gz"
    train_file = entry.format(folder=folder, path=path)
    if train_file == path and name == "folder":  # a folder of shards that happens to be called so
        expected = f"no file in {path} ends in one of"
    else:
        expected = f"train_file: {path} is {what}; expected files; .* data_config.exclude"
    with pytest.raises(DataError, match=expected):
        names(train_file=[train_file, f"{folder}/a.jsonl.gz"])
    if train_file != path:
        kept = names(train_file=train_file, exclude=[f"{name}.*", "notes"])
        assert kept == ["a.jsonl.gz", "b.jsonl.gz", "test.jsonl.gz"]


def test_a_folder_in_a_glob_of_everything_is_passed_over(folder: Path) -> None:
    (folder / "more").mkdir()
    assert "more" not in names(train_file=f"{folder}/*")


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
