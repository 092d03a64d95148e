"""Standard output and standard error through redaction: the last gate of what is printed.

The package redacts what it prints itself. This catches the rest: tracebacks of the interpreter and
of threads, warnings, the logs and prints of libraries, and forked processes, which inherit it. It
is set up by programs only; whoever imports the package keeps their streams.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

from bsmeta.core.secrets import hide_arguments, redact, redact_known

Write = Callable[[str], int]


class RedactedStream:
    """A text stream that redacts what is written to it.

    A library that records the console, as wandb does, replaces the method `write` of the stream by
    a function that calls the previous one. It is given redacted text, too.

    Args:
        stream: Where the text goes. Bytes written to its `buffer` are not redacted.
        hidden: Redacts a text.
    """

    def __init__(self, stream: TextIO, hidden: Callable[[str], str]) -> None:
        self.hidden = hidden
        self._stream = stream
        self._write: Write = stream.write

    @property
    def write(self) -> Write:
        """Writes a text; returns its length."""
        write, hidden = self._write, self.hidden

        def write_redacted(text: str) -> int:
            write(hidden(text))
            return len(text)

        return write_redacted

    @write.setter
    def write(self, replacement: Write) -> None:
        self._write = replacement

    def writelines(self, lines: Any) -> None:
        """Writes several texts."""
        for line in lines:
            self.write(line)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def hide_in(stream: Any, text: str) -> str:
    """The text without the secrets that a stream, or the one that it encloses, would hide."""
    hidden = getattr(stream, "hidden", None)
    return text if hidden is None else hidden(text)


def redact_streams() -> None:
    """Redacts what this process prints from now on, also its arguments (idempotent).

    On standard output, where programs show documents, only the secrets are hidden that this process
    knows, and no text merely for its form.
    """
    hide_arguments(sys.argv[1:])
    for name, hidden in (("stdout", redact_known), ("stderr", redact)):
        stream = getattr(sys, name)
        if stream is None or hasattr(stream, "hidden"):  # closed by the caller, or redacted already
            continue
        redacted: Any = RedactedStream(stream, hidden)
        setattr(sys, name, redacted)
        _redirect_handlers(stream, redacted)


def _redirect_handlers(stream: TextIO, redacted: TextIO) -> None:
    """Makes the logs of libraries that are imported already go through the redacted stream."""
    named = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    for logger in (logging.root, *named):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                handler.setStream(redacted)
