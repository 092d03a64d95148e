"""Open files of documents, on the local disk (`str`) or remote (`FileRef`), the same way.

A `RemoteFile` fetches blocks of several megabytes through a `BlockCache` and prefetches the next in
a thread. A faulty download must not stay in the cache: a file is compared with its hash when it has
been read completely, and when it turns out to be damaged.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from typing import BinaryIO, cast

import xxhash
from fsspec.spec import AbstractBufferedFile

from bsmeta.core.errors import DataError
from bsmeta.core.progress import reporting
from bsmeta.data.io.cache import BlockCache
from bsmeta.data.io.inflate import AccessPoint, DamagedFileError, content
from bsmeta.data.io.remote import CancelledError, FileRef, read_range

BLOCK = 4 << 20  # bytes of a file per request


class BadCopyError(DataError):
    """A remote file was read from a cached copy that does not match its hash."""


def open_file(path: str | FileRef, blocks: int = 1) -> BinaryIO:
    """Opens a file for reading.

    Args:
        blocks: Number of the most recently read blocks to keep in memory, if it is remote.
    """
    if isinstance(path, FileRef):
        return cast(BinaryIO, RemoteFile(path, blocks))
    return open(path, "rb")


def size_of(path: str | FileRef) -> int:
    """Size of a file in bytes."""
    return path.size if isinstance(path, FileRef) else os.path.getsize(path)


def shard_content(
    path: str | FileRef, file: BinaryIO, point: AccessPoint | None = None
) -> Generator[bytes, None, None]:
    """The content of a shard in blocks; see `inflate.content`.

    If a remote file is damaged, its cached copy is checked and, if it is bad, downloaded again;
    reading then resumes at the same byte.

    Raises:
        DamagedFileError: If the remote file itself is damaged; everything before the damage is
            yielded first.
        DataError: If the content read before the damage differs from the content of the server.
    """
    if not isinstance(path, FileRef):
        yield from reporting(content(path, file, point))
        return
    read, count = xxhash.xxh3_64(), 0
    try:
        for block in content(path.place, file, point):
            read.update(block)
            count += len(block)
            yield block
        return
    except BadCopyError:
        pass  # the cache now has the right one
    except DamagedFileError:
        check_copy(path)
    with open_file(path) as again:
        blocks = content(path.place, again, point)
        yield skip_same(blocks, count, read.digest(), path)
        yield from blocks


def skip_same(blocks: Iterator[bytes], count: int, digest: bytes, ref: FileRef) -> bytes:
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
            f"whether a proxy changes it, or start a new run, {ref.fixed_version}"
        )
    return is_right is None and digest == digest_now


def refuse_bad_copy(path: str | FileRef) -> None:
    """Raises if a rejected document may come from a bad cached copy."""
    if not isinstance(path, FileRef):
        return
    try:
        was_right = check_copy(path)
    except DataError:
        if not path.is_offline():
            raise
        return  # partly not in the cache: the copy cannot be blamed
    if not was_right:
        raise bad_copy(path)


def bad_copy(ref: FileRef) -> BadCopyError:
    """The error for a cached copy that was read before it turned out to be bad."""
    return BadCopyError(
        f"{ref}: the downloaded copy (in {ref.settings.folder}) did not have the listed hash "
        f"{ref.etag}; it was removed and downloaded again, but documents of the bad copy were read:"
        " resume from a checkpoint that is older than them"
    )


class Blocks:
    """The blocks of a remote file, cached or downloaded."""

    def __init__(self, ref: FileRef) -> None:
        self._ref = ref
        self._cache = BlockCache(ref.settings.folder, ref.settings.cache_bytes)

    def fetch(self, start: int, cancelled: threading.Event) -> bytes:
        """The block at byte `start`."""
        key, stop = self._key(start)
        make = partial(read_range, self._ref, start, stop, cancelled)
        return self._cache.get(key, stop - start, make, cancelled)

    def check(self) -> tuple[bool | None, bytes]:
        """Whether the file matches its hash (None: not known), and the xxh3 of its content."""
        found, digest, never = ContentHash(self._ref), xxhash.xxh3_64(), threading.Event()
        for start in range(0, self._ref.size, BLOCK):
            block = self.fetch(start, never)
            found.add(start, block)
            digest.update(block)
        return found.is_right, digest.digest()

    def drop(self) -> None:
        """Removes the blocks from the cache."""
        for start in range(0, self._ref.size, BLOCK):
            self._cache.drop(self._key(start)[0])

    def _key(self, start: int) -> tuple[str, int]:
        """The cache key of a block's content, and the end of the block."""
        stop = min(start + BLOCK, self._ref.size)
        return f"{self._ref.content_id} {self._ref.size} {start} {stop}", stop


class ContentHash:
    """Compares a file with its listed hash, from blocks added in order.

    Attributes:
        is_right: Whether the file matches its hash; None until its last block is added, and if no
            hash of its content is known.
    """

    def __init__(self, ref: FileRef) -> None:
        self._ref = ref
        self._place = 0
        self._verifier = ref.verifier()
        self.is_right: bool | None = None

    def add(self, start: int, block: bytes) -> None:
        """Adds the block at byte `start`, unless blocks before it were skipped."""
        if self._verifier is not None and start == self._place:
            self._verifier.update(block)
            self._place += len(block)
            if self._place == self._ref.size:
                self.is_right = self._verifier.is_right()


class RemoteFile(AbstractBufferedFile):
    """A remote file, for reading.

    Its errors are `DataError`s, never `OSError`s, by which readers recognize a damaged file: an
    unreachable file must not be mistaken for the end of a shard.
    """

    def __init__(self, ref: FileRef, blocks: int = 1) -> None:
        self._ref = ref
        self._blocks = Blocks(ref)
        self._hash = ContentHash(ref)
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
            self._fetch_ahead((self.loc - 1) // BLOCK * BLOCK + BLOCK)
        return data

    def close(self) -> None:
        """Stops prefetching: a thread must not be running when the process forks."""
        self._drop_ahead()
        super().close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.start == start:
            block = ahead.block()
        else:
            if ahead is not None:
                ahead.cancel()
            block = self._fetch(start, threading.Event())
        if self._hash.is_right is False:
            check_copy(self._ref)
            raise bad_copy(self._ref)
        return block

    def _fetch_ahead(self, start: int) -> None:
        if self._ahead is None and start < self.size:
            self._ahead = Ahead(start, lambda cancelled: self._fetch(start, cancelled))

    def _fetch(self, start: int, cancelled: threading.Event) -> bytes:
        block = self._blocks.fetch(start, cancelled)
        self._hash.add(start, block)
        return block

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()


class Ahead:
    """A block that a thread is prefetching.

    Args:
        fetch: Fetches it, unless the event is set.
    """

    def __init__(self, start: int, fetch: Callable[[threading.Event], bytes]) -> None:
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
            self._future.set_result(self._fetch(self._cancelled))
        except CancelledError:
            self._future.cancel()
        except BaseException as error:
            self._future.set_exception(error)  # raised when the block is used
