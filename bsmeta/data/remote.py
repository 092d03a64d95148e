"""Files of documents, on the local disk or on the Hub, opened the same way.

A `RemoteFile` fetches blocks of several megabytes through the cache of `blocks`, the next one in a
thread while the reader is at work on this one.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import BinaryIO

from bsmeta.data.blocks import BlockCache
from bsmeta.data.hub_paths import HubPath
from bsmeta.data.hub_requests import CancelledError, read_range

BLOCK = 4 << 20  # bytes of a file that are asked for at once
BUFFER = 1 << 18


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading.

    Raises:
        OSError: If it is a local one that cannot be read.
    """
    if isinstance(path, HubPath):
        return io.BufferedReader(RemoteFile(path), BUFFER)
    return open(path, "rb")


def size_of(path: str) -> int:
    """Bytes of a file."""
    return path.size if isinstance(path, HubPath) else os.path.getsize(path)


class RemoteFile(io.RawIOBase):
    """A file on the Hub, for reading.

    Its errors are `DataError`s, never `OSError`s, by which readers know a damaged file: what cannot
    be reached must not be taken for the end of a shard.

    Args:
        path: The file.
    """

    def __init__(self, path: HubPath) -> None:
        self._path = path
        self._cache = BlockCache(path.settings.folder, path.settings.cache_bytes)
        self._place = 0
        self._reads = 0  # in a row, without going elsewhere
        self._number = -1  # of the block at hand
        self._block = b""
        self._ahead: Ahead | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes elsewhere; nothing is fetched yet."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._path.size}[whence]
        if start + offset != self._place:
            self._reads = 0
        self._place = start + offset
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fills the buffer as far as the block at hand goes; 0 is the end of the file.

        Raises:
            DataError: If the file cannot be read, or has changed.
        """
        if self._place >= self._path.size:
            return 0
        number, start = divmod(self._place, BLOCK)
        if number != self._number:
            self._block, self._number = self._fetched(number), number
        part = memoryview(self._block)[start : start + len(buffer)]
        buffer[: len(part)] = part
        self._place += len(part)
        self._reads += 1
        if self._reads > 1:  # the first lines of a file are often all that is wanted
            self._fetch_ahead(number + 1)
        return len(part)

    def close(self) -> None:
        """Ends what is still being fetched; a thread must not outlive it into a forked process."""
        self._drop_ahead()
        self._block = b""
        super().close()

    def _fetched(self, number: int) -> bytes:
        ahead = self._ahead
        if ahead is None or ahead.number != number:
            self._drop_ahead()
            return self._fetch(number, threading.Event())
        self._ahead = None
        return ahead.block()

    def _fetch_ahead(self, number: int) -> None:
        if self._ahead is None and number * BLOCK < self._path.size:
            self._ahead = Ahead(number, lambda cancelled: self._fetch(number, cancelled))

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()

    def _fetch(self, number: int, cancelled: threading.Event) -> bytes:
        path, start = self._path, number * BLOCK
        stop = min(start + BLOCK, path.size)
        return self._cache.get(
            f"{path.etag} {path.size} {start} {stop}",
            stop - start,
            lambda: read_range(path, start, stop, cancelled),
            cancelled,
        )


class Ahead:
    """A block that a thread is fetching.

    Args:
        number: Number of the block.
        fetch: Fetches it, until the event is set.
    """

    def __init__(self, number: int, fetch: Callable[[threading.Event], bytes]) -> None:
        self.number = number
        self._fetch = fetch
        self._cancelled = threading.Event()
        self._future: Future[bytes] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def block(self) -> bytes:
        """The block, or the error instead of it."""
        return self._future.result()

    def cancel(self) -> None:
        """Ends the fetching, and waits until it has ended."""
        self._cancelled.set()
        if not sys.is_finalizing():  # then the thread is not running any more
            self._thread.join()

    def _run(self) -> None:
        try:
            self._future.set_result(self._fetch(self._cancelled))
        except CancelledError:
            self._future.cancel()
        except BaseException as error:
            self._future.set_exception(error)  # raised where the block is wanted
