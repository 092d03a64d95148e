"""Two caches on disk: facts about files, and blocks of remote files; bounded, whole, shared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bsmeta.data.io.cache import Arrays, Cache

FACTS = {"numbers": np.arange(1000)}


def shard(folder: Path, name: str = "shard.jsonl") -> str:
    path = folder / name
    path.write_bytes(b"content")
    return str(path)


def find_cached_file(folder: Path) -> Path:
    (path,) = folder.glob("*.npz")
    return path


def is_found(cache: Cache, path: str) -> bool:
    facts = cache.load(path, "facts")
    return facts is not None and np.array_equal(facts["numbers"], FACTS["numbers"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    Cache(str(folder)).ensure(shard(folder), "facts", lambda: FACTS)
    return find_cached_file(folder).read_bytes()


DAMAGE = {
    "empty": lambda whole: b"",
    "a byte": lambda whole: b"P",
    "cut": lambda whole: whole[: len(whole) // 2],
    "its end cut": lambda whole: whole[:-1],
    "zeros": lambda whole: bytes(len(whole)),
    "a part of zeros": lambda whole: whole[:2000] + bytes(500) + whole[2500:],
    "another format": lambda whole: b"\x93NUMPY\x01\x00" + whole,
    "a pickle": lambda whole: b"\x80\x04N.",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_unreadable_cache_file_is_rebuilt(
    tmp_path: Path, whole: bytes, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache, path = Cache(str(tmp_path / "cache")), shard(tmp_path)
    cache.ensure(path, "facts", lambda: FACTS)
    find_cached_file(tmp_path / "cache").write_bytes(DAMAGE[damage](whole))
    assert cache.load(path, "facts") is None
    assert f"{find_cached_file(tmp_path / 'cache')} cannot be read and is rebuilt: " in caplog.text
    cache.ensure(path, "facts", lambda: FACTS)
    assert is_found(cache, path)


def test_a_cached_value_is_not_rebuilt(tmp_path: Path) -> None:
    cache, path = Cache(str(tmp_path / "cache")), shard(tmp_path)
    cache.ensure(path, "facts", lambda: FACTS)
    builds: list[None] = []

    def facts() -> Arrays:
        builds.append(None)
        return FACTS

    cache.ensure(path, "facts", facts)
    cache.ensure(path, "others", facts)
    assert len(builds) == 1


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_cache_files_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    path, before = shard(tmp_path), os.umask(umask)
    try:
        Cache(str(tmp_path / "cache")).ensure(path, "facts", lambda: FACTS)
    finally:
        os.umask(before)
    files = list((tmp_path / "cache").iterdir())
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {oct(mode)}
    assert sorted(file.suffix for file in files) == [".lock", ".npz"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, path = Cache(str(tmp_path / "cache")), shard(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        cache.ensure(path, "facts", lambda: FACTS)
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]
    assert cache.load(path, "facts") is None


@pytest.mark.parametrize("letter", ["n", "é", "文", "😀"])
def test_a_file_may_have_a_name_of_maximal_length(tmp_path: Path, letter: str) -> None:
    size = len(letter.encode())
    name = letter * ((255 - len(".jsonl")) // size) + ".jsonl"
    cache, path = Cache(str(tmp_path / "cache")), shard(tmp_path, name)
    assert cache.load(path, "facts") is None
    cache.ensure(path, "facts", lambda: FACTS)
    assert is_found(cache, path)


def test_long_names_with_the_same_prefix_are_distinguished_by_content(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"))
    first, second = (shard(tmp_path, "n" * 200 + end) for end in ("a.jsonl", "b.jsonl"))
    Path(second).write_bytes(b"other content")
    cache.ensure(first, "facts", lambda: FACTS)
    assert cache.load(second, "facts") is None
