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
    """A text stream that redacts the text written to it.

    A library that records the console, as wandb does, replaces the method `write` of the stream by
    a function that calls the previous one. That function also receives redacted text.

    Args:
        stream: The destination of the text. Bytes written to its `buffer` are not redacted.
        redact_text: Returns a text without its secrets.
    """

    def __init__(self, stream: TextIO, redact_text: Callable[[str], str]) -> None:
        self.redact_text = redact_text
        self._stream = stream
        self._write: Write = stream.write

    @property
    def write(self) -> Write:
        """Writes a text; returns its length before redaction."""
        # Bound now, because a later replacement of `write` calls this function, and must not call
        # itself through `self._write`.
        write = self._write
        redact_text = self.redact_text

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


def redact_as(stream: Any, text: str) -> str:
    """Redacts a text as a stream does; returns it unchanged if the stream redacts nothing.

    Args:
        stream: Any stream; it redacts text if it is, or encloses, a `RedactedStream`.
    """
    redact_text = getattr(stream, "redact_text", None)
    return text if redact_text is None else redact_text(text)


def redact_streams() -> None:
    """Redacts all further output of this process (idempotent).

    Secrets in the arguments of the process are redacted as well. Programs show documents on
    standard output; there, only known secrets are redacted, and no text that merely looks like one.
    """
    declare_secrets_in_arguments(sys.argv[1:])
    for name, redact_text in (("stdout", redact_known), ("stderr", redact)):
        stream = getattr(sys, name)
        is_closed_by_caller = stream is None
        if is_closed_by_caller or hasattr(stream, "redact_text"):  # or redacted already
            continue

        redacted: Any = RedactedStream(stream, redact_text)
        setattr(sys, name, redacted)
        _redirect_handlers(stream, redacted)


def _redirect_handlers(stream: TextIO, redacted: TextIO) -> None:
    """Redirects the log handlers of imported libraries from a stream to its redacted stream."""
    named_loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    for logger in (logging.root, *named_loggers):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                handler.setStream(redacted)
