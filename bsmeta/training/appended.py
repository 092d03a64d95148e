"""Files to which a run appends, and which survive their deletion.

A deleted file exists until the last process closes it, so everything that was written to it can be
copied to a new file of the same name.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bsmeta.core.files import replacing
from bsmeta.core.secrets import redact


class AppendedFile:
    """A text file, flushed after every line, so that a killed process loses no line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = path.open("a+b")
        self._access = threading.RLock()  # the thread of an asynchronous save may restore it

    def write(self, line: str) -> None:
        with self._access:
            self._stream.write(line.encode() + b"\n")
            self._stream.flush()

    def restore(self) -> bool:
        """Writes the file again with all its lines if it was deleted; returns whether it was.

        Raises:
            FileNotFoundError: If its folder does not exist.
        """
        with self._access:
            if self._stream.closed or self._path.exists():
                return False
            content = b""
            with suppress(OSError):  # a network file system may have lost the deleted file
                self._stream.seek(0)
                content = self._stream.read()
            with replacing(self._path) as part:
                part.write_bytes(content)
            restored = self._path.open("a+b")
            with suppress(OSError):
                self._stream.close()
            self._stream = restored
            return True

    def close(self) -> None:
        with self._access:
            self._stream.close()


class LineLog:
    """A JSON-lines file.

    Args:
        keep_folder: Called before each access; rebuilds the folder of the file if it was deleted.
    """

    def __init__(self, file: Path, keep_folder: Callable[[], object] = lambda: None) -> None:
        self._file = AppendedFile(file)
        self._keep_folder = keep_folder

    def write(self, value: dict[str, Any]) -> None:
        self._keep_folder()
        self._file.write(redact(json.dumps(_valid(value), allow_nan=False)))

    def restore(self) -> bool:
        """See `AppendedFile.restore`."""
        return self._file.restore()

    def close(self) -> None:
        try:
            self._keep_folder()
        finally:
            self._file.close()


def _valid(value: Any) -> Any:
    """The value with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _valid(own) for name, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_valid(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
