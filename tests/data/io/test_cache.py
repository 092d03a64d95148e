"""Two caches on disk: facts about files, and blocks of remote files; bounded, whole, shared."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from bsmeta.data.io.cache import Arrays, Cache
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.remote_file import BlockCache, evict
from tests.data.hub_fixtures import BLOCK, CONTENT, hub_file
from tests.data.hub_server import Hub
from tests.data.io.test_files import ranges, read

FACTS = {"numbers": np.arange(1000)}


def shard(folder: Path, name: str = "shard.jsonl") -> str:
    path = folder / name
    path.write_bytes(b"content")
    return str(path)


def kept(folder: Path) -> Path:
    (path,) = folder.glob("*.npz")
    return path


def is_found(cache: Cache, path: str) -> bool:
    found = cache.load(path, "facts")
    return found is not None and np.array_equal(found["numbers"], FACTS["numbers"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    Cache(str(folder)).make(shard(folder), "facts", lambda: FACTS)
    return kept(folder).read_bytes()


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
def test_what_cannot_be_read_is_rebuilt(
    tmp_path: Path, whole: bytes, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache, path = Cache(str(tmp_path / "cache")), shard(tmp_path)
    cache.make(path, "facts", lambda: FACTS)
    kept(tmp_path / "cache").write_bytes(DAMAGE[damage](whole))
    assert cache.load(path, "facts") is None
    assert f"{kept(tmp_path / 'cache')} cannot be read and is rebuilt: " in caplog.text
    cache.make(path, "facts", lambda: FACTS)
    assert is_found(cache, path)


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    cache, path = Cache(str(tmp_path / "cache")), shard(tmp_path)
    cache.make(path, "facts", lambda: FACTS)
    made: list[None] = []

    def facts() -> Arrays:
        made.append(None)
        return FACTS

    cache.make(path, "facts", facts)
    cache.make(path, "others", facts)
    assert len(made) == 1


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_are_as_readable_as_the_umask_lets_them_be(
    tmp_path: Path, umask: int, mode: int
) -> None:
    path, before = shard(tmp_path), os.umask(umask)
    try:
        Cache(str(tmp_path / "cache")).make(path, "facts", lambda: FACTS)
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
        cache.make(path, "facts", lambda: FACTS)
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]
    assert cache.load(path, "facts") is None


@pytest.mark.parametrize("letter", ["n", "é", "文", "😀"])
def test_a_file_may_have_a_name_as_long_as_any(tmp_path: Path, letter: str) -> None:
    size = len(letter.encode())
    name = letter * ((255 - len(".jsonl")) // size) + ".jsonl"
    cache, path = Cache(str(tmp_path / "cache")), shard(tmp_path, name)
    assert cache.load(path, "facts") is None
    cache.make(path, "facts", lambda: FACTS)
    assert is_found(cache, path)


def test_long_names_that_begin_alike_are_told_apart_by_content(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "cache"))
    first, second = (shard(tmp_path, "n" * 200 + end) for end in ("a.jsonl", "b.jsonl"))
    Path(second).write_bytes(b"other content")
    cache.make(first, "facts", lambda: FACTS)
    assert cache.load(second, "facts") is None


NEVER = threading.Event()


def put(cache: BlockCache, key: str, size: int = 100) -> bytes:
    return cache.get(key, size, lambda: key[:1].encode() * size, NEVER)


def blocks(folder: Path) -> list[Path]:
    return [path for path in folder.glob("blocks/*/*") if path.is_file()]


def test_what_was_not_read_for_the_longest_time_goes_first(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 1000)
    for number, key in enumerate("abcdefgh"):
        put(cache, key)
        for path in blocks(tmp_path):
            if path.read_bytes().startswith(key.encode()):
                os.utime(path, (number, number))
    put(cache, "a")  # read again: now the youngest
    put(cache, "i")
    put(cache, "j")  # 10 blocks of 108 bytes: more than the limit
    assert {path.read_bytes()[:1] for path in blocks(tmp_path)} == set(map(str.encode, "adefghij"))


def test_the_limit_holds_for_whole_files(hub: Hub, tmp_path: Path) -> None:
    path = hub_file(tmp_path, cache_bytes=3 * BLOCK)
    for _ in range(2):
        assert read(path) == CONTENT
        assert sum(one.stat().st_size for one in blocks(tmp_path)) <= 3 * BLOCK
    assert len(ranges(hub)) == 16


def test_no_cache(hub: Hub, tmp_path: Path) -> None:
    assert read(hub_file(tmp_path, cache_bytes=0)) == CONTENT
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 1008])
def test_a_damaged_block_is_downloaded_again(hub: Hub, tmp_path: Path, damage: bytes) -> None:
    path = hub_file(tmp_path)
    read(path)
    for block in blocks(tmp_path):
        block.write_bytes(damage)
    assert read(path) == CONTENT
    assert len(ranges(hub)) == 16
    assert read(path) == CONTENT
    assert len(ranges(hub)) == 16


def test_a_folder_that_cannot_be_written_only_costs_time(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in its place")
    assert read(hub_file(tmp_path / "file")) == CONTENT
    assert "are not kept" in caplog.text


def test_an_error_leaves_the_lock_to_others(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 1000)

    def fails() -> bytes:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.get("a", 100, fails, NEVER)
    assert put(cache, "a") == b"a" * 100


def test_one_of_two_downloads_and_the_other_waits(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 1000)
    made = []

    def once() -> bytes:
        made.append(1)
        return b"a" * 100

    threads = [threading.Thread(target=cache.get, args=("a", 100, once, NEVER)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_a_wait_for_another_process_can_be_cancelled(tmp_path: Path) -> None:
    cache, cancelled = BlockCache(str(tmp_path), 1000), threading.Event()
    cancelled.set()
    inside: list[bytes] = []

    def nested() -> bytes:  # while the lock is ours
        other = threading.Thread(
            target=lambda: inside.append(cache.get("a", 100, lambda: b"b" * 100, cancelled))
        )
        other.start()
        other.join()
        return b"a" * 100

    assert cache.get("a", 100, nested, NEVER) == b"a" * 100
    assert inside == [b"b" * 100]


def test_many_processes(hub: Hub, tmp_path: Path) -> None:
    path = hub_file(tmp_path, cache_bytes=4 * BLOCK)  # too small: they remove each other's blocks
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=_read_thrice, args=(path,)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0, 0, 0]
    evict(tmp_path / "blocks", 0)
    assert not blocks(tmp_path)


def _read_thrice(path: FileRef) -> None:
    for _ in range(3):
        assert read(path) == CONTENT


def test_a_block_whose_time_cannot_be_set_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of another user, with whom the folder is shared."""
    cache = BlockCache(str(tmp_path), 1000)
    put(cache, "a")

    def refuses(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refuses)
    assert cache.get("a", 100, lambda: b"made again", NEVER) == b"a" * 100


def test_blocks_that_cannot_be_removed_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BlockCache(str(tmp_path), 1000)
    put(cache, "a")

    def refuses(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuses)
    evict(tmp_path / "blocks", 0)
    assert len(blocks(tmp_path)) == 1
