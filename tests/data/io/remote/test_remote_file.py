"""Blocks of remote files on disk: bounded, whole, shared."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.remote.remote_file import BlockCache, evict_blocks
from tests.data.hub_fixtures import BLOCK, CONTENT, hub_file
from tests.data.hub_server import Hub
from tests.data.io.test_files import list_ranges, read

NEVER = threading.Event()


def put(cache: BlockCache, key: str, size: int = 100) -> bytes:
    return cache.get(key, size, lambda: key[:1].encode() * size, NEVER)


def blocks(folder: Path) -> list[Path]:
    return [path for path in folder.glob("blocks/*/*") if path.is_file()]


def test_the_least_recently_read_blocks_are_removed_first(tmp_path: Path) -> None:
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


def test_the_size_limit_applies_across_whole_files(hub: Hub, tmp_path: Path) -> None:
    path = hub_file(tmp_path, cache_bytes=3 * BLOCK)
    for _ in range(2):
        assert read(path) == CONTENT
        assert sum(block.stat().st_size for block in blocks(tmp_path)) <= 3 * BLOCK
    assert len(list_ranges(hub)) == 16


def test_without_a_cache_nothing_is_written(hub: Hub, tmp_path: Path) -> None:
    assert read(hub_file(tmp_path, cache_bytes=0)) == CONTENT
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 1008])
def test_a_damaged_block_is_downloaded_again(hub: Hub, tmp_path: Path, damage: bytes) -> None:
    path = hub_file(tmp_path)
    read(path)
    for block in blocks(tmp_path):
        block.write_bytes(damage)
    assert read(path) == CONTENT
    assert len(list_ranges(hub)) == 16
    assert read(path) == CONTENT
    assert len(list_ranges(hub)) == 16


def test_a_folder_that_cannot_be_written_is_only_a_warning(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in its place")
    assert read(hub_file(tmp_path / "file")) == CONTENT
    assert "are not kept" in caplog.text


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 1000)

    def fails() -> bytes:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.get("a", 100, fails, NEVER)
    assert put(cache, "a") == b"a" * 100


def test_concurrent_readers_download_a_block_once(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 1000)
    downloads = []

    def once() -> bytes:
        downloads.append(1)
        return b"a" * 100

    threads = [threading.Thread(target=cache.get, args=("a", 100, once, NEVER)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert downloads == [1]


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


def test_several_processes_share_a_small_cache(hub: Hub, tmp_path: Path) -> None:
    path = hub_file(tmp_path, cache_bytes=4 * BLOCK)  # too small: they remove each other's blocks
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=_read_thrice, args=(path,)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0, 0, 0]
    evict_blocks(tmp_path / "blocks", 0)
    assert not blocks(tmp_path)


def _read_thrice(path: FileRef) -> None:
    for _ in range(3):
        assert read(path) == CONTENT


def test_a_block_whose_time_cannot_be_set_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a block of another user with whom the folder is shared."""
    cache = BlockCache(str(tmp_path), 1000)
    put(cache, "a")

    def refuses(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refuses)
    assert cache.get("a", 100, lambda: b"rebuilt", NEVER) == b"a" * 100


def test_blocks_that_cannot_be_removed_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BlockCache(str(tmp_path), 1000)
    put(cache, "a")

    def refuses(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuses)
    evict_blocks(tmp_path / "blocks", 0)
    assert len(blocks(tmp_path)) == 1
