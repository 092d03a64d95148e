"""Where facts about a file are kept that take a pass over it to find.

They are arrays, in a file of their own that is named by the size, the time and the first bytes of
the file that they are about (on the Hub: by its size and hash), and so is never of another content.
One process at a time makes it, all of it or nothing.
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

from bsmeta.data.hub import FileRef

log = logging.getLogger(__name__)

HEAD = 1 << 16
VERSION = 2
LONGEST_NAME = 128  # bytes of a file's name that are part of that of its facts

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
        """The facts of a kind about a file as it is now; None if they are not there."""
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
        """Keeps the facts that `facts` finds, unless they are there and can be read.

        Raises:
            OSError: If the folder cannot be written, or `facts` cannot read the file.
        """
        kept = self._file(path, kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{kept}.lock"):
            if self.load(path, kind) is None:
                write_arrays(kept, facts())

    def _file(self, path: str | FileRef, kind: str) -> Path:
        if isinstance(path, FileRef):  # its hash is known without reading it
            key = xxhash.xxh3_64(f"{VERSION} {path.size} {path.etag}".encode())
        else:
            status = os.stat(path)
            with open(path, "rb") as file:
                key = xxhash.xxh3_64(file.read(HEAD))
            key.update(f"{VERSION} {status.st_size} {status.st_mtime_ns}".encode())
        # A name is for people, and may be as long as the file system allows: not all of it fits.
        name = os.fsencode(os.path.basename(str(path)))[:LONGEST_NAME].decode(errors="ignore")
        return self.folder / f"{name}-{key.hexdigest()}.{kind}.npz"


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays to a file: all of them or nothing, whatever happens to the machine.

    The file is as readable as the user's umask lets files be: others may share the folder.

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
