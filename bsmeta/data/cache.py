"""Where facts about a file are kept that take a pass over it to find.

They are arrays, in a file of their own that is named by the size, the time and the first bytes of
the file that they are about (on the Hub: by its size and hash), and so is never of another content.
One process at a time makes it, all of it or nothing.
"""

from __future__ import annotations

import logging
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash
from filelock import FileLock

from bsmeta.data.hub_paths import HubPath

log = logging.getLogger(__name__)

HEAD = 1 << 16
VERSION = 2

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

    def load(self, path: str, kind: str) -> Arrays | None:
        """The facts of a kind about a file as it is now; None if they are not there."""
        kept = self._file(path, kind)
        if not kept.exists():
            return None
        try:
            with np.load(kept) as saved:
                return dict(saved)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            log.warning("%s is damaged and is made again: %s", kept, error)
            kept.unlink(missing_ok=True)
            return None

    def make(self, path: str, kind: str, facts: Callable[[], Arrays]) -> None:
        """Keeps the facts that `facts` finds, unless they are there.

        Raises:
            OSError: If the folder cannot be written, or `facts` cannot read the file.
        """
        kept = self._file(path, kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{kept}.lock"):
            if kept.exists():
                return
            found = facts()
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                np.savez(file, **found)  # type: ignore[arg-type]
            os.replace(file.name, kept)

    def _file(self, path: str, kind: str) -> Path:
        if isinstance(path, HubPath):  # its hash is known without reading it
            key = xxhash.xxh3_64(f"{VERSION} {path.size} {path.etag}".encode())
        else:
            status = os.stat(path)
            with open(path, "rb") as file:
                key = xxhash.xxh3_64(file.read(HEAD))
            key.update(f"{VERSION} {status.st_size} {status.st_mtime_ns}".encode())
        return self.folder / f"{os.path.basename(path)}-{key.hexdigest()}.{kind}.npz"
