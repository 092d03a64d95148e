"""Files to which a run appends, and which survive their deletion: JSON lines, and the process logs.

A deleted file exists until the last process closes it, so everything that was written to it can be
copied to a new file of the same name.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bsmeta.core.files import replacing
from bsmeta.core.secrets import redact

logger = logging.getLogger(__name__)


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


class ProcessLog(logging.Handler):
    """The log of a process, `log-rank{r}.txt` in the run folder, across resumes.

    It has everything that the process logs, also what ranks other than 0 do not print. The folder
    of a refused start stays as it is: lines are held back until the checks have passed. Used as a
    context, it also records the error that ends the process.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._rank = rank
        self._world_size = world_size
        self._held_back: list[str] = []
        self._file: AppendedFile | None = None

    def open(self, folder: Path) -> None:
        """Begins to write, with the lines so far."""
        name = f"log-rank{self._rank}.txt"
        try:
            self._file = AppendedFile(folder / name)
        except OSError as error:
            logger.warning("%s cannot be written: %s", name, error)
            return
        host, process = socket.gethostname(), os.getpid()
        self._write(f"rank {self._rank} of {self._world_size} on {host}, process {process}")
        for line in self._held_back:
            self._write(line)
        self._held_back.clear()

    def emit(self, record: logging.LogRecord) -> None:
        line = redact(self.format(record))
        if self._file is None:
            self._held_back.append(line)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        """Writes a line; on a full disk it is lost, and the run ends where it needs the space."""
        if self._file is not None:
            with suppress(OSError):
                self._file.write(line)

    def restore(self) -> bool:
        """See `AppendedFile.restore`."""
        return self._file is not None and self._file.restore()

    def __enter__(self) -> ProcessLog:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            trace = (type(error), error, error.__traceback__)
            values = (logger.name, logging.ERROR, __file__, 0, "the run ends:", (), trace)
            self.handle(logging.LogRecord(*values))
        logging.getLogger().removeHandler(self)
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
