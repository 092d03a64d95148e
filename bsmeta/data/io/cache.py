"""A cache on disk of facts about files that take a full pass over them to compute.

All processes of a machine share it. The name of a cached file derives from the size, the
modification time and the first bytes of the file described (a remote one: from its size and hash),
so it never describes other content.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash

from bsmeta.core.files import replacing, sync
from bsmeta.core.progress import exclusively
from bsmeta.data.io.file_ref import FileRef

log = logging.getLogger(__name__)

_HEAD = 1 << 16  # bytes of a file that identify it, with its size and time
_FACTS_VERSION = 2
_LONGEST_NAME = 128  # bytes of a file's name that go into the name of its cache file

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
        """The facts of a kind about the current content of a file; None if not cached."""
        return read_arrays(self._file(path, kind))

    def make(self, path: str | FileRef, kind: str, facts: Callable[[], Arrays]) -> None:
        """Caches the result of `facts`, unless a readable result is already cached.

        Raises:
            OSError: If the folder cannot be written, or `facts` cannot read the file.
        """
        kept = self._file(path, kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusively(f"{kept}.lock", f"{kind} of {path}"):
            if read_arrays(kept) is None:
                write_arrays(kept, facts())

    def _file(self, path: str | FileRef, kind: str) -> Path:
        if isinstance(path, FileRef):  # its hash is in the listing
            key = xxhash.xxh3_64(f"{_FACTS_VERSION} {path.size} {path.content_id}".encode())
        else:
            status = os.stat(path)
            with open(path, "rb") as file:
                key = xxhash.xxh3_64(file.read(_HEAD))
            key.update(f"{_FACTS_VERSION} {status.st_size} {status.st_mtime_ns}".encode())
        # The name is only for readability: a remote one may have any characters, at any length.
        name = os.path.basename(str(path)).encode(errors="replace")[:_LONGEST_NAME]
        readable = "".join(
            character if character.isprintable() else "_"
            for character in name.decode(errors="ignore")
        )
        return self.folder / f"{readable}-{key.hexdigest()}.{kind}.npz"


def read_arrays(path: Path) -> Arrays | None:
    """The arrays of a file in the cache; None if there is none, or it is damaged."""
    try:
        with np.load(path) as saved:
            return dict(saved)
    except FileNotFoundError:
        return None
    except Exception as error:  # numpy and zipfile raise many kinds for damaged content
        log.warning("%s cannot be read and is rebuilt: %s", path, error or type(error).__name__)
        return None


@contextlib.contextmanager
def kept_if_possible(what: str) -> Iterator[None]:
    """Logs that something is not kept if it cannot be written, which only costs time."""
    try:
        yield
    except OSError as error:
        log.warning("%s not kept: %s", what, error)


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays to a file atomically, even if the machine crashes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        np.savez(part, **arrays)  # type: ignore[arg-type]
        sync(part)
