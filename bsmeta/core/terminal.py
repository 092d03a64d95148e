"""Makes all output safe for the terminal, and for files that replace it.

Text of data may contain sequences that a terminal executes: they color, move the cursor, disguise
links, or write to the clipboard. In every entry point (`screen_output`), the output of `print`, log
messages, warnings and tracebacks passes through a `ScreenedStream`, which makes it printable
(`make_printable`), and a `RedactedStream`, which redacts secrets. A `Console` bypasses only the
first: it makes texts printable before it styles them, so that the terminal receives only sequences
that the package itself writes.

Results for other programs are data: `write_data` leaves them unchanged, unless standard output is a
terminal.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, TextIO, cast

import rich.console
import rich.progress
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from bsmeta.core.printable import make_printable
from bsmeta.core.redacted_streams import Write, redact_as, redact_streams


class ScreenedStream:
    """A stream that makes its text printable.

    Attributes:
        unscreened: The underlying stream, which redacts secrets.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.unscreened = stream
        self._recorder: Write | None = None
        # Whether the current line is empty or began with a carriage return.
        self._can_redraw = True

    @property
    def write(self) -> Write:
        """Writes a text in printable form; returns the length of the original text.

        A library that records the console, as wandb does, replaces this method by a function that
        calls the previous one. That function also receives text that is printable and redacted.
        """
        recorder = self._recorder

        def write_printable(text: str) -> int:
            printable_text = self._screen(text)
            if recorder is None:
                self.unscreened.write(printable_text)
            else:
                recorder(redact_as(self.unscreened, printable_text))
            return len(text)

        return write_printable

    @write.setter
    def write(self, recorder: Write) -> None:
        self._recorder = recorder

    def _screen(self, text: str) -> str:
        """Makes a text printable.

        Libraries redraw a progress bar with a carriage return at the beginning of a text. It is
        kept if the line that it overwrites also began with one, or is empty.
        """
        redraws = self._can_redraw and text.startswith("\r")
        if text:
            self._can_redraw = redraws if "\n" not in text else text.endswith("\n")
        return f"\r{make_printable(text[1:])}" if redraws else make_printable(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unscreened, name)


class LossyStream:
    """A stream that ignores write errors, so that a closed terminal or pipe does not end the run.

    A run that is asked to stop must still save: in `… | tee log`, Ctrl-C ends `tee` before the run.

    Args:
        stream: The destination; None if the caller has closed it, as in `train.py … >&-`. All
            output is then discarded.
    """

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

    def write(self, text: str) -> int:
        """Writes a text, or discards it if that fails; returns its length."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream, unless that fails."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Console(rich.console.Console):
    """A console that shows text of data as it is, except for unprintable characters.

    Markup (`[bold]`) and emoji names (`:smile:`) are printed as ordinary text.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **settings})

    def on_broken_pipe(self) -> None:
        """Raises the error of a broken pipe again; rich would exit with code 1."""
        raise  # noqa: PLE0704 (rich calls this method in its `except` block)

    @property
    def file(self) -> IO[str]:
        """The stream to which the console writes, without its screen."""
        return _unwrap_stream(super().file)

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> Text:
        """Converts a text; makes it printable before the layout, because escapes are wider."""
        return super().render_str(make_printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yields printable segments, and control segments, which only rich itself creates."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(make_printable(segment.text), segment.style)


class TextColumn(rich.progress.TextColumn):
    """A column of a progress display that shows one line of text without markup."""

    def __init__(self, text_format: str) -> None:
        super().__init__(text_format, markup=False)

    def render(self, task: rich.progress.Task) -> Text:
        """Returns the text of a task, without line ends, which would break the display."""
        return Text(make_printable(self.text_format.format(task=task), one_line=True))


class ProgressDisplay(rich.progress.Progress):
    """A progress display on standard error, above which other output of the process appears."""

    def __init__(self, *columns: rich.progress.ProgressColumn, **settings: Any) -> None:
        super().__init__(*columns, console=Console(stderr=True), **settings)

    def start(self) -> None:
        """Shows the display.

        Rich replaces the standard streams by proxies that interpret the control sequences in
        printed text, so the proxies must be screened as well.
        """
        is_screened = isinstance(sys.stdout, ScreenedStream)
        super().start()
        if is_screened:
            sys.stdout = _screen_stream(sys.stdout)
            sys.stderr = _screen_stream(sys.stderr)


class PrintableRecord(logging.LogRecord):
    """A log record whose message is printable for every handler."""

    def getMessage(self) -> str:
        """Returns the formatted message in printable form."""
        return make_printable(super().getMessage())


@contextmanager
def screen_output() -> Iterator[None]:
    """Makes all output to stdout, stderr and logs printable, and redacts secrets in it.

    Every entry point runs in this context. Afterwards, the streams still redact secrets, until the
    process ends.
    """
    redact_streams()
    unscreened_streams = (sys.stdout, sys.stderr)
    record_factory = logging.getLogRecordFactory()

    sys.stdout = _screen_stream(sys.stdout)
    sys.stderr = _screen_stream(sys.stderr)
    screened_streams = (sys.stdout, sys.stderr)
    logging.setLogRecordFactory(PrintableRecord)
    try:
        yield
    finally:
        logging.setLogRecordFactory(record_factory)
        # If `ignore_write_errors` has replaced the streams, its streams stay.
        if (sys.stdout, sys.stderr) == screened_streams:
            sys.stdout, sys.stderr = unscreened_streams


def ignore_write_errors() -> None:
    """Makes the standard streams discard output that cannot be written; see `LossyStream`."""
    sys.stdout = _make_lossy(sys.stdout)
    sys.stderr = _make_lossy(sys.stderr)


def write_data(text: str, *, is_styled: bool = False) -> None:
    """Writes data to standard output: unchanged in UTF-8, but in printable form to a terminal.

    Args:
        text: The data.
        is_styled: Whether the text was made printable before it was styled, so that a terminal must
            receive its sequences.
    """
    if sys.stdout is None:  # the caller has closed it
        return

    if sys.stdout.isatty():
        _unwrap_stream(sys.stdout).write(text if is_styled else make_printable(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.flush()


def _screen_stream(stream: TextIO) -> TextIO:
    """Returns a stream that makes its text printable; None (closed by the caller) stays None."""
    if stream is None or isinstance(stream, ScreenedStream):
        return stream

    # A character that the encoding lacks must not end the program. Some streams cannot be changed.
    with suppress(OSError, AttributeError):
        cast("io.TextIOWrapper", stream).reconfigure(errors="backslashreplace")
    return cast("TextIO", ScreenedStream(stream))


def _make_lossy(stream: TextIO) -> TextIO:
    """Returns a screened stream that ignores the write errors of a stream."""
    lossy = cast("TextIO", LossyStream(_unwrap_stream(stream)))
    return cast("TextIO", ScreenedStream(lossy))


def _unwrap_stream(stream: Any) -> Any:
    """Returns the innermost stream, inside of screens and rich's proxies."""
    for name in ("unscreened", "rich_proxied_file"):
        inner = getattr(stream, name, None)
        if inner is not None:
            return _unwrap_stream(inner)
    return stream
