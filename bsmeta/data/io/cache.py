"""Caches facts about files on disk, if computing them takes a full pass over the file.

All processes of a machine share the cache. The name of a cached file depends on the size, the
modification time and the first bytes of the described file (the size and hash of a remote one), so
facts are never used for other content.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash

from bsmeta.core.files import replace_atomically, sync_to_disk
from bsmeta.core.progress import hold_lock
from bsmeta.data.io.file_ref import FileRef

log = logging.getLogger(__name__)

_HEAD = 1 << 16  # first bytes of a file that, with its size and time, identify its content
_FACTS_VERSION = 2  # to be increased when facts are computed or stored in another way
_LONGEST_NAME = 128  # bytes of a file's name in the name of its cached facts

Arrays = dict[str, np.ndarray]


class Cache:
    """A cache folder.

    Args:
        folder: The folder; None is `bsmeta` in the user's cache folder.
    """

    def __init__(self, folder: str | None = None) -> None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = Path(folder) if folder else Path(caches) / "bsmeta"

    def load(self, path: str | FileRef, kind: str) -> Arrays | None:
        """Loads the facts of a kind about a file's current content; None if not cached."""
        return read_arrays(self._facts_path(path, kind))

    def ensure_facts(self, path: str | FileRef, kind: str, compute: Callable[[], Arrays]) -> None:
        """Computes and caches facts about a file, unless readable facts are already cached.

        Raises:
            OSError: If the folder cannot be written, or `compute` cannot read the file.
        """
        facts_path = self._facts_path(path, kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(f"{facts_path}.lock", f"{kind} of {path}"):
            if read_arrays(facts_path) is None:
                write_arrays(facts_path, compute())

    def _facts_path(self, path: str | FileRef, kind: str) -> Path:
        if isinstance(path, FileRef):  # its hash is in the listing
            key = xxhash.xxh3_64(f"{_FACTS_VERSION} {path.size} {path.content_id}".encode())
        else:
            status = os.stat(path)
            with open(path, "rb") as file:
                key = xxhash.xxh3_64(file.read(_HEAD))
            key.update(f"{_FACTS_VERSION} {status.st_size} {status.st_mtime_ns}".encode())

        # The file's name only helps people. A remote one may have any characters, at any length.
        name = os.path.basename(str(path)).encode(errors="replace")[:_LONGEST_NAME]
        readable = "".join(
            character if character.isprintable() else "_"
            for character in name.decode(errors="ignore")
        )
        return self.folder / f"{readable}-{key.hexdigest()}.{kind}.npz"


def read_arrays(path: Path) -> Arrays | None:
    """Reads the arrays of a cached file; returns None if there is none, or it is damaged."""
    try:
        with np.load(path) as saved:
            return dict(saved)
    except FileNotFoundError:
        return None
    except Exception as error:  # numpy and zipfile raise many types for damaged content
        log.warning("%s cannot be read and is rebuilt: %s", path, error or type(error).__name__)
        return None


@contextlib.contextmanager
def keep_if_possible(subject: str) -> Iterator[None]:
    """Logs a warning instead of raising an error if cached data cannot be written.

    Without the data, later runs only take more time.

    Args:
        subject: The data and a verb, for the message, such as `the hashes are`.
    """
    try:
        yield
    except OSError as error:
        log.warning("%s not kept: %s", subject, error)


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays to a file atomically, even if the machine crashes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(path) as part:
        np.savez(part, **arrays)  # type: ignore[arg-type]
        sync_to_disk(part)
