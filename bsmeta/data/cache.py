"""Where facts about a file are kept that take a pass over it to find.

A cached file is named by the size, the time and the first bytes of the file that it is about, and
so is never of another content. One process at a time makes it, all of it or nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import xxhash
from filelock import FileLock

HEAD = 1 << 16
VERSION = 1


class Cache:
    """A cache folder.

    Args:
        folder: The folder; None is `bsmeta` in the user's cache folder.
    """

    def __init__(self, folder: str | None = None) -> None:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self._folder = Path(folder) if folder else Path(caches) / "bsmeta"

    def file(self, path: str, kind: str) -> Path:
        """Where facts of a kind about a file are kept, as that file is now."""
        status = os.stat(path)
        with open(path, "rb") as file:
            key = xxhash.xxh3_64(file.read(HEAD))
        key.update(f"{VERSION} {status.st_size} {status.st_mtime_ns}".encode())
        return self._folder / f"{os.path.basename(path)}-{key.hexdigest()}.{kind}.npz"

    def make(self, path: str, kind: str, write: Callable[[BinaryIO], None]) -> Path:
        """The same, made with `write` if it is not there yet.

        Raises:
            OSError: If it cannot be written, or `write` cannot read the file.
        """
        cached = self.file(path, kind)
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{cached}.lock"):
            if not cached.exists():
                with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                    try:
                        write(file)  # type: ignore[arg-type]
                    except BaseException:
                        os.unlink(file.name)
                        raise
                os.replace(file.name, cached)
        return cached
