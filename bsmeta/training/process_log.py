"""The log of each process of a run: `log-rank{r}.txt` in the run folder, across resumes.

It has everything that the process logs, also what ranks other than 0 do not print. The folder of a
refused start stays as it is: lines are held back until the checks have passed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path

from bsmeta.core.secrets import redact
from bsmeta.training.appended import AppendedFile

logger = logging.getLogger(__name__)


class ProcessLog(logging.Handler):
    """Writes the log of this process; used as a context, it also records the error that ends it."""

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
            with contextlib.suppress(OSError):
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
            with contextlib.suppress(OSError):
                self._file.close()
