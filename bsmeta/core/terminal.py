"""The way of all output to the terminal, or to the file that is in its place.

Text of data may contain sequences that a terminal executes: they color, move the cursor, disguise
links, or write to the clipboard. In every entry point (`screened_output`), `print`, log messages,
warnings and tracebacks reach standard output and error through a `ScreenedStream`, which makes them
`printable`, and a `RedactedStream`, which hides secrets. A `Console` bypasses only the first:
there, texts are made printable before they are styled, so that all sequences that the terminal
receives are those of the project.

Results that other programs read are data, not display: `write_data` leaves them as they are, unless
standard output is a terminal.
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

from bsmeta.core.printable import printable
from bsmeta.core.redacted_streams import Write, hide_in, redact_streams


class ScreenedStream:
    """A stream whose text is made printable.

    Attributes:
        unscreened: The stream to which it writes, which hides secrets.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.unscreened = stream
        self._recorder: Write | None = None
        self._can_redraw = True  # the line is empty, or began with a carriage return

    @property
    def write(self) -> Write:
        """Writes the printable text; returns the length of what was given.

        A library that records the console, as wandb does, replaces this by a function that calls
        the previous one. It gets text that is printable and without secrets, too.
        """
        recorder = self._recorder

        def write_printable(text: str) -> int:
            shown = self._screen(text)
            if recorder is None:
                self.unscreened.write(shown)
            else:
                recorder(hide_in(self.unscreened, shown))
            return len(text)

        return write_printable

    @write.setter
    def write(self, recorder: Write) -> None:
        self._recorder = recorder

    def _screen(self, text: str) -> str:
        """Makes a text printable.

        A carriage return at the beginning is kept where it overwrites nothing but a line that began
        with one: libraries draw their progress bars so.
        """
        redraws = self._can_redraw and text.startswith("\r")
        if text:
            self._can_redraw = redraws if "\n" not in text else text.endswith("\n")
        return f"\r{printable(text[1:])}" if redraws else printable(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes each of the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unscreened, name)


class LossyStream:
    """A stream that ignores write errors: a closed terminal or a broken pipe does not end the run.

    A run that is asked to stop must still save: in `… | tee log`, Ctrl-C also ends `tee`, before
    the run.

    Args:
        stream: None if the caller closed it, as in `train.py … >&-`: all output is discarded.
    """

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Console(rich.console.Console):
    """A console that prints texts of data: it changes nothing in them but what is not printable.

    Markup (`[bold]`) and names of emoji (`:smile:`) are text.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **settings})

    def on_broken_pipe(self) -> None:
        """Raises the error of a write that nothing reads; rich would end the program with 1."""
        raise  # noqa: PLE0704 (rich calls this where it has caught the error)

    @property
    def file(self) -> IO[str]:
        """The stream that it writes to, unscreened."""
        return _unscreened(super().file)

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> Text:
        """The text as it is laid out; printable, because escapes take more columns."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yields the segments of anything that is printed; control segments are rich's own."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable():
                yield segment
            else:
                yield Segment(printable(text), segment.style)


class TextColumn(rich.progress.TextColumn):
    """A column of a progress display, with text in one line, without markup."""

    def __init__(self, text_format: str) -> None:
        super().__init__(text_format, markup=False)

    def render(self, task: rich.progress.Task) -> Text:
        """The text, without line ends, which would disturb the display."""
        return Text(printable(self.text_format.format(task=task), one_line=True))


class ProgressDisplay(rich.progress.Progress):
    """A progress display on standard error, above which other output of the process appears."""

    def __init__(self, *columns: rich.progress.ProgressColumn, **settings: Any) -> None:
        super().__init__(*columns, console=Console(stderr=True), **settings)

    def start(self) -> None:
        """Begins to show it.

        Rich then puts proxies in the place of the streams, which style what is printed by the
        sequences in it; so these are screened, too.
        """
        is_screened = isinstance(sys.stdout, ScreenedStream)
        super().start()
        if is_screened:
            sys.stdout, sys.stderr = _screened(sys.stdout), _screened(sys.stderr)


class PrintableRecord(logging.LogRecord):
    """A log record whose message is printable, whichever handlers get it."""

    def getMessage(self) -> str:
        return printable(super().getMessage())


@contextmanager
def screened_output() -> Iterator[None]:
    """Screens standard output, standard error and all logs; encloses each entry point.

    Afterwards, they are no longer screened, but no secret is printed to the end of the process.
    """
    redact_streams()
    before = sys.stdout, sys.stderr
    factory = logging.getLogRecordFactory()
    own = sys.stdout, sys.stderr = _screened(sys.stdout), _screened(sys.stderr)
    logging.setLogRecordFactory(PrintableRecord)
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)
        if (sys.stdout, sys.stderr) == own:  # those of `ignore_write_errors` stay to the end
            sys.stdout, sys.stderr = before


def ignore_write_errors() -> None:
    """From now on, output that cannot be written is lost; see `LossyStream`."""
    sys.stdout, sys.stderr = (
        cast("TextIO", ScreenedStream(cast("TextIO", LossyStream(_unscreened(stream)))))
        for stream in (sys.stdout, sys.stderr)
    )


def write_data(text: str, *, is_styled: bool = False) -> None:
    """Writes data to standard output in UTF-8, byte for byte; to a terminal, printable.

    Args:
        text: The data.
        is_styled: Whether it has been made printable and then styled, and is to stay so.
    """
    if sys.stdout is None:  # closed by the caller
        return
    if sys.stdout.isatty():
        _unscreened(sys.stdout).write(text if is_styled else printable(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.flush()


def _screened(stream: TextIO) -> TextIO:
    """The stream, screened once; None, as the caller may have closed it, stays None."""
    if stream is None or isinstance(stream, ScreenedStream):
        return stream
    # A character that its encoding lacks ends no program. Some streams cannot be changed.
    with suppress(OSError, AttributeError):
        cast("io.TextIOWrapper", stream).reconfigure(errors="backslashreplace")
    return cast("TextIO", ScreenedStream(stream))


def _unscreened(stream: Any) -> Any:
    """The innermost stream of screens and of rich's proxies."""
    for name in ("unscreened", "rich_proxied_file"):
        inner = getattr(stream, name, None)
        if inner is not None:
            return _unscreened(inner)
    return stream
