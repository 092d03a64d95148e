"""Which shards there are, and by what they are recognized."""

from __future__ import annotations

import gzip
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import xxhash

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io import shards as shards_module
from bsmeta.data.io.cache import Cache, read_arrays, write_arrays
from bsmeta.data.io.files import open_file
from bsmeta.data.io.shards import (
    Shard,
    add_sample_hashes,
    check_is_listed,
    find_validation_path,
    fingerprint_shards,
    list_shards,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in [("b.jsonl.gz", 3), ("a.jsonl.gz", 2), ("test.jsonl.gz", 5), ("notes", 1)]:
        (tmp_path / name).write_bytes(b"x" * size)
    return tmp_path


def list_names(**values: object) -> list[str]:
    return [shard.name for shard in list_shards(DataConfig(**values))]


def test_a_folder_glob_file_or_list_expands_to_its_shards(folder: Path) -> None:
    everything = ["a.jsonl.gz", "b.jsonl.gz", "test.jsonl.gz"]
    assert list_names(train_file=str(folder)) == everything
    assert list_names(train_file=f"{folder}/*.gz") == everything
    assert list_names(train_file=f"{folder}/b.jsonl.gz") == ["b.jsonl.gz"]
    assert (
        list_names(train_file=[f"{folder}/b*", f"{folder}/a.jsonl.gz", str(folder)]) == everything
    )


def test_the_validation_file_is_left_out_by_its_name(folder: Path) -> None:
    kept = ["a.jsonl.gz", "b.jsonl.gz"]
    assert list_names(train_file=str(folder), validation_file="elsewhere/test.jsonl.gz") == kept
    assert list_names(train_file=str(folder), exclude=["t*.gz"]) == kept
    assert list_names(train_file=str(folder), exclude=[f"{folder}/t*"]) == kept


def test_the_name_of_the_validation_file_is_not_a_pattern(tmp_path: Path) -> None:
    for name in ("test[1].jsonl", "test1.jsonl"):
        (tmp_path / name).write_bytes(b"{}")
    held_out = "elsewhere/test[1].jsonl"
    assert list_names(train_file=str(tmp_path), validation_file=held_out) == ["test1.jsonl"]


def test_a_link_to_the_validation_file_is_left_out(folder: Path) -> None:
    (folder / "c.jsonl.gz").symlink_to(folder / "test.jsonl.gz")
    links = [f"{folder}/c.jsonl.gz", f"{folder}/a.jsonl.gz"]
    assert list_names(train_file=links, validation_file=f"{folder}/test.jsonl.gz") == ["a.jsonl.gz"]


def test_a_local_folder_may_be_named_as_data_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "en").mkdir()
    (folder / "en" / "c.jsonl.gz").write_bytes(b"x")
    everything = ["a.jsonl.gz", "b.jsonl.gz", "en/c.jsonl.gz", "test.jsonl.gz"]
    name = str(folder)
    assert [Path(file).name for file in list_names(dataset_name=name)] == [
        Path(path).name for path in everything
    ]
    assert list_names(dataset_name=name, train_file="en/*.gz") == ["c.jsonl.gz"]
    both = [f"{folder}/a.jsonl.gz", "b.jsonl.gz"]
    assert list_names(dataset_name=name, train_file=both) == ["a.jsonl.gz", "b.jsonl.gz"]
    held_out = DataConfig(dataset_name=name, validation_file="test.jsonl.gz")
    assert find_validation_path(held_out) == f"{folder}/test.jsonl.gz"
    (folder / "link.jsonl.gz").symlink_to(folder / "test.jsonl.gz")
    kept = list_names(dataset_name=name, train_file="*.gz", validation_file="test.jsonl.gz")
    assert kept == ["a.jsonl.gz", "b.jsonl.gz"]
    # A folder that is there is meant, whether or not a data set could have its name.
    monkeypatch.chdir(folder.parent)
    (folder.parent / "owner" / "c4[en]").mkdir(parents=True)
    (folder.parent / "owner" / "c4[en]" / "d.jsonl").write_text("{}")
    assert list_names(dataset_name="owner/c4[en]", train_file="*.jsonl") == ["d.jsonl"]
    with pytest.raises(DataError, match=r"\./nowhere/\*\.gz matches no file"):
        list_names(dataset_name="./nowhere", train_file="*.gz")


def test_equal_names_in_several_folders_are_shown_with_the_folder(tmp_path: Path) -> None:
    for dump in ("2019", "2020"):
        (tmp_path / dump).mkdir()
        (tmp_path / dump / "0.jsonl").write_text("{}")
    assert list_names(train_file=f"{tmp_path}/**/*.jsonl") == ["2019/0.jsonl", "2020/0.jsonl"]


def test_a_name_that_is_not_in_utf_8_is_refused(tmp_path: Path) -> None:
    """The order of the documents and the state of the data are computed from names in UTF-8."""
    shard = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    shard.write_text("{}")
    with pytest.raises(DataError) as caught:
        list_names(train_file=str(tmp_path))
    assert str(caught.value) == (
        f"data_config.train_file: {shard} has a name that is not in UTF-8; expected one that is: "
        "rename it (convmv does so for whole folders)"
    )


def make_irregular(folder: Path, name: str) -> str:
    """Makes a folder, pipe or link named like a shard; returns its description in messages."""
    path = folder / name
    if name.startswith("folder"):
        path.mkdir()
        return "a folder"
    if name.startswith("pipe"):
        os.mkfifo(path)
        return "not a regular file"
    target = name if name.startswith("loop") else "gone.jsonl.gz"
    path.symlink_to(target)
    return f"a broken link to {target}"


@pytest.mark.parametrize("name", ["folder", "pipe", "loop", "broken"])
@pytest.mark.parametrize("entry", ["{folder}", "{folder}/*", "{folder}/**/*.jsonl.gz", "{path}"])
def test_an_entry_that_is_not_a_file_is_refused_unless_excluded(
    folder: Path, name: str, entry: str
) -> None:
    what = make_irregular(folder, f"{name}.jsonl.gz")
    path = f"{folder}/{name}.jsonl.gz"
    train_file = entry.format(folder=folder, path=path)
    if train_file == path and name == "folder":  # a folder of shards that happens to be called so
        expected = f"no file in {path} ends in one of"
    else:
        expected = f"train_file: {path} is {what}; expected files; .* data_config.exclude"
    with pytest.raises(DataError, match=expected):
        list_names(train_file=[train_file, f"{folder}/a.jsonl.gz"])
    if train_file != path:
        kept = list_names(train_file=train_file, exclude=[f"{name}.*", "notes"])
        assert kept == ["a.jsonl.gz", "b.jsonl.gz", "test.jsonl.gz"]


def test_a_folder_that_matches_a_glob_is_skipped(folder: Path) -> None:
    (folder / "more").mkdir()
    assert "more" not in list_names(train_file=f"{folder}/*")


def test_a_missing_train_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"data_config\.train_file is not set"):
        list_names()


def test_a_missing_file_or_an_empty_glob_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train_file: \S+gone\.jsonl\.gz does not exist"):
        list_names(train_file=f"{tmp_path}/gone.jsonl.gz")
    with pytest.raises(DataError, match=r"train_file: \S+\*\.gz matches no file"):
        list_names(train_file=f"{tmp_path}/*.gz")
    with pytest.raises(DataError, match=r"no file in \S+ ends in one of .*jsonl"):
        list_names(train_file=str(tmp_path))


def test_a_run_with_only_the_test_file_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"leaves no training shard.*validation file \(test\.jsonl"):
        list_names(train_file=f"{folder}/test.jsonl.gz", validation_file="test.jsonl.gz")


def listed(path: Path) -> list[Shard]:
    return list_shards(DataConfig(train_file=str(path)))


def fingerprint(path: Path) -> dict[str, object]:
    return fingerprint_shards(add_sample_hashes(listed(path)))


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Three shards."""
    (tmp_path / "shards").mkdir()
    for name, size in (("a", 2), ("b", 3), ("c", 5)):
        (tmp_path / "shards" / f"{name}.jsonl").write_bytes(b"x" * size)
    return tmp_path / "shards"


def test_the_fingerprint_has_sizes_and_sampled_hashes(copies: Path) -> None:
    assert fingerprint(copies) == {
        "a.jsonl": {"bytes": 2, "sampled_xxh3": xxhash.xxh3_64_hexdigest(b"xx" + b"xx" * 3)},
        "b.jsonl": {"bytes": 3, "sampled_xxh3": xxhash.xxh3_64_hexdigest(b"xxx" * 4)},
        "c.jsonl": {"bytes": 5, "sampled_xxh3": xxhash.xxh3_64_hexdigest(b"xxxxx" * 4)},
    }


def test_a_copy_of_a_shard_is_the_same_shard(tmp_path: Path) -> None:
    content = random.Random(0).randbytes(300_000)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(content)
    os.utime(tmp_path / "there" / "a.jsonl", (1, 1))
    assert fingerprint(tmp_path / "here") == fingerprint(tmp_path / "there")


@pytest.mark.parametrize("position", [0, 20_000, 100_000, 200_000, 299_999])
def test_other_content_of_the_same_size_is_another_shard(tmp_path: Path, position: int) -> None:
    """A changed byte is noticed anywhere in a gzip file, whose end is a checksum of the content."""
    content = bytearray(random.Random(0).randbytes(300_000))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(content, mtime=0))
    (first,) = add_sample_hashes(listed(path))
    content[position] ^= 1
    path.write_bytes(gzip.compress(content, mtime=0))
    assert path.stat().st_size == first.size
    assert fingerprint_shards([first]) != fingerprint(path)
    with pytest.raises(DataError, match=r"a\.jsonl\.gz on \S+ is not the file that was listed"):
        check_is_listed(first)


def test_a_shard_that_cannot_be_opened_is_named(copies: Path) -> None:
    shards = listed(copies)
    (copies / "b.jsonl").unlink()
    with pytest.raises(DataError, match=r"train_file: \S+b\.jsonl cannot be read: .*No such"):
        add_sample_hashes(shards)


def sample_shards(copies: Path, cache: Path) -> tuple[list[Shard], list[str]]:
    """Returns the shards with their sample hashes, and the names of the opened shards."""
    opened: list[str] = []

    def noted(path: str) -> BinaryIO:
        opened.append(os.path.basename(path))
        return open_file(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "open_file", noted)
        return add_sample_hashes(listed(copies), Cache(str(cache))), sorted(opened)


def test_a_restart_reads_only_the_shards_that_changed(copies: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, opened = sample_shards(copies, cache)
    assert opened == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert sample_shards(copies, cache) == (first, [])

    before = (copies / "b.jsonl").stat()
    (copies / "b.jsonl").write_bytes(b"yyy")
    os.utime(copies / "b.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))  # as `cp -p` does
    second, opened = sample_shards(copies, cache)
    assert opened == ["b.jsonl"]
    assert second[1].samples_hash == xxhash.xxh3_64_hexdigest(b"yyy" * 4) != first[1].samples_hash
    assert [shard.samples_hash for shard in second[::2]] == [
        shard.samples_hash for shard in first[::2]
    ]
    assert sample_shards(copies, cache) == (second, [])

    (copies / "d.jsonl").write_bytes(b"z")  # another listing
    assert sample_shards(copies, cache)[1] == ["a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"]


@pytest.mark.parametrize("damage", ["empty", "cut", "a changed hash", "not UTF-8", "a copies"])
def test_a_damaged_cache_is_rebuilt(
    copies: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    first, _ = sample_shards(copies, tmp_path / "cache")
    (kept,) = (tmp_path / "cache" / "samples").iterdir()
    content = kept.read_bytes()
    changed = content.replace(first[1].samples_hash.encode(), b"0" * 16)
    assert changed != content
    damaged = {"empty": b"", "cut": content[:-9], "a changed hash": changed, "not UTF-8": b"\xff\n"}
    if damage == "a copies":
        kept.unlink()
        kept.mkdir()
    else:
        kept.write_bytes(damaged[damage])
    assert sample_shards(copies, tmp_path / "cache") == (first, ["a.jsonl", "b.jsonl", "c.jsonl"])
    assert f"{kept} cannot be read and is rebuilt: " in caplog.text
    if damage != "a copies":
        assert sample_shards(copies, tmp_path / "cache") == (first, [])


def test_runs_that_share_a_cache_folder_do_not_tear_the_file(tmp_path: Path) -> None:
    """A reader always sees a whole file by one of the writers."""
    path = tmp_path / "kept.npz"
    write_arrays(path, {"numbers": np.zeros(5000)})

    def write(number: int) -> None:
        for _ in range(20):
            write_arrays(path, {"numbers": np.full(5000, number)})

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, number) for number in range(2)]
        found = []
        while not all(writer.done() for writer in writers):
            found.append(read_arrays(path))
        for writer in writers:
            writer.result()
    for kept in [*found, read_arrays(path)]:
        assert kept is not None
        assert len(kept["numbers"]) == 5000
        assert kept["numbers"].min() == kept["numbers"].max()
    assert [*tmp_path.glob(".*")] == []


def test_a_cache_that_cannot_be_written_is_not_an_error(
    copies: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file")
    assert sample_shards(copies, tmp_path / "cache")[1] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert "the hashes of the shards are not kept: " in caplog.text


def test_a_shard_that_has_grown_is_refused(copies: Path) -> None:
    (first, *_) = add_sample_hashes(listed(copies))
    check_is_listed(first)
    with (copies / "a.jsonl").open("ab") as file:
        file.write(b"y")
    with pytest.raises(DataError, match=r"a\.jsonl on \S+ is not the file .* \(of 2 bytes\)"):
        check_is_listed(first)
