"""Files of JSON lines: decoded line by line, their problems reported together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from bsmeta.core.errors import DataError
from bsmeta.data.io.index import IndexCache
from bsmeta.data.io.lines import LineReader

Form = TypeVar("Form")

LISTED = 20
"""Problems that an error lists."""
LINES = 1000
"""Lines that are read at a time."""


class Problems:
    """The problems of a file; reading ends when enough of them are known.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[str] = []

    def add(self, line: int | None, reason: str) -> None:
        """Adds a problem of a line, numbered from 1; None in a file without lines.

        Raises:
            DataError: If it is the last one to be listed.
        """
        self._found.append(reason if line is None else f"line {line:,}: {reason}")
        if len(self._found) == LISTED:
            self._raise("the first ")

    def close(self) -> None:
        """Ends the file.

        Raises:
            DataError: If there are problems.
        """
        if self._found:
            self._raise("")

    def _raise(self, extent: str) -> None:
        count = len(self._found)
        named = "1 problem" if count == 1 else f"{extent}{count} problems"
        listed = "\n  ".join(self._found)
        raise DataError(f"{self._path}: {named}; correct the file\n  {listed}")


class JsonLines(Generic[Form]):
    """The lines of a `.jsonl(.gz|.zst)` file, decoded as a type; empty lines are skipped.

    Args:
        path: The file.
        form: The type of a line.
        problems: Collects lines that are not of this type, which are left out.
        advance: Called periodically with the number of bytes read.
    """

    def __init__(
        self,
        path: Path,
        form: type[Form],
        problems: Problems,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(form)
        self._problems = problems
        self._advance = advance

    def __iter__(self) -> Iterator[tuple[int, Form]]:
        """Yields the number of each line, from 1, and its content.

        Raises:
            DataError: If the file cannot be read to its end.
        """
        with open_lines(self._path) as reader:
            while not reader.ended:
                yield from self.part(reader, reader.line, LINES)
                self._advance(reader.bytes_read)

    def part(self, reader: LineReader, first: int, count: int) -> Iterator[tuple[int, Form]]:
        """Yields up to `count` lines from line `first` (from 0) of an opened file; see above."""
        for number, line in enumerate(reader.read(first, count), first + 1):
            try:
                decoded = self._decoder.decode(line)
            except UnicodeDecodeError as error:
                wrong = error.object[error.start]
                self._problems.add(number, f"not UTF-8: {error.reason} (0x{wrong:02x})")
                continue
            except (msgspec.MsgspecError, RecursionError) as error:
                if bytes(line).strip():
                    self._problems.add(number, str(error))
                continue
            yield number, decoded
        if reader.damage:
            raise DataError(f"{self._path}: damaged after line {reader.line:,}: {reader.damage}")


@contextmanager
def open_lines(path: Path, indexes: IndexCache | None = None) -> Iterator[LineReader]:
    """A reader of the lines of a file, closed in the end.

    Raises:
        DataError: If the file cannot be opened.
    """
    try:
        reader = LineReader(str(path), indexes)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield reader
    finally:
        reader.close()
