"""The rows of a CSV file as it is found: streamed, each with its number, or why it is bad.

Memory is bounded by the longest row. Python's `csv` reads the file: to the readers of pyarrow and
polars, the rows after an unclosed quote are part of its cell, and they report no lines.
"""

from __future__ import annotations

import csv
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bsmeta.core.errors import DataError
from bsmeta.core.progress import report_progress
from bsmeta.data.table.csv_format import LONGEST_RECORD, CSVFormat
from bsmeta.data.table.text_file import GZIP_ERRORS, not_text, open_text

log = logging.getLogger(__name__)

_RULER = re.compile(r"[-=+|: \t]*[-=]{3}[-=+|: \t]*[\r\n]*")  # a line under the header, drawn
_SHOWN = 5  # bad rows that an error lists


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        number: Its number among the rows, from 1; the header does not count, and empty lines only
            between the rows of a table with one column.
        line: The line of the file where it begins, from 1.
        cells: Its cells, one per column, unless `problem`.
        problem: Why it cannot be used.
    """

    number: int
    line: int
    cells: list[str]
    problem: str | None = None


class BadRows:
    """Refuses bad rows, or counts them.

    Args:
        on_bad_row: `refuse` or `skip`.
        key: The key that says so.
    """

    def __init__(self, path: Path, on_bad_row: str, key: str = "on_bad_row") -> None:
        self._path = path
        self._key = key
        self._skip = on_bad_row == "skip"
        self._first: list[str] = []
        self.count = 0

    def add(self, row: Row, problem: str) -> None:
        """Notes a bad row.

        Raises:
            DataError: If bad rows are refused, and this is the last one to be listed.
        """
        self.count += 1
        if len(self._first) < _SHOWN:
            self._first.append(f"row {row.number:,} (line {row.line:,}): {problem}")
            if not self._skip and len(self._first) == _SHOWN:
                self._refuse("and perhaps more")

    def close(self) -> None:
        """Ends a table: raises what has been noted, or logs how many rows were left out.

        Raises:
            DataError: If bad rows are refused, and there are any.
        """
        if self.count and not self._skip:
            self._refuse("in all")
        if self.count:
            listed = "\n  ".join(self._first)
            rows = "1 row" if self.count == 1 else f"{self.count:,} rows"
            log.warning("%s: %s left out\n  %s", self._path, rows, listed)

    def notes(self) -> list[str]:
        """A note for a report on how many rows were left out and why; [] if none was."""
        if not self.count:
            return []
        rows = "1 row was" if self.count == 1 else f"{self.count:,} rows were"
        more = self.count - len(self._first)
        further = f"; and {more:,} more" if more else ""
        return [f"{rows} left out: {'; '.join(self._first)}{further}"]

    def _refuse(self, extent: str) -> None:
        rows = "1 bad row" if self.count == 1 else f"{self.count} bad rows {extent}"
        listed = "\n  ".join(self._first)
        raise DataError(
            f"{self._path}: {rows}; correct the file, or leave such rows out with "
            f"{self._key}=skip\n  {listed}"
        )


def read_rows(
    path: Path, form: CSVFormat, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Row]:
    """Yields the rows of a file after its header.

    Args:
        advance: Called from time to time with the bytes of the file that have been read.

    Raises:
        DataError: If the file ends early (gzip), is not in its encoding, or cannot be read.
    """
    text, file = open_text(path, form.encoding)
    number = 0
    with file, text:
        lines = _Lines(_lines_of(text))
        try:
            for line, cells, problem in _records(lines, form):
                number += 1
                yield _checked(Row(number, line, cells, problem), form)
                if number % 1000 == 0:
                    advance(file.tell())
                    report_progress()
        except UnicodeError as error:
            raise not_text(path, form.encoding, lines.number, error) from error
        except GZIP_ERRORS as error:
            raise DataError(
                f"{path}: damaged gzip data after row {number:,}: {error}; is the file complete?"
            ) from error
        except OSError as error:
            raise DataError(f"{path} cannot be read after row {number:,}: {error}") from error
        advance(file.tell())


def _checked(row: Row, form: CSVFormat) -> Row:
    if row.problem is not None:
        return row
    cells, columns = row.cells, len(form.columns)
    if len(cells) > columns and not any(cell.strip() for cell in cells[columns:]):
        cells = cells[:columns]  # separators at the end of a line, as spreadsheets write them
    problem = None
    if len(cells) != columns:
        found = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        problem = f"{found}, the header has {columns}"
    elif any("\0" in cell for cell in cells):
        problem = "a NUL byte"
    return Row(row.number, row.line, cells, problem)


def _records(lines: _Lines, form: CSVFormat) -> Iterator[tuple[int, list[str], str | None]]:
    """The first line, the cells, and the problem of each record after the header."""
    reader = form.reader(lines)
    padded = re.compile(rf'" +(?={re.escape(form.separator)}|\r?\n?$)')
    repaired = 0  # the line of the last record whose padding was removed
    empty: list[int] = []  # lines that are rows if others follow: empty texts
    while True:
        line = lines.begin()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except _TooLongError:
            problem = f"longer than {LONGEST_RECORD:,} characters; is a quote not closed?"
        except csv.Error as error:
            without = [padded.sub('"', record) for record in lines.record]
            if repaired < line and without != lines.record:  # `"a text"   ,label`
                repaired = line
                lines.give_back(without)
                continue
            problem = _reason(error)
        else:
            is_head = line <= form.header_line
            is_ruler = line == form.header_line + 1 and _RULER.fullmatch("".join(lines.record))
            if is_head or is_ruler:
                continue
            if not "".join(lines.record).strip():
                empty += [line] if len(form.columns) == 1 else []
                continue
            yield from ((blank, [""], None) for blank in empty)
            empty.clear()
            yield line, cells, None
            continue
        # The row ends with its first line, or an unclosed quote would take the next rows along.
        lines.give_back(lines.record[1:])
        yield line, [], problem


def _reason(error: csv.Error) -> str:
    if "end of data" in str(error):
        return "a quoted cell is not closed at the end of the file"
    if "expected after" in str(error):
        return 'a quote (") within a quoted cell is not doubled, or a quoted cell is not closed'
    return str(error)


def _lines_of(text: TextIO) -> Iterator[str]:
    """Yields the lines of a file; of one that exceeds the limit, only the beginning."""
    while line := text.readline(LONGEST_RECORD):
        yield line
        while len(line) == LONGEST_RECORD and line[-1] not in "\r\n":
            line = text.readline(LONGEST_RECORD)


class _TooLongError(Exception):
    """A record exceeds the limit."""


class _Lines:
    """The lines of a file for the reader of `csv`; those of the last record can be given back."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._waiting: deque[str] = deque()
        self._characters = 0
        self.record: list[str] = []
        self.number = 0

    def begin(self) -> int:
        """Begins a record; the number of its first line."""
        self.record = []
        self._characters = 0
        return self.number + 1

    def give_back(self, lines: list[str]) -> None:
        """Makes these the next lines, instead of the last ones of the record."""
        self._waiting.extendleft(reversed(lines))
        self.number -= len(lines)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else next(self._lines)
        self.number += 1
        self.record.append(line)
        self._characters += len(line)
        if self._characters >= LONGEST_RECORD:
            raise _TooLongError
        return line
