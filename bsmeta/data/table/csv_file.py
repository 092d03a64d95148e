"""A CSV file as it is found: its encoding, separator, quotes and columns are detected, and its rows
streamed, each with its number, or why it is bad.

Memory is bounded by the longest row. Python's `csv` reads the file: to the readers of pyarrow and
polars, the rows after an unclosed quote are part of its cell, and they report no lines.
"""

from __future__ import annotations

import csv
import logging
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TextIO

from bsmeta.core.errors import ConfigurationError, DataError, nearest
from bsmeta.core.progress import report_progress
from bsmeta.data.table.text_file import (
    AUTO,
    GZIP_ERRORS,
    check_encoding,
    find_encoding,
    not_text,
    open_text,
    refuse_other_formats,
)

log = logging.getLogger(__name__)

LONGEST_RECORD = 2**24
"""Characters of a row, at most: an unclosed quote must not read the rest of a file into memory."""

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}

_SAMPLE_CHARACTERS = 1 << 18
_SAMPLE_RECORDS = 200
_LISTED_COLUMNS = 20

_RULER = re.compile(r"(?=.*[-=]{3})[-=+|: \t]++[\r\n]*")  # a line under the header, drawn
_SHOWN = 5  # bad rows that an error lists


@dataclass(frozen=True)
class CSVFormat:
    """How a file is read.

    Attributes:
        encoding: A codec of Python.
        separator: The character between columns.
        escape: The character before a quote within quotes; None: the quote is doubled.
        columns: The names in the header, without white space around them.
        header_line: The line of the header, from 1.
        notes: What was found out rather than declared, for the user.
    """

    encoding: str
    separator: str
    escape: str | None
    columns: tuple[str, ...]
    header_line: int
    notes: tuple[str, ...]


def find_format(
    path: Path,
    wanted: Sequence[str],
    *,
    separator: str = AUTO,
    encoding: str = AUTO,
) -> CSVFormat:
    """Detects how to read a file.

    Args:
        wanted: The columns that must be there.
        separator: The declared separator, or `auto`.
        encoding: The declared encoding, or `auto`: the whole file is read to find it out.

    Raises:
        DataError: If the file is empty, or no CSV file.
        ConfigurationError: If a wanted column is missing, or is there twice.
    """
    refuse_other_formats(path)
    notes = []
    if encoding == AUTO:
        encoding, note = find_encoding(path)
        notes += [note] if note else []
    sample = list(_sample(path, encoding))
    declared = re.fullmatch(r"\ufeff?sep=(.)\r?\n?", sample[0]) if sample else None
    skipped = 1 if declared else 0
    if not "".join(sample[skipped:]).strip("\ufeff \r\n"):
        raise DataError(f"{path} is empty; expected a CSV file with a header")
    if declared:  # a first line for Excel
        separator = declared[1] if separator == AUTO else separator
    separators = list(SEPARATORS) if separator == AUTO else [_one_character(separator)]
    _, found = max(
        (_trial(CSVFormat(encoding, one, escape, (), skipped, ()), sample[skipped:], wanted)
        for one in separators
        for escape in (None, "\\")),
        key=operator.itemgetter(0),
    )  # fmt: skip
    if separator == AUTO and found.separator != ",":
        notes.append(f"columns are separated by a {SEPARATORS[found.separator]}")
    if found.escape:
        notes.append("quotes are escaped by a backslash")
    header = next(line for line in sample[skipped:] if line.strip("\ufeff \r\n"))
    _check_columns(path, found, wanted, header)
    return replace(found, notes=tuple(notes))


def _trial(
    form: CSVFormat, lines: Sequence[str], wanted: Sequence[str]
) -> tuple[tuple[int, float, int, int], CSVFormat]:
    """How well a format suits the first lines of a file, and the format with what they show."""
    reader = _reader(lines, form.separator, form.escape)
    records: list[list[str]] = []
    line = failures = 0
    while len(records) < _SAMPLE_RECORDS:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error:  # of the last row, it may only be that the sample ends in it
            failures += reader.line_num < len(lines)  # type: ignore[attr-defined]
            continue
        if any(cell.strip() for cell in cells):
            line = line or reader.line_num  # type: ignore[attr-defined]
            records.append(cells)
    columns = tuple(cell.strip("\ufeff \t") for cell in records[0]) if records else ()
    fitting = sum(len(record) == len(columns) for record in records[1:])
    share = (fitting + 1) / (len(records) + failures + 1)
    named = len({*wanted} & {*columns})
    score = (named, share, len(columns), 0 if form.escape else 1)
    return score, replace(form, columns=columns, header_line=form.header_line + line)


def _reader(lines: Iterable[str], separator: str, escape: str | None) -> Iterator[list[str]]:
    csv.field_size_limit(LONGEST_RECORD)  # the default is shorter than many a text
    return csv.reader(
        lines,
        delimiter=separator,
        escapechar=escape,
        skipinitialspace=True,  # `"a text", label`
        strict=True,
    )


def _one_character(separator: str) -> str:
    named = {"tab": "\t", "\\t": "\t"}.get(separator, separator)
    if len(named) != 1 or named in '"\r\n ':
        raise ConfigurationError(
            f'csv_separator="{separator}": expected auto, one character such as ";", or tab'
        )
    return named


def _sample(path: Path, encoding: str) -> Iterator[str]:
    check_encoding(encoding)
    text, file = open_text(path, encoding)
    with file, text:
        characters = 0
        try:
            while characters < _SAMPLE_CHARACTERS and (line := text.readline(LONGEST_RECORD)):
                yield line
                characters += len(line)
        except UnicodeError as error:
            raise not_text(path, encoding, 1, error) from error
        except GZIP_ERRORS:
            return  # reported with the number of the row, when the rows are read


def _check_columns(path: Path, found: CSVFormat, wanted: Sequence[str], header: str) -> None:
    problems = []
    for name in wanted:
        count = found.columns.count(name)
        if count > 1:
            problems.append(f"column {name!r} is there {count} times; rename the others")
        elif count == 0:
            problems.append(f"there is no column {name!r}{nearest(name, found.columns)}")
    if problems:
        hint = _other_separator(header, wanted) if len(found.columns) < 2 else ""
        shown = ", ".join(found.columns[:_LISTED_COLUMNS])[:500]
        raise ConfigurationError(
            f"{path}: {'; '.join(problems)}. The header, line {found.header_line}, separated by a "
            f"{SEPARATORS.get(found.separator, found.separator)}, has: {shown}{hint}"
        )


def _other_separator(header: str, wanted: Sequence[str]) -> str:
    """A hint at the character beside a wanted name, in a header that is otherwise one column."""
    for name in wanted:
        mark, whole = r"([^\w\s\"'])", re.escape(name)
        after = re.search(rf"(?<!\w){whole}[\"' ]*{mark}", header)
        match = after or re.search(rf"{mark}[\"' ]*{whole}(?!\w)", header)
        if match:
            found = match[1]
            return f'. Are its columns separated by {found}? Then csv_separator="{found}"'
    return ""


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
        advance: Called periodically with the number of bytes read.

    Raises:
        DataError: If the file ends early (gzip), is not in its encoding, or cannot be read.
    """
    text, file = open_text(path, form.encoding)
    number = 0
    with file, text:
        lines = _Lines(text, form)
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
    reader = _reader(lines, form.separator, form.escape)
    empty: list[int] = []  # lines that are rows if others follow: empty texts
    while True:
        line = lines.begin()
        try:
            try:
                cells = next(reader)
            except csv.Error as error:
                lines.fail(error)
                cells = _read_unpadded(reader, lines)
        except StopIteration:
            return
        except _TooLongError:
            problem = f"longer than {LONGEST_RECORD:,} characters; is a quote not closed?"
        except csv.Error as error:
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
        lines.give_back(1)
        yield line, [], problem


def _read_unpadded(reader: Iterator[list[str]], lines: _Lines) -> list[str]:
    """Reads a record again, without the padding after its quoted cells: `"a text"   ,label`.

    Raises:
        csv.Error, _TooLongError: If that does not help.
    """
    lines.give_back(0)
    lines.begin()
    lines.is_padded = False
    try:
        return next(reader)
    except csv.Error as error:
        lines.fail(error)
        raise
    finally:
        lines.is_padded = True


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


class _JoinedLines(str):
    """Lines of a file, whose ends are escaped except for the last."""

    def __new__(cls, lines: list[str]) -> _JoinedLines:
        joined = super().__new__(cls, "".join(lines))
        joined.count_of_lines = len(lines)
        return joined

    count_of_lines: int


def _join_escaped(lines: Iterator[str], escape: str) -> Iterator[str]:
    """Yields lines, those whose end is escaped together with the next, up to the limit."""
    parts: list[str] = []
    length = 0
    for line in lines:
        is_escaped = line[-2:-1] == escape and _is_end_escaped(line, escape)
        if not (is_escaped or parts):
            yield line
            continue
        parts.append(line)
        length += len(line)
        if is_escaped and length < LONGEST_RECORD:
            continue
        yield _JoinedLines(parts)
        parts.clear()
        length = 0
    if parts:
        yield _JoinedLines(parts)


def _count_lines(line: str) -> int:
    return line.count_of_lines if isinstance(line, _JoinedLines) else 1


def _is_end_escaped(line: str, escape: str) -> bool:
    content = line[:-1]  # of `\r\n`, only the first could be
    return line[-1] in "\r\n" and (len(content) - len(content.rstrip(escape))) % 2 == 1


class _TooLongError(Exception):
    """A record exceeds the limit."""


class _Failure(NamedTuple):
    """Why records cannot be read that are not complete before a line, up to the line `end`."""

    end: int
    error: csv.Error | _TooLongError


class _Lines:
    """The lines of a file for the reader of `csv`; those of a bad record are read again.

    A record is continued on the next line only within a quoted cell. So two records that are both
    not complete before a line have the same end or the same error. Hence, after a record that
    cannot be read, those that begin within it are read up to the ends of their lines only, and bad
    if they are not complete there. Otherwise, each would be read to the error again, which takes
    hours for a megabyte. (One that is only part of a record that is too long counts as too long.)
    """

    def __init__(self, text: TextIO, form: CSVFormat) -> None:
        self._lines = _lines_of(text)
        if form.escape is not None:
            self._lines = _join_escaped(self._lines, form.escape)
        self._padding = re.compile(rf'" ++(?={re.escape(form.separator)}|\r?\n?$)')
        self._waiting: deque[str] = deque()
        self._characters = 0
        self._is_at_end = False
        self._failures: dict[bool, _Failure] = {}  # with and without padding
        # Most lines are those of files without a bad record; they are read without further checks.
        self._is_careful = False
        self.is_padded = True  # whether spaces between a quote and a separator are kept
        self.record: list[str] = []  # lines, as they are in the file
        self.number = 0

    def begin(self) -> int:
        """Begins a record; the number of its first line."""
        self.record = []
        self._characters = 0
        if self._is_careful and not self._waiting:
            self._failures.clear()
            self._is_careful = False
        return self.number + 1

    def give_back(self, first: int) -> None:
        """Makes the lines of the record, from one of them on, the next lines."""
        lines = self.record[first:]
        self._waiting.extendleft(reversed(lines))
        self.number -= sum(map(_count_lines, lines))
        self._is_at_end = False

    def fail(self, error: csv.Error | _TooLongError) -> None:
        """Notes why the record cannot be read."""
        known = self._failures.get(self.is_padded)
        end = self.number + self._is_at_end
        if known is None or known.end < end:
            self._failures[self.is_padded] = _Failure(end, error)
        self._is_careful = True

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._is_careful:
            return self._next_carefully()

        try:
            line = next(self._lines)
        except StopIteration:
            self._is_at_end = True
            raise
        self.number += line.count_of_lines if isinstance(line, _JoinedLines) else 1
        self.record.append(line)
        self._characters += len(line)
        if self._characters >= LONGEST_RECORD:
            self._refuse_length()
        return line

    def _next_carefully(self) -> str:
        """The next line, unless the record is known to fail; it may wait, or stand for several."""
        failure = self._failures.get(self.is_padded)
        if failure is not None and self.record and self.number < failure.end:
            raise type(failure.error)(*failure.error.args)

        try:
            line = self._waiting.popleft() if self._waiting else next(self._lines)
        except StopIteration:
            self._is_at_end = True
            raise
        self.number += _count_lines(line)
        self.record.append(line)
        self._characters += len(line)
        if self._characters >= LONGEST_RECORD:
            self._refuse_length()
        return line if self.is_padded else self._padding.sub('"', line)

    def _refuse_length(self) -> None:
        error = _TooLongError()
        self.fail(error)
        raise error
