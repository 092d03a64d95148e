"""Reads remote files (`FileRef`) like local ones: in blocks, prefetched, cached, and verified.

A `RemoteFile` fetches blocks of several megabytes through a `BlockCache`, a folder that all
processes of a machine share, and prefetches the next block in a thread. So that no faulty download
stays in the cache, a file is compared with its hash once it has been read completely, and whenever
it turns out to be damaged.
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
from bsmeta.data.io.remote.store import CancelledError
from bsmeta.data.io.remote.stores import find_file_store, read_range

logger = logging.getLogger(__name__)

BLOCK_BYTES = 4 << 20  # of a file, fetched per request
NUM_LOCK_FILES = 256  # of a cache, shared by its blocks
CHECKSUM_BYTES = 8  # after the content of a cached block
FILL_AFTER_EVICTION = 0.9  # size of the cache after an eviction, as a fraction of its limit
CHECK_INTERVAL = 0.005  # bytes written between checks of the size, as a fraction of the limit


class BadCopyError(DataError):
    """Documents were read from a cached copy that does not have the listed hash."""


def make_bad_copy_error(ref: FileRef) -> BadCopyError:
    """Returns the error for a cached copy that turned out to be bad after it was read."""
    return BadCopyError(
        f"{ref}: the downloaded copy (in {ref.settings.cache_folder}) did not have the listed hash "
        f"{ref.etag}; it was removed and downloaded again, but documents of the bad copy were read:"
        " resume from a checkpoint that was saved before"
    )


def read_remote_content(
    ref: FileRef, file: BinaryIO, point: AccessPoint | None = None
) -> Iterator[bytes]:
    """Yields the content of a remote shard in blocks; see `files.read_shard_content`."""
    yielded_hash = xxhash.xxh3_64()
    yielded_bytes = 0
    try:
        for block in read_content(ref.store_path, file, point):
            yielded_hash.update(block)
            yielded_bytes += len(block)
            yield block
        return
    except BadCopyError:
        pass  # the bad copy has already been replaced in the cache
    except DamagedFileError:
        check_copy(ref)

    # Resume at the same byte of the replaced copy.
    with RemoteFile(ref) as new_file:
        blocks = read_content(ref.store_path, new_file, point)
        yield _skip_yielded(blocks, yielded_bytes, yielded_hash.digest(), ref)
        yield from blocks


def _skip_yielded(blocks: Iterator[bytes], count: int, digest: bytes, ref: FileRef) -> bytes:
    """Skips the first `count` bytes of the content, which were already yielded.

    Args:
        digest: The xxh3 of the yielded bytes.

    Returns:
        The rest of the last skipped block.

    Raises:
        BadCopyError: If the skipped bytes differ from the yielded bytes.
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
    """Compares a cached file with its hash, and downloads it again if it differs.

    If no hash of the content is known, the file is downloaded again and compared with the cached
    copy.

    Returns:
        Whether the cached copy was good.

    Raises:
        DataError: If the server sends other content than it lists, or cannot be reached.
    """
    blocks = FileBlocks(ref)
    cached_matches, cached_digest = blocks.compare_with_hash()
    if cached_matches:
        return True

    blocks.drop()
    new_matches, new_digest = blocks.compare_with_hash()
    if new_matches is False:
        blocks.drop()
        raise DataError(
            f"{ref}: the server twice sent other content than it lists (hash {ref.etag}); check "
            f"whether a proxy changes it, or start a new run, {find_file_store(ref).version_advice}"
        )
    return cached_matches is None and cached_digest == new_digest


def refuse_bad_cached_copy(ref: FileRef) -> None:
    """Checks that the cached copy of a file is good; downloads it again if it is not.

    Raises:
        BadCopyError: If the copy was bad, so that a document read from it may be damaged.
        DataError: If the server sends other content than it lists, or cannot be reached.
    """
    try:
        was_good = check_copy(ref)
    except DataError:
        if not find_file_store(ref).is_offline():
            raise
        return  # the file is not cached completely, so the copy cannot be blamed
    if not was_good:
        raise make_bad_copy_error(ref)


class BlockCache:
    """A folder of cached blocks, each a file of the block's content and a checksum.

    If several processes need a block, one downloads it while the others wait. The least recently
    read blocks are evicted first.

    Args:
        limit: Maximum size of the folder in bytes; 0 caches nothing.
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
        """Returns a block from the cache; downloads and caches it if it is missing.

        An unwritable folder or a damaged block only costs time and raises no error; errors of
        `download` propagate.

        Args:
            key: Identifies the content of the block.
            size: Size of the block in bytes.
            cancelled: If set, stops waiting for the download of another process and calls
                `download`.
        """
        if not self._limit:
            return download()

        path = self._locate_block(key)
        block = _read_block(path, size)
        if block is not None:
            return block

        try:
            locks = self._folder / "locks"
            locks.mkdir(parents=True, exist_ok=True)
            lock = FileLock(locks / f"{int(path.name, 16) % NUM_LOCK_FILES}.lock")
            lock.acquire(cancel_check=lambda: _report_and_check(cancelled))
        except (OSError, Timeout) as error:
            if not cancelled.is_set():
                logger.warning("blocks of remote files are not kept: %s", error)
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
            self._locate_block(key).unlink(missing_ok=True)

    def _locate_block(self, key: str) -> Path:
        """Returns the path of a block's file."""
        name = xxhash.xxh3_128_hexdigest(key.encode())
        return self._folder / "blocks" / name[:2] / name

    def _write_block(self, path: Path, block: bytes) -> None:
        """Writes a block if possible; evicts blocks if the folder exceeds its limit."""
        with keep_if_possible("a block of a remote file is"):  # the disk may be full
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_atomically(path) as part:
                part.write_bytes(block + xxhash.xxh3_64_digest(block))

        self._unchecked_bytes += len(block) + CHECKSUM_BYTES
        if self._unchecked_bytes >= self._limit * CHECK_INTERVAL:
            self._unchecked_bytes = 0
            evict_blocks(self._folder / "blocks", self._limit)


def _report_and_check(cancelled: threading.Event) -> bool:
    """Reports progress, and returns whether the wait for another process was cancelled."""
    report_progress()
    return cancelled.is_set()


def _read_block(path: Path, size: int) -> bytes | None:
    """Reads a cached block, and marks it as recently read; None if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None

    with contextlib.suppress(OSError):  # the file may belong to another user
        os.utime(path)

    block = data[:-CHECKSUM_BYTES]
    checksum = data[-CHECKSUM_BYTES:]
    if len(block) != size or xxhash.xxh3_64_digest(block) != checksum:
        logger.warning("%s is damaged and is downloaded again", path)
        return None
    return block


class _BlockFile(NamedTuple):
    """The file of a cached block; tuples of the least recently read blocks sort first.

    Attributes:
        read_time: Time of the last read, in ns since 1970.
        size: Size in bytes, with the checksum.
    """

    read_time: int
    size: int
    path: Path


def evict_blocks(folder: Path, limit: int) -> None:
    """Removes the least recently read blocks if the folder has more than `limit` bytes.

    Other processes may evict at the same time: files that they removed are skipped.
    """
    blocks = []
    total_bytes = 0
    for path in folder.glob("*/*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        blocks.append(_BlockFile(status.st_mtime_ns, status.st_size, path))
        total_bytes += status.st_size

    if total_bytes <= limit:
        return
    for block in sorted(blocks):
        if total_bytes <= limit * FILL_AFTER_EVICTION:
            return
        with contextlib.suppress(OSError):  # another process removed it, or another user owns it
            block.path.unlink()
        total_bytes -= block.size


class FileBlocks:
    """Fetches the blocks of a remote file from the cache or the server."""

    def __init__(self, ref: FileRef) -> None:
        self._ref = ref
        self._cache = BlockCache(ref.settings.cache_folder, ref.settings.cache_bytes)

    def fetch(self, start: int, cancelled: threading.Event) -> bytes:
        """Returns the block that begins at byte `start`.

        Args:
            cancelled: If set, stops the download with a `CancelledError`.

        Raises:
            DataError: If the block cannot be downloaded.
        """
        stop = self._find_block_end(start)

        def download() -> bytes:
            return b"".join(read_range(self._ref, start, stop, cancelled))

        return self._cache.get(self._make_key(start), stop - start, download, cancelled)

    def compare_with_hash(self) -> tuple[bool | None, bytes]:
        """Reads the whole file and compares it with its listed hash.

        Returns:
            Whether the content has the hash (None if no hash of the content is known), and the xxh3
            of the content.
        """
        verifier = find_file_store(self._ref).make_verifier(self._ref)
        content_hash = xxhash.xxh3_64()
        never_cancelled = threading.Event()
        for start in range(0, self._ref.size, BLOCK_BYTES):
            block = self.fetch(start, never_cancelled)
            content_hash.update(block)
            if verifier is not None:
                verifier.update(block)

        matches = None if verifier is None else verifier.matches_hash()
        return matches, content_hash.digest()

    def drop(self) -> None:
        """Removes all blocks of the file from the cache."""
        for start in range(0, self._ref.size, BLOCK_BYTES):
            self._cache.drop(self._make_key(start))

    def _find_block_end(self, start: int) -> int:
        return min(start + BLOCK_BYTES, self._ref.size)

    def _make_key(self, start: int) -> str:
        """Returns the key that identifies the content of a block in the cache."""
        return f"{self._ref.content_id} {self._ref.size} {start} {self._find_block_end(start)}"


class RemoteFile(AbstractBufferedFile):
    """A remote file, for reading.

    Failures raise a `DataError`, not an `OSError`: readers of shards treat an `OSError` as damage
    at which the shard ends, and an unreachable file must not end it.

    Args:
        num_kept_blocks: Number of the most recently read blocks that are kept in memory.
    """

    def __init__(self, ref: FileRef, num_kept_blocks: int = 1) -> None:
        self._ref = ref
        self._blocks = FileBlocks(ref)
        self._verifier = find_file_store(ref).make_verifier(ref)
        self._num_verified = 0  # bytes from the beginning; no longer grows if a block is skipped
        self._matches_hash: bool | None = None  # None until the file was read completely
        self._num_reads = 0  # since the last seek
        self._prefetch: Prefetch | None = None
        super().__init__(
            None,
            str(ref),
            block_size=BLOCK_BYTES,
            size=ref.size,
            cache_type="blockcache",
            cache_options={"maxblocks": num_kept_blocks},
        )

    def seek(self, loc: int, whence: int = os.SEEK_SET) -> int:
        """Moves to another position without fetching anything; returns the new position."""
        previous_position = self.loc
        if super().seek(loc, whence) != previous_position:
            self._num_reads = 0
        return int(self.loc)

    def read(self, length: int = -1) -> bytes:
        """Reads up to `length` bytes, or all remaining bytes if it is negative.

        Raises:
            DataError: If the file cannot be read or has changed.
            BadCopyError: If the file was read completely and does not match its hash.
        """
        data: bytes = super().read(length)

        # Nothing is prefetched after one read: often only the first lines of a file are needed.
        self._num_reads += 1
        if self._num_reads > 1:
            next_block = (self.loc - 1) // BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES
            if self._prefetch is None and next_block < self.size:
                self._prefetch = Prefetch(next_block, self._fetch)
        return data

    def close(self) -> None:
        """Closes the file, and stops prefetching: no thread may be running when a process forks."""
        prefetch = self._prefetch
        self._prefetch = None
        if prefetch is not None:
            prefetch.cancel()
        super().close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        """Returns the block from `start` on; the base class calls this if it is not in memory.

        Raises:
            BadCopyError: If the file was read completely and does not match its hash.
        """
        prefetch = self._prefetch
        self._prefetch = None
        if prefetch is not None and prefetch.start == start:
            block = prefetch.wait()
        else:
            if prefetch is not None:
                prefetch.cancel()
            block = self._fetch(start, threading.Event())

        if self._matches_hash is False:
            check_copy(self._ref)
            raise make_bad_copy_error(self._ref)
        return block

    def _fetch(self, start: int, cancelled: threading.Event) -> bytes:
        """Fetches a block, and adds it to the verified content if it comes next."""
        block = self._blocks.fetch(start, cancelled)
        if self._verifier is not None and start == self._num_verified:
            self._verifier.update(block)
            self._num_verified += len(block)
            if self._num_verified == self.size:
                self._matches_hash = self._verifier.matches_hash()
        return block


class Prefetch:
    """A block that a thread is fetching.

    Args:
        start: Offset of the block in the file.
        fetch: Fetches the block at an offset; raises `CancelledError` once the event is set.
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
        """Cancels the fetch, and waits until its thread has ended."""
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
