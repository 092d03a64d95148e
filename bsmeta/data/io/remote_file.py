"""Remote files (`FileRef`), read like local ones: in blocks, prefetched, cached, and verified.

A `RemoteFile` fetches blocks of several megabytes through a `BlockCache`, a folder that all
processes of a machine share, and prefetches the next in a thread. A faulty download must not stay
in the cache: a file is compared with its hash when it has been read completely, and when it turns
out to be damaged.
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
from typing import BinaryIO

import xxhash
from filelock import FileLock, Timeout
from fsspec.spec import AbstractBufferedFile

from bsmeta.core.errors import DataError
from bsmeta.core.files import replacing
from bsmeta.core.progress import report_progress
from bsmeta.data.io.cache import kept_if_possible
from bsmeta.data.io.compression import AccessPoint, DamagedFileError, content
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.remote import CancelledError
from bsmeta.data.io.stores import range_parts, store_of_file

log = logging.getLogger(__name__)

BLOCK = 4 << 20  # bytes of a file per request
LOCKS = 256
CHECKSUM = 8  # bytes after the content of a block
KEPT = 0.9  # fraction of the limit that is left after eviction
SHARE = 0.005  # of the limit may be written for a file before the total size is checked again


class BadCopyError(DataError):
    """A remote file was read from a cached copy that does not match its hash."""


def bad_copy(ref: FileRef) -> BadCopyError:
    """The error for a cached copy that was read before it turned out to be bad."""
    return BadCopyError(
        f"{ref}: the downloaded copy (in {ref.settings.folder}) did not have the listed hash "
        f"{ref.etag}; it was removed and downloaded again, but documents of the bad copy were read:"
        " resume from a checkpoint that is older than them"
    )


def remote_content(
    ref: FileRef, file: BinaryIO, point: AccessPoint | None = None
) -> Iterator[bytes]:
    """The content of a remote shard in blocks; see `files.shard_content`."""
    read, count = xxhash.xxh3_64(), 0
    try:
        for block in content(ref.place, file, point):
            read.update(block)
            count += len(block)
            yield block
        return
    except BadCopyError:
        pass  # the cache now has the right one
    except DamagedFileError:
        check_copy(ref)
    with RemoteFile(ref) as again:
        blocks = content(ref.place, again, point)
        yield _skip_same(blocks, count, read.digest(), ref)
        yield from blocks


def _skip_same(blocks: Iterator[bytes], count: int, digest: bytes, ref: FileRef) -> bytes:
    """Skips `count` bytes that must match `digest`; returns the rest of their last block."""
    skipped, rest = xxhash.xxh3_64(), b""
    with contextlib.suppress(DamagedFileError):
        while count and (block := next(blocks, b"")):
            skipped.update(block[:count])
            rest = block[count:]
            count -= len(block) - len(rest)
    if count or skipped.digest() != digest:
        raise bad_copy(ref)
    return rest


def check_copy(ref: FileRef) -> bool:
    """Compares a file with its hash, and downloads it again if the cached content differs.

    Without a known hash, it is downloaded again and compared with the cached content.

    Returns:
        Whether the cached copy was already right.

    Raises:
        DataError: If the server sends other content than it lists, or cannot be reached.
    """
    blocks = Blocks(ref)
    is_right, digest = blocks.check()
    if is_right:
        return True
    blocks.drop()
    is_right_now, digest_now = blocks.check()
    if is_right_now is False:
        blocks.drop()
        raise DataError(
            f"{ref}: the server sends another content than it lists (hash {ref.etag}), twice; see "
            f"whether a proxy changes it, or start a new run, {store_of_file(ref).fixed_version}"
        )
    return is_right is None and digest == digest_now


def refuse_bad_copy_of(ref: FileRef) -> None:
    """Raises if a rejected document may come from a bad cached copy."""
    try:
        was_right = check_copy(ref)
    except DataError:
        if not store_of_file(ref).is_offline():
            raise
        return  # partly not in the cache: the copy cannot be blamed
    if not was_right:
        raise bad_copy(ref)


class BlockCache:
    """A folder of blocks, each in a file: its content, then a checksum.

    One process downloads a block while the others that need it wait. The least recently read blocks
    are evicted first.

    Args:
        limit: Most bytes in it; 0 keeps nothing.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = Path(folder)
        self._limit = limit
        self._unseen = limit  # bytes written since the last size check; unknown at first

    def get(
        self, key: str, size: int, make: Callable[[], bytes], cancelled: threading.Event
    ) -> bytes:
        """A block, read from the disk or produced by `make`, whose errors propagate.

        An unwritable folder or a damaged block is not an error; it only costs time.

        Args:
            key: What identifies its content.
            cancelled: Stops waiting for another process; the block is then produced here.
        """
        if not self._limit:
            return make()
        path = self._path(key)
        if (block := _kept(path, size)) is not None:
            return block
        try:
            locks = self._folder / "locks"
            locks.mkdir(parents=True, exist_ok=True)
            lock = FileLock(locks / f"{int(path.name, 16) % LOCKS}.lock")
            lock.acquire(cancel_check=lambda: _is_cancelled(cancelled))
        except (OSError, Timeout) as error:
            if not cancelled.is_set():
                log.warning("blocks of remote files are not kept: %s", error)
            return make()
        try:
            if (block := _kept(path, size)) is None:
                block = make()
                self._keep(path, block)
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

    def _keep(self, path: Path, block: bytes) -> None:
        with kept_if_possible("a block of a remote file is"):  # the disk may be full
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                part.write_bytes(block + xxhash.xxh3_64_digest(block))
        self._unseen += len(block) + CHECKSUM
        if self._unseen >= self._limit * SHARE:
            self._unseen = 0
            evict(self._folder / "blocks", self._limit)


def _is_cancelled(cancelled: threading.Event) -> bool:
    """Called while another process downloads the block, which is progress."""
    report_progress()
    return cancelled.is_set()


def _kept(path: Path, size: int) -> bytes | None:
    """A block from the disk; None if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # it may belong to another user
        os.utime(path)  # the most recently read is removed last
    block, checksum = data[:-CHECKSUM], data[-CHECKSUM:]
    if len(block) != size or xxhash.xxh3_64_digest(block) != checksum:
        log.warning("%s is damaged and is downloaded again", path)
        return None
    return block


def evict(folder: Path, limit: int) -> None:
    """Removes the least recently read blocks if the folder has more than `limit` bytes.

    Other processes may evict concurrently: files that are already gone are skipped.
    """
    files, total = [], 0
    for entry in folder.glob("*/*"):
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue
        files.append((status.st_mtime_ns, status.st_size, entry))
        total += status.st_size
    if total <= limit:
        return
    for _, size, entry in sorted(files):
        if total <= limit * KEPT:
            return
        with contextlib.suppress(OSError):  # another process removed it, or another user owns it
            entry.unlink()
        total -= size


class Blocks:
    """The blocks of a remote file, cached or downloaded."""

    def __init__(self, ref: FileRef) -> None:
        self._ref = ref
        self._cache = BlockCache(ref.settings.folder, ref.settings.cache_bytes)

    def fetch(self, start: int, cancelled: threading.Event) -> bytes:
        """The block at byte `start`."""
        key, stop = self._key(start)

        def download() -> bytes:
            return b"".join(range_parts(self._ref, start, stop, cancelled))

        return self._cache.get(key, stop - start, download, cancelled)

    def check(self) -> tuple[bool | None, bytes]:
        """Whether the file matches its hash (None: not known), and the xxh3 of its content."""
        verifier, digest = store_of_file(self._ref).verifier(self._ref), xxhash.xxh3_64()
        never = threading.Event()
        for start in range(0, self._ref.size, BLOCK):
            block = self.fetch(start, never)
            digest.update(block)
            if verifier is not None:
                verifier.update(block)
        return None if verifier is None else verifier.is_right(), digest.digest()

    def drop(self) -> None:
        """Removes the blocks from the cache."""
        for start in range(0, self._ref.size, BLOCK):
            self._cache.drop(self._key(start)[0])

    def _key(self, start: int) -> tuple[str, int]:
        """The cache key of a block's content, and the end of the block."""
        stop = min(start + BLOCK, self._ref.size)
        return f"{self._ref.content_id} {self._ref.size} {start} {stop}", stop


class RemoteFile(AbstractBufferedFile):
    """A remote file, for reading.

    Its errors are `DataError`s, never `OSError`s, by which readers recognize a damaged file: an
    unreachable file must not be mistaken for the end of a shard.
    """

    def __init__(self, ref: FileRef, blocks: int = 1) -> None:
        self._ref = ref
        self._blocks = Blocks(ref)
        self._verifier = store_of_file(ref).verifier(ref)
        self._verified = 0  # bytes, unless blocks were skipped
        self._is_right: bool | None = None
        self._reads = 0  # consecutive, without a seek
        self._ahead: Ahead | None = None
        memory = {"cache_type": "blockcache", "cache_options": {"maxblocks": blocks}}
        super().__init__(None, str(ref), block_size=BLOCK, size=ref.size, **memory)

    def seek(self, loc: int, whence: int = os.SEEK_SET) -> int:
        """Moves to another position without fetching anything."""
        place = self.loc
        if super().seek(loc, whence) != place:
            self._reads = 0
        return int(self.loc)

    def read(self, length: int = -1) -> bytes:
        """Up to `length` bytes, or all remaining bytes if it is negative.

        Raises:
            DataError: If the file cannot be read or has changed.
            BadCopyError: If it was read completely and does not match its hash.
        """
        data: bytes = super().read(length)
        self._reads += 1
        if self._reads > 1:  # the first lines of a file are often all that is needed
            start = (self.loc - 1) // BLOCK * BLOCK + BLOCK
            if self._ahead is None and start < self.size:
                self._ahead = Ahead(start, self._fetch)
        return data

    def close(self) -> None:
        """Stops prefetching: a thread must not be running when the process forks."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
        super().close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.start == start:
            block = ahead.block()
        else:
            if ahead is not None:
                ahead.cancel()
            block = self._fetch(start, threading.Event())
        if self._is_right is False:
            check_copy(self._ref)
            raise bad_copy(self._ref)
        return block

    def _fetch(self, start: int, cancelled: threading.Event) -> bytes:
        block = self._blocks.fetch(start, cancelled)
        if self._verifier is not None and start == self._verified:
            self._verifier.update(block)
            self._verified += len(block)
            if self._verified == self.size:
                self._is_right = self._verifier.is_right()
        return block


class Ahead:
    """A block that a thread is prefetching.

    Args:
        fetch: Fetches the block at a byte, unless the event is set.
    """

    def __init__(self, start: int, fetch: Callable[[int, threading.Event], bytes]) -> None:
        self.start = start
        self._fetch = fetch
        self._cancelled = threading.Event()
        self._future: Future[bytes] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def block(self) -> bytes:
        """The block; raises the error of the fetch, if any."""
        return self._future.result()

    def cancel(self) -> None:
        """Stops the fetch, and waits until it has ended."""
        self._cancelled.set()
        if not sys.is_finalizing():  # otherwise the thread no longer runs
            self._thread.join()

    def _run(self) -> None:
        try:
            self._future.set_result(self._fetch(self.start, self._cancelled))
        except CancelledError:
            self._future.cancel()
        except BaseException as error:
            self._future.set_exception(error)  # raised when the block is used
