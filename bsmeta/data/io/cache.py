"""A cache for facts about a file that take a full pass over it to compute.

The facts are arrays in a separate file. Its name derives from the size, the modification time and
the first bytes of the file described (on the Hub: from its size and hash), so it never describes
other content. One process at a time writes it, atomically.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash
from filelock import FileLock

from bsmeta.data.io.hub import FileRef

log = logging.getLogger(__name__)

HEAD = 1 << 16
VERSION = 2
LONGEST_NAME = 128  # bytes of a file's name that go into the name of its cache file

Arrays = dict[str, np.ndarray]


class Cache:
    """A cache folder.

    Args:
        folder: The folder; None is `bsmeta` in the user's cache folder.

    Attributes:
        folder: The folder.
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
        with FileLock(f"{kept}.lock"):
            if self.load(path, kind) is None:
                write_arrays(kept, facts())

    def _file(self, path: str | FileRef, kind: str) -> Path:
        if isinstance(path, FileRef):  # its hash is in the listing
            key = xxhash.xxh3_64(f"{VERSION} {path.size} {path.etag}".encode())
        else:
            status = os.stat(path)
            with open(path, "rb") as file:
                key = xxhash.xxh3_64(file.read(HEAD))
            key.update(f"{VERSION} {status.st_size} {status.st_mtime_ns}".encode())
        # The name is only for readability; it may be too long to fit completely.
        name = os.fsencode(os.path.basename(str(path)))[:LONGEST_NAME].decode(errors="ignore")
        return self.folder / f"{name}-{key.hexdigest()}.{kind}.npz"


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays to a file atomically, even if the machine crashes.

    The file's permissions follow the user's umask: others may share the folder.

    Raises:
        OSError: If it cannot be written.
    """
    written = path.with_name(f"{uuid.uuid4().hex}.tmp")
    try:
        with open(written, "xb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)
