"""Two caches on disk, which all processes of a machine share.

`Cache` holds facts about a file that take a full pass over it to compute. Their file's name derives
from the size, the modification time and the first bytes of the file described (a remote one: from
its size and hash), so it never describes other content.

`BlockCache` holds blocks of remote files, each in a file of its own: its content, then a checksum.
One process downloads a block while the others that need it wait. The least recently read blocks are
evicted first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash
from filelock import FileLock, Timeout

from bsmeta.core.files import replacing, sync
from bsmeta.core.progress import exclusively, report_progress
from bsmeta.data.io.remote import FileRef

log = logging.getLogger(__name__)

HEAD = 1 << 16
VERSION = 2
LONGEST_NAME = 128  # bytes of a file's name that go into the name of its cache file

Arrays = dict[str, np.ndarray]

LOCKS = 256
CHECKSUM = 8  # bytes
KEPT = 0.9  # fraction of the limit that is left after eviction
SHARE = 0.005  # of the limit may be written for a file before the total size is checked again


class Cache:
    """A cache folder.

    Args:
        folder: The folder; None is `bsmeta` in the user's cache folder.
    """

    def __init__(self, folder: str | None = None) -> None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = Path(folder) if folder else Path(caches) / "bsmeta"

    def load(self, path: str | FileRef, kind: str) -> Arrays | None:
        """The facts of a kind about the current content of a file; None if not cached."""
        kept = self._file(path, kind)
        try:
            with np.load(kept) as saved:
                return dict(saved)
        except FileNotFoundError:
            return None
        except Exception as error:  # numpy and zipfile raise many kinds for damaged content
            log.warning("%s cannot be read and is rebuilt: %s", kept, error or type(error).__name__)
            return None

    def make(self, path: str | FileRef, kind: str, facts: Callable[[], Arrays]) -> None:
        """Caches the result of `facts`, unless a readable result is already cached.

        Raises:
            OSError: If the folder cannot be written, or `facts` cannot read the file.
        """
        kept = self._file(path, kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusively(f"{kept}.lock", f"{kind} of {path}"):
            if self.load(path, kind) is None:
                write_arrays(kept, facts())

    def _file(self, path: str | FileRef, kind: str) -> Path:
        if isinstance(path, FileRef):  # its hash is in the listing
            key = xxhash.xxh3_64(f"{VERSION} {path.size} {path.content_id}".encode())
        else:
            status = os.stat(path)
            with open(path, "rb") as file:
                key = xxhash.xxh3_64(file.read(HEAD))
            key.update(f"{VERSION} {status.st_size} {status.st_mtime_ns}".encode())
        # The name is only for readability; it may be too long to fit completely.
        name = os.fsencode(os.path.basename(str(path)))[:LONGEST_NAME].decode(errors="ignore")
        return self.folder / f"{name}-{key.hexdigest()}.{kind}.npz"


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays to a file atomically, even if the machine crashes."""
    with replacing(path) as part:
        np.savez(part, **arrays)  # type: ignore[arg-type]
        sync(part)


class BlockCache:
    """A folder of blocks.

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
        """A block, read from the disk or produced by `make`.

        An unwritable folder or a damaged block is not an error; it only costs time.

        Args:
            key: What identifies its content.
            make: Produces the block; its errors propagate.
            cancelled: Stops waiting for another process; the block is then produced here.
        """
        if not self._limit:
            return make()
        path = self._path(key)
        if (block := kept(path, size)) is not None:
            return block
        try:
            lock = self._lock(path.name)
            lock.acquire(cancel_check=lambda: _is_cancelled(cancelled))
        except (OSError, Timeout) as error:
            if not cancelled.is_set():
                log.warning("blocks of remote files are not kept: %s", error)
            return make()
        try:
            if (block := kept(path, size)) is None:
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

    def _lock(self, name: str) -> FileLock:
        folder = self._folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{int(name, 16) % LOCKS}.lock")

    def _keep(self, path: Path, block: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                part.write_bytes(block + xxhash.xxh3_64_digest(block))
        except OSError as error:  # the disk may be full
            log.warning("a block of a remote file is not kept: %s", error)
        self._unseen += len(block) + CHECKSUM
        if self._unseen >= self._limit * SHARE:
            self._unseen = 0
            evict(self._folder / "blocks", self._limit)


def _is_cancelled(cancelled: threading.Event) -> bool:
    """Called while another process downloads the block, which is progress."""
    report_progress()
    return cancelled.is_set()


def kept(path: Path, size: int) -> bytes | None:
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
