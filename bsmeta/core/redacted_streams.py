"""Redacts standard output and standard error: the last gate of printed text.

The package redacts its own output. This module catches all other output: tracebacks of the
interpreter and of threads, warnings, the logs and prints of libraries, and the output of forked
processes, which inherit the streams. Only programs redact the streams; importing the package leaves
them unchanged.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

from bsmeta.core.secrets import declare_secrets_in_arguments, redact, redact_known

Write = Callable[[str], int]


class RedactedStream:
    """A text stream that redacts its text.

    A library that records the console, as wandb does, replaces the method `write` of the stream by
    a function that calls the previous one. That function, too, receives redacted text.

    Args:
        stream: The destination of the text. Bytes written to its `buffer` are not redacted.
        hidden: The function that redacts a text.
    """

    def __init__(self, stream: TextIO, hidden: Callable[[str], str]) -> None:
        self.hidden = hidden
        self._stream = stream
        self._write: Write = stream.write

    @property
    def write(self) -> Write:
        """Writes a text; returns its length before redaction."""
        # Bound now: a replacement calls this function, and must not reach itself through it.
        write = self._write
        redact_text = self.hidden

        def write_redacted(text: str) -> int:
            write(redact_text(text))
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
    """Redacts a text like a stream that is, or encloses, a `RedactedStream`."""
    redact_text = getattr(stream, "hidden", None)
    return text if redact_text is None else redact_text(text)


def redact_streams() -> None:
    """Redacts all further output of this process, including its own arguments (idempotent).

    Programs show documents on standard output, so only secrets that this process knows are hidden
    there, and no text merely because of its form.
    """
    declare_secrets_in_arguments(sys.argv[1:])
    for name, redact_text in (("stdout", redact_known), ("stderr", redact)):
        stream = getattr(sys, name)
        if stream is None or hasattr(stream, "hidden"):  # closed by the caller, or redacted already
            continue

        redacted: Any = RedactedStream(stream, redact_text)
        setattr(sys, name, redacted)
        _redirect_handlers(stream, redacted)


def _redirect_handlers(stream: TextIO, redacted: TextIO) -> None:
    """Sends the logs of libraries that are already imported through the redacted stream."""
    named_loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    for logger in (logging.root, *named_loggers):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                handler.setStream(redacted)
