"""Caches results on disk that take a full pass over a file to compute.

All processes of a machine share the cache. The name of an entry depends on the file's size,
modification time and first bytes (or on the size and hash of a remote file), so an entry is never
used for other content.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash

from bsmeta.core.files import locate_user_cache, replace_atomically, sync_to_disk
from bsmeta.core.progress import hold_lock
from bsmeta.data.io.file_ref import FileRef

logger = logging.getLogger(__name__)

_NUM_HEAD_BYTES = 1 << 16  # first bytes of a file, which help to identify its content
_VERSION = 3  # increased when results are computed or stored differently
_MAX_NAME_BYTES = 128  # of a file's name in the names of its entries

Arrays = dict[str, np.ndarray]
"""A cached result: named arrays."""


class Cache:
    """A folder of cached results.

    Args:
        folder: Path of the folder; None is the user's cache folder.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = Path(folder) if folder else locate_user_cache()

    def load(self, path: str | FileRef, kind: str) -> Arrays | None:
        """Loads a result for a file's current content; None if it is not cached.

        Args:
            kind: Identifies the computation of the result, such as `index`.

        Raises:
            OSError: If a local file cannot be read.
        """
        return read_arrays(self._locate_entry(path, kind))

    def ensure(self, path: str | FileRef, kind: str, compute: Callable[[], Arrays]) -> None:
        """Computes and caches a result for a file, unless a readable one is already cached.

        Raises:
            OSError: If the folder cannot be written, or `compute` cannot read the file.
        """
        entry_path = self._locate_entry(path, kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(f"{entry_path}.lock", f"{kind} of {path}"):
            if read_arrays(entry_path) is None:
                write_arrays(entry_path, compute())

    def _locate_entry(self, path: str | FileRef, kind: str) -> Path:
        """Returns the path at which a result for a file's current content is cached."""
        if isinstance(path, FileRef):  # its hash is in the listing
            key = xxhash.xxh3_64(f"{_VERSION} {path.size} {path.content_id}".encode())
        else:
            status = os.stat(path)
            with open(path, "rb") as file:
                key = xxhash.xxh3_64(file.read(_NUM_HEAD_BYTES))
            key.update(f"{_VERSION} {status.st_size} {status.st_mtime_ns}".encode())

        # The file's name is only for people. A remote name may have any characters and length.
        name = os.path.basename(str(path)).encode(errors="replace")[:_MAX_NAME_BYTES]
        readable = "".join(
            character if character.isprintable() else "_"
            for character in name.decode(errors="ignore")
        )
        return self.folder / f"{readable}-{key.hexdigest()}.{kind}.npz"


def read_arrays(path: Path) -> Arrays | None:
    """Returns the arrays in a cached file; None if the file is missing or damaged."""
    try:
        with np.load(path) as saved:
            return dict(saved)
    except FileNotFoundError:
        return None
    except Exception as error:  # numpy and zipfile raise many types for damaged content
        logger.warning("%s cannot be read and is rebuilt: %s", path, error or type(error).__name__)
        return None


@contextlib.contextmanager
def keep_if_possible(subject: str) -> Iterator[None]:
    """Suppresses the `OSError` of writing to the cache, and logs a warning instead.

    Without the cached data, later runs only take longer.

    Args:
        subject: Subject and verb of the message, such as `the hashes are`.
    """
    try:
        yield
    except OSError as error:
        logger.warning("%s not kept: %s", subject, error)


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays to a file, atomically and durably: a machine crash does not damage it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(path) as part:
        np.savez(part, **arrays)  # type: ignore[arg-type]
        sync_to_disk(part)
