"""The logs of a process: text files of which a killed process or a deleted folder loses no line.

A deleted file exists until the last process closes it, so the whole content of a log can be copied
to a new file of the same name.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bsmeta.core.files import replace_atomically
from bsmeta.core.printable import make_printable
from bsmeta.core.secrets import redact

logger = logging.getLogger(__name__)


class Log:
    """A text file, flushed after every line, so that a killed process loses no line.

    Args:
        rebuild_folder: Called before each line; rebuilds the folder if it was deleted.
    """

    def __init__(self, path: Path, rebuild_folder: Callable[[], object] = lambda: None) -> None:
        self._path = path
        self._rebuild_folder = rebuild_folder
        self._stream = path.open("a+b")
        self._access = threading.RLock()  # the thread of an asynchronous save may restore it

    def write(self, value: dict[str, Any]) -> None:
        """Writes a line of JSON, with null for NaN and infinity, and ? for lone surrogates."""
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        valid_value = json.loads(text, parse_constant=lambda _: None)
        self.append(redact(json.dumps(valid_value)))

    def append(self, line: str) -> None:
        """Writes a line, which must not contain a secret."""
        self._rebuild_folder()
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
            with replace_atomically(self._path) as temporary:
                temporary.write_bytes(content)

            new_stream = self._path.open("a+b")
            with suppress(OSError):
                self._stream.close()
            self._stream = new_stream
            return True

    def close(self) -> None:
        """Closes the file, after its folder is rebuilt if it was deleted."""
        try:
            self._rebuild_folder()
        finally:
            with self._access:
                self._stream.close()


class ProcessLog(logging.Handler):
    """The log of a process, `log-rank{r}.txt` in the run folder, across resumes.

    It has all records that the process logs, including those that ranks other than 0 do not print.
    Lines are held back until the checks have passed, so that a refused start leaves the folder
    unchanged. Used as a context, it also records the error that ends the process.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._rank = rank
        self._world_size = world_size
        self._held_back: list[str] = []
        self.file: Log | None = None

    def open(self, folder: Path) -> None:
        """Opens the file, and writes the lines that were held back."""
        name = f"log-rank{self._rank}.txt"
        try:
            self.file = Log(folder / name)
        except OSError as error:
            logger.warning("%s cannot be written: %s", name, error)
            return

        self._write(
            f"rank {self._rank} of {self._world_size} on {socket.gethostname()}, "
            f"process {os.getpid()}"
        )
        for line in self._held_back:
            self._write(line)
        self._held_back.clear()

    def emit(self, record: logging.LogRecord) -> None:
        line = make_printable(redact(self.format(record)))
        if self.file is None:
            self._held_back.append(line)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        """Writes a line; it is lost if the disk is full, which ends the run at its next save."""
        if self.file is not None:
            with suppress(OSError):
                self.file.append(line)

    def __enter__(self) -> ProcessLog:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            record = logging.LogRecord(
                name=logger.name,
                level=logging.ERROR,
                pathname=__file__,
                lineno=0,
                msg="the run ends:",
                args=(),
                exc_info=(type(error), error, error.__traceback__),
            )
            self.handle(record)

        logging.getLogger().removeHandler(self)
        if self.file is not None:
            with suppress(OSError):
                self.file.close()
