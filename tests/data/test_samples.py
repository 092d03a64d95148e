"""Shards are recognized by samples of their content, which are read once."""

from __future__ import annotations

import gzip
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest
import xxhash

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.files import open_file
from bsmeta.data.io.samples import check_is_listed, load, save, shards_fingerprint, with_samples
from bsmeta.data.io.shards import Shard, list_shards


def listed(path: Path) -> list[Shard]:
    return list_shards(DataConfig(train_file=str(path)))


def fingerprint(path: Path) -> dict[str, object]:
    return shards_fingerprint(with_samples(listed(path)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards."""
    (tmp_path / "shards").mkdir()
    for name, size in (("a", 2), ("b", 3), ("c", 5)):
        (tmp_path / "shards" / f"{name}.jsonl").write_bytes(b"x" * size)
    return tmp_path / "shards"


def test_the_fingerprint_has_sizes_and_sampled_hashes(folder: Path) -> None:
    assert fingerprint(folder) == {
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


@pytest.mark.parametrize("place", [0, 20_000, 100_000, 200_000, 299_999])
def test_other_content_of_the_same_size_is_another_shard(tmp_path: Path, place: int) -> None:
    """A changed byte is noticed anywhere in a gzip file, whose end is a checksum of the content."""
    content = bytearray(random.Random(0).randbytes(300_000))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(content, mtime=0))
    (first,) = with_samples(listed(path))
    content[place] ^= 1
    path.write_bytes(gzip.compress(content, mtime=0))
    assert path.stat().st_size == first.size
    assert shards_fingerprint([first]) != fingerprint(path)
    with pytest.raises(DataError, match=r"a\.jsonl\.gz on \S+ is not the file that was listed"):
        check_is_listed(first)


def test_a_shard_that_cannot_be_opened_is_named(folder: Path) -> None:
    shards = listed(folder)
    (folder / "b.jsonl").unlink()
    with pytest.raises(DataError, match=r"train_file: \S+b\.jsonl cannot be read: .*No such"):
        with_samples(shards)


def sampled(folder: Path, cache: Path) -> tuple[list[Shard], list[str]]:
    """The shards with their samples, and the names of those that were opened."""
    opened: list[str] = []

    def noted(path: str) -> BinaryIO:
        opened.append(os.path.basename(path))
        return open_file(path)

    return with_samples(listed(folder), noted, Cache(str(cache))), sorted(opened)


def test_a_restart_reads_only_the_shards_that_changed(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, opened = sampled(folder, cache)
    assert opened == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert sampled(folder, cache) == (first, [])

    before = (folder / "b.jsonl").stat()
    (folder / "b.jsonl").write_bytes(b"yyy")
    os.utime(folder / "b.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))  # as `cp -p` does
    second, opened = sampled(folder, cache)
    assert opened == ["b.jsonl"]
    assert second[1].samples == xxhash.xxh3_64_hexdigest(b"yyy" * 4) != first[1].samples
    assert [shard.samples for shard in second[::2]] == [shard.samples for shard in first[::2]]
    assert sampled(folder, cache) == (second, [])

    (folder / "d.jsonl").write_bytes(b"z")  # another listing
    assert sampled(folder, cache)[1] == ["a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"]


@pytest.mark.parametrize("damage", ["empty", "cut", "a changed hash", "not UTF-8", "a folder"])
def test_a_damaged_cache_only_costs_time(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    first, _ = sampled(folder, tmp_path / "cache")
    (kept,) = (tmp_path / "cache" / "samples").iterdir()
    content = kept.read_bytes()
    changed = content.replace(first[1].samples.encode(), b"0" * 16)
    assert changed != content
    damaged = {"empty": b"", "cut": content[:-9], "a changed hash": changed, "not UTF-8": b"\xff\n"}
    if damage == "a folder":
        kept.unlink()
        kept.mkdir()
    else:
        kept.write_bytes(damaged[damage])
    assert sampled(folder, tmp_path / "cache") == (first, ["a.jsonl", "b.jsonl", "c.jsonl"])
    assert f"{kept} cannot be read and is rebuilt: " in caplog.text
    if damage != "a folder":
        assert sampled(folder, tmp_path / "cache") == (first, [])


def test_runs_that_share_a_cache_folder_do_not_tear_the_file(tmp_path: Path) -> None:
    """A reader always finds the whole file of one of the writers."""
    hashes = [[(2, number, f"{number:016x}")] * 5000 for number in range(2)]
    path = tmp_path / "kept"
    save(path, hashes[0])

    def write(number: int) -> None:
        for _ in range(20):
            save(path, hashes[number])

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, number) for number in range(2)]
        found = []
        while not all(writer.done() for writer in writers):
            found.append(load(path))
        for writer in writers:
            writer.result()
    assert all(kept in hashes for kept in [*found, load(path)])
    assert [*tmp_path.glob(".*")] == []


def test_a_cache_that_cannot_be_written_only_costs_time(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file")
    assert sampled(folder, tmp_path / "cache")[1] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert "the hashes of the shards are not kept: " in caplog.text


def test_a_shard_that_grew_is_another_file(folder: Path) -> None:
    (first, *_) = with_samples(listed(folder))
    check_is_listed(first)
    with (folder / "a.jsonl").open("ab") as file:
        file.write(b"y")
    with pytest.raises(DataError, match=r"a\.jsonl on \S+ is not the file .* \(of 2 bytes\)"):
        check_is_listed(first)
