"""Reads remote files (`FileRef`) like local ones: in blocks, prefetched, cached, and verified.

A `RemoteFile` fetches blocks of several megabytes through a `BlockCache`, a folder that all
processes of a machine share, and prefetches the next block in a thread. A faulty download must not
stay in the cache: a file is compared with its hash when it has been read completely, and when it
turns out to be damaged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO, NamedTuple

import xxhash
from filelock import FileLock, Timeout
from fsspec.spec import AbstractBufferedFile

from bsmeta.core.errors import DataError
from bsmeta.core.files import replace_atomically
from bsmeta.core.progress import report_progress
from bsmeta.data.io.cache import keep_if_possible
from bsmeta.data.io.compression import AccessPoint, DamagedFileError, read_content
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.remote import CancelledError
from bsmeta.data.io.stores import read_range, store_of_file

log = logging.getLogger(__name__)

BLOCK = 4 << 20  # bytes of a file per request
LOCKS = 256  # lock files of a cache, shared by its blocks
CHECKSUM_BYTES = 8  # after the content of a cached block
FILL_AFTER_EVICTION = 0.9  # as a fraction of the limit
CHECK_INTERVAL = 0.005  # fraction of the limit that is written between checks of the total size


class BadCopyError(DataError):
    """A remote file was read from a cached copy that does not match its hash."""


def make_bad_copy_error(ref: FileRef) -> BadCopyError:
    """Returns the error for a cached copy that was read before it turned out to be bad."""
    return BadCopyError(
        f"{ref}: the downloaded copy (in {ref.settings.folder}) did not have the listed hash "
        f"{ref.etag}; it was removed and downloaded again, but documents of the bad copy were read:"
        " resume from a checkpoint that is older than them"
    )


def read_remote_content(
    ref: FileRef, file: BinaryIO, point: AccessPoint | None = None
) -> Iterator[bytes]:
    """Yields the content of a remote shard in blocks; see `files.shard_content`."""
    yielded_hash = xxhash.xxh3_64()
    yielded_bytes = 0
    try:
        for block in read_content(ref.place, file, point):
            yielded_hash.update(block)
            yielded_bytes += len(block)
            yield block
        return
    except BadCopyError:
        pass  # the bad copy has already been replaced in the cache
    except DamagedFileError:
        check_copy(ref)

    with RemoteFile(ref) as new_file:
        blocks = read_content(ref.place, new_file, point)
        yield _skip_same(blocks, yielded_bytes, yielded_hash.digest(), ref)
        yield from blocks


def _skip_same(blocks: Iterator[bytes], count: int, digest: bytes, ref: FileRef) -> bytes:
    """Skips the first bytes of the content, which were already yielded.

    Args:
        count: Number of bytes to skip.
        digest: The xxh3 of the bytes that were yielded.

    Returns:
        The bytes of the last skipped block after them.

    Raises:
        BadCopyError: If the skipped bytes differ from those that were yielded.
    """
    skipped_hash = xxhash.xxh3_64()
    remainder = b""
    with contextlib.suppress(DamagedFileError):
        while count and (block := next(blocks, b"")):
            skipped_hash.update(block[:count])
            remainder = block[count:]
            count -= len(block) - len(remainder)

    if count or skipped_hash.digest() != digest:
        raise make_bad_copy_error(ref)
    return remainder


def check_copy(ref: FileRef) -> bool:
    """Compares a file with its hash, and downloads it again if the cached content differs.

    Without a known hash, it is downloaded again and compared with the cached content.

    Returns:
        Whether the cached copy was already right.

    Raises:
        DataError: If the server sends other content than it lists, or cannot be reached.
    """
    blocks = Blocks(ref)
    was_right, old_digest = blocks.check()
    if was_right:
        return True

    blocks.drop()
    is_right, new_digest = blocks.check()
    if is_right is False:
        blocks.drop()
        raise DataError(
            f"{ref}: the server sends another content than it lists (hash {ref.etag}), twice; see "
            f"whether a proxy changes it, or start a new run, {store_of_file(ref).fixed_version}"
        )
    return was_right is None and old_digest == new_digest


def refuse_bad_cached_copy(ref: FileRef) -> None:
    """Raises a `DataError` if a rejected document may come from a bad cached copy."""
    try:
        was_right = check_copy(ref)
    except DataError:
        if not store_of_file(ref).is_offline():
            raise
        return  # the file is not cached completely, so the copy cannot be blamed
    if not was_right:
        raise make_bad_copy_error(ref)


class BlockCache:
    """A folder of blocks, each in a file: its content, then a checksum.

    One process downloads a block while the others that need it wait. The least recently read blocks
    are evicted first.

    Args:
        limit: Maximum bytes in the folder; 0 keeps nothing.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = Path(folder)
        self._limit = limit
        # Bytes written since the last size check. The size is unknown at first, so the first block
        # that is written triggers a check.
        self._unchecked_bytes = limit

    def get(
        self,
        key: str,
        size: int,
        download: Callable[[], bytes],
        cancelled: threading.Event,
    ) -> bytes:
        """Returns a block from the disk; downloads it if it is not there.

        An unwritable folder or a damaged block is not an error; it only costs time. The errors of
        `download` propagate.

        Args:
            key: Identifies the content of the block.
            size: Size of the block in bytes.
            cancelled: Stops waiting for another process; the block is then downloaded here.
        """
        if not self._limit:
            return download()

        path = self._path(key)
        block = _read_block(path, size)
        if block is not None:
            return block

        try:
            locks = self._folder / "locks"
            locks.mkdir(parents=True, exist_ok=True)
            lock = FileLock(locks / f"{int(path.name, 16) % LOCKS}.lock")
            lock.acquire(cancel_check=lambda: _is_cancelled(cancelled))
        except (OSError, Timeout) as error:
            if not cancelled.is_set():
                log.warning("blocks of remote files are not kept: %s", error)
            return download()

        try:
            block = _read_block(path, size)  # another process may have downloaded it meanwhile
            if block is None:
                block = download()
                self._write_block(path, block)
        finally:
            lock.release()
        return block

    def drop(self, key: str) -> None:
        """Removes a block, if it exists."""
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        name = xxhash.xxh3_128_hexdigest(key.encode())
        return self._folder / "blocks" / name[:2] / name

    def _write_block(self, path: Path, block: bytes) -> None:
        with keep_if_possible("a block of a remote file is"):  # the disk may be full
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_atomically(path) as part:
                part.write_bytes(block + xxhash.xxh3_64_digest(block))

        self._unchecked_bytes += len(block) + CHECKSUM_BYTES
        if self._unchecked_bytes >= self._limit * CHECK_INTERVAL:
            self._unchecked_bytes = 0
            evict_blocks(self._folder / "blocks", self._limit)


def _is_cancelled(cancelled: threading.Event) -> bool:
    """Called while another process downloads the block, which counts as progress."""
    report_progress()
    return cancelled.is_set()


def _read_block(path: Path, size: int) -> bytes | None:
    """Reads a cached block; returns None if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None

    # Eviction begins with the oldest times.
    with contextlib.suppress(OSError):  # the file may belong to another user
        os.utime(path)

    block = data[:-CHECKSUM_BYTES]
    checksum = data[-CHECKSUM_BYTES:]
    if len(block) != size or xxhash.xxh3_64_digest(block) != checksum:
        log.warning("%s is damaged and is downloaded again", path)
        return None
    return block


class _BlockFile(NamedTuple):
    """A cached block; the least recently read one sorts first.

    Attributes:
        read_at: In ns since 1970.
        size: In bytes.
    """

    read_at: int
    size: int
    path: Path


def evict_blocks(folder: Path, limit: int) -> None:
    """Removes the least recently read blocks if the folder has more than `limit` bytes.

    Other processes may evict concurrently: files that are already gone are skipped.
    """
    blocks = []
    total = 0
    for path in folder.glob("*/*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        blocks.append(_BlockFile(status.st_mtime_ns, status.st_size, path))
        total += status.st_size

    if total <= limit:
        return
    for block in sorted(blocks):
        if total <= limit * FILL_AFTER_EVICTION:
            return
        with contextlib.suppress(OSError):  # another process removed it, or another user owns it
            block.path.unlink()
        total -= block.size


class Blocks:
    """The blocks of a remote file, cached or downloaded."""

    def __init__(self, ref: FileRef) -> None:
        self._ref = ref
        self._cache = BlockCache(ref.settings.folder, ref.settings.cache_bytes)

    def fetch(self, start: int, cancelled: threading.Event) -> bytes:
        """Returns the block that begins at byte `start`."""
        stop = self._end_of_block(start)

        def download() -> bytes:
            return b"".join(read_range(self._ref, start, stop, cancelled))

        return self._cache.get(self._cache_key(start), stop - start, download, cancelled)

    def check(self) -> tuple[bool | None, bytes]:
        """Returns whether the file has its hash (None: unknown), and the xxh3 of its content."""
        verifier = store_of_file(self._ref).verifier(self._ref)
        content_hash = xxhash.xxh3_64()
        never_cancelled = threading.Event()
        for start in range(0, self._ref.size, BLOCK):
            block = self.fetch(start, never_cancelled)
            content_hash.update(block)
            if verifier is not None:
                verifier.update(block)

        is_right = None if verifier is None else verifier.is_right()
        return is_right, content_hash.digest()

    def drop(self) -> None:
        """Removes the blocks from the cache."""
        for start in range(0, self._ref.size, BLOCK):
            self._cache.drop(self._cache_key(start))

    def _end_of_block(self, start: int) -> int:
        return min(start + BLOCK, self._ref.size)

    def _cache_key(self, start: int) -> str:
        """Returns the key that identifies the content of a block."""
        return f"{self._ref.content_id} {self._ref.size} {start} {self._end_of_block(start)}"


class RemoteFile(AbstractBufferedFile):
    """A remote file, for reading.

    Its errors are `DataError`s. To readers, an `OSError` means that the file is damaged, but an
    unreachable file must not look like the end of a shard.

    Args:
        blocks: Number of the most recently read blocks to keep in memory.
    """

    def __init__(self, ref: FileRef, blocks: int = 1) -> None:
        self._ref = ref
        self._blocks = Blocks(ref)
        self._verifier = store_of_file(ref).verifier(ref)
        self._verified_bytes = 0  # from the beginning; it stops where blocks are skipped
        self._is_right: bool | None = None  # None until the file was read completely
        self._reads = 0  # consecutive, without a seek
        self._prefetch: Prefetch | None = None
        memory = {"cache_type": "blockcache", "cache_options": {"maxblocks": blocks}}
        super().__init__(None, str(ref), block_size=BLOCK, size=ref.size, **memory)

    def seek(self, loc: int, whence: int = os.SEEK_SET) -> int:
        """Moves to another position without fetching anything."""
        previous_position = self.loc
        if super().seek(loc, whence) != previous_position:
            self._reads = 0
        return int(self.loc)

    def read(self, length: int = -1) -> bytes:
        """Reads up to `length` bytes, or all remaining bytes if it is negative.

        Raises:
            DataError: If the file cannot be read or has changed.
            BadCopyError: If the file was read completely and does not match its hash.
        """
        data: bytes = super().read(length)

        # Nothing is prefetched after one read: often only the first lines of a file are needed.
        self._reads += 1
        if self._reads > 1:
            next_block = (self.loc - 1) // BLOCK * BLOCK + BLOCK
            if self._prefetch is None and next_block < self.size:
                self._prefetch = Prefetch(next_block, self._fetch)
        return data

    def close(self) -> None:
        """Stops prefetching, because no thread may be running when the process forks."""
        prefetch = self._prefetch
        self._prefetch = None
        if prefetch is not None:
            prefetch.cancel()
        super().close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        """Fetches a block for the base class, which calls this when its memory lacks the block."""
        prefetch = self._prefetch
        self._prefetch = None
        if prefetch is not None and prefetch.start == start:
            block = prefetch.wait()
        else:
            if prefetch is not None:
                prefetch.cancel()
            block = self._fetch(start, threading.Event())

        if self._is_right is False:
            check_copy(self._ref)
            raise make_bad_copy_error(self._ref)
        return block

    def _fetch(self, start: int, cancelled: threading.Event) -> bytes:
        block = self._blocks.fetch(start, cancelled)
        if self._verifier is not None and start == self._verified_bytes:
            self._verifier.update(block)
            self._verified_bytes += len(block)
            if self._verified_bytes == self.size:
                self._is_right = self._verifier.is_right()
        return block


class Prefetch:
    """A block that a thread is fetching.

    Args:
        start: Offset of the block in the file.
        fetch: Fetches the block at an offset, unless the event is set.
    """

    def __init__(self, start: int, fetch: Callable[[int, threading.Event], bytes]) -> None:
        self.start = start
        self._fetch = fetch
        self._cancelled = threading.Event()
        self._future: Future[bytes] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> bytes:
        """Waits for the block and returns it; raises the error of the fetch, if any."""
        return self._future.result()

    def cancel(self) -> None:
        """Stops the fetch, and waits until it has ended."""
        self._cancelled.set()
        if not sys.is_finalizing():  # when Python exits, the thread no longer runs
            self._thread.join()

    def _run(self) -> None:
        try:
            self._future.set_result(self._fetch(self.start, self._cancelled))
        except CancelledError:
            self._future.cancel()
        except BaseException as error:
            self._future.set_exception(error)  # raised in `wait`
