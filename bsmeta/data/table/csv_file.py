"""Reads CSV files of unknown origin.

The encoding, separator, quotes and columns of a file are detected. Its rows are streamed, each with
its number and, if it is bad, with the problem. Memory is bounded by the longest row.

Python's `csv` parses the rows. The readers of pyarrow and polars are not used: they read the rows
after an unclosed quote as part of its cell, and do not report line numbers.
"""

from __future__ import annotations

import csv
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TextIO

from bsmeta.core.errors import ConfigurationError, DataError, suggest_nearest
from bsmeta.core.progress import report_progress
from bsmeta.data.table.text_file import (
    AUTO,
    GZIP_ERRORS,
    check_encoding,
    detect_encoding,
    make_not_text_error,
    open_text,
    read_lines,
    refuse_non_text,
)

logger = logging.getLogger(__name__)

MAX_RECORD_CHARS = 2**24
"""Maximum length of a row, so that a whole file is not read into memory after an unclosed quote."""

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
"""Names of the separators that are detected."""

_NUM_SAMPLE_CHARS = 1 << 18  # first characters of a file, from which its format is detected
_NUM_SAMPLE_RECORDS = 200
_MAX_LISTED_COLUMNS = 20  # in an error message
_MAX_SHOWN_ROWS = 5  # bad rows in an error message

_RULER = re.compile(r"(?=.*[-=]{3})[-=+|: \t]++[\r\n]*")  # a line drawn under the header


@dataclass(frozen=True)
class CSVFormat:
    """The format of a CSV file.

    Attributes:
        encoding: Name of a Python codec.
        separator: The character between columns.
        escape: The character before a quote within quotes; None if such quotes are doubled.
        columns: The column names in the header, without surrounding spaces.
        header_line: The line number of the header, from 1.
        notes: Notes for the user on detected values.
    """

    encoding: str
    separator: str
    escape: str | None
    columns: tuple[str, ...]
    header_line: int
    notes: tuple[str, ...]


def detect_format(
    path: Path,
    required: Sequence[str],
    *,
    separator: str = AUTO,
    encoding: str = AUTO,
) -> CSVFormat:
    """Detects the format of a CSV file.

    Args:
        required: The columns that the file must have.
        separator: The declared separator, or `auto`.
        encoding: The declared encoding; `auto` reads the whole file to detect the encoding.

    Raises:
        DataError: If the file is empty, or not a CSV file.
        ConfigurationError: If a required column is missing, or occurs twice.
    """
    refuse_non_text(path)
    notes = []
    if encoding == AUTO:
        encoding, note = detect_encoding(path)
        if note:
            notes.append(note)

    # The first line may declare the separator to Excel.
    lines = list(_read_sample(path, encoding))
    declaration = re.fullmatch(r"\ufeff?sep=([^\"\r\n ])\r?\n?", lines[0]) if lines else None
    num_skipped = 1 if declaration else 0
    lines = lines[num_skipped:]
    if declaration and separator == AUTO:
        separator = declaration[1]
    if not "".join(lines).strip("\ufeff \r\n"):
        raise DataError(f"{path} is empty; expected a CSV file with a header")

    csv_format = _choose_format(lines, required, separator, encoding, num_skipped)
    if separator == AUTO and csv_format.separator != ",":
        notes.append(f"columns are separated by a {SEPARATORS[csv_format.separator]}")
    if csv_format.escape:
        notes.append("quotes are escaped by a backslash")
    header = next(line for line in lines if line.strip("\ufeff \r\n"))
    _check_columns(path, csv_format, required, header)
    return replace(csv_format, notes=tuple(notes))


def _choose_format(
    lines: Sequence[str],
    required: Sequence[str],
    separator: str,
    encoding: str,
    num_skipped: int,
) -> CSVFormat:
    """Returns the format that fits the first lines of a file best.

    Args:
        separator: The declared separator; `auto` tries all `SEPARATORS`.
        num_skipped: Number of lines of the file before `lines`.
    """
    candidates = list(SEPARATORS) if separator == AUTO else [_parse_separator(separator)]
    trials = []
    for candidate in candidates:
        for escape in (None, "\\"):
            csv_format = CSVFormat(
                encoding, candidate, escape, columns=(), header_line=num_skipped, notes=()
            )
            trials.append(_try_format(csv_format, lines, required))
    return max(trials, key=_FormatTrial.score).csv_format


@dataclass(frozen=True)
class _FormatTrial:
    """A candidate format, and measures of its fit to the first lines of a file.

    Attributes:
        csv_format: The format, with the columns of the header as read in this format.
        num_required: Number of required columns among them.
        fitting_share: Fraction of the records that have a cell for each column of the header.
    """

    csv_format: CSVFormat
    num_required: int
    fitting_share: float

    def score(self) -> tuple[int, float, int, bool]:
        """Returns the measures by which formats are compared, the most important first."""
        doubles_quotes = self.csv_format.escape is None
        return (
            self.num_required,
            self.fitting_share,
            len(self.csv_format.columns),
            doubles_quotes,
        )


def _try_format(
    csv_format: CSVFormat, lines: Sequence[str], required: Sequence[str]
) -> _FormatTrial:
    """Reads the first lines of a file in a format, and measures the fit.

    Args:
        csv_format: The format without columns; `header_line` is the number of lines of the file
            before `lines`.
    """
    reader = _iterate_records(lines, csv_format.separator, csv_format.escape)
    records: list[list[str]] = []
    header_line = num_failures = 0
    while len(records) < _NUM_SAMPLE_RECORDS:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error:
            # The last row may be bad only because the sample ends inside it.
            if reader.line_num < len(lines):  # type: ignore[attr-defined]
                num_failures += 1
            continue
        if any(cell.strip() for cell in cells):
            if not records:
                header_line = reader.line_num  # type: ignore[attr-defined]
            records.append(cells)

    columns = tuple(cell.strip("\ufeff \t") for cell in records[0]) if records else ()
    num_fitting = sum(len(record) == len(columns) for record in records[1:])
    return _FormatTrial(
        csv_format=replace(
            csv_format, columns=columns, header_line=csv_format.header_line + header_line
        ),
        num_required=len({*required} & {*columns}),
        fitting_share=(num_fitting + 1) / (len(records) + num_failures + 1),
    )


def _iterate_records(
    lines: Iterable[str], separator: str, escape: str | None
) -> Iterator[list[str]]:
    """Returns a `csv` reader, which yields each record as a list of cells."""
    csv.field_size_limit(MAX_RECORD_CHARS)  # the default is too short for many texts
    return csv.reader(
        lines,
        delimiter=separator,
        escapechar=escape,
        skipinitialspace=True,  # `"a text", label`
        strict=True,
    )


def _parse_separator(separator: str) -> str:
    """Returns the character of a declared separator.

    Raises:
        ConfigurationError: If it is not one character, or `tab`.
    """
    character = {"tab": "\t", "\\t": "\t"}.get(separator, separator)
    if len(character) != 1 or character in '"\r\n ':
        raise ConfigurationError(
            f'csv_separator="{separator}": expected auto, one character such as ";", or tab'
        )
    return character


def _read_sample(path: Path, encoding: str) -> Iterator[str]:
    """Yields the first lines of a file, about `_NUM_SAMPLE_CHARS` characters.

    Raises:
        ConfigurationError: If there is no such encoding.
        DataError: If the file cannot be read in this encoding.
    """
    check_encoding(encoding)
    text, file = open_text(path, encoding)
    with file, text:
        num_chars = 0
        try:
            while num_chars < _NUM_SAMPLE_CHARS and (line := text.readline(MAX_RECORD_CHARS)):
                yield line
                num_chars += len(line)
        except UnicodeError as error:
            raise make_not_text_error(path, encoding, 1, error) from error
        except GZIP_ERRORS:
            return  # reported with the number of the row, when the rows are read


def _check_columns(path: Path, csv_format: CSVFormat, required: Sequence[str], header: str) -> None:
    """Checks that a file has each required column once.

    Args:
        header: The line of the header, for the message.

    Raises:
        ConfigurationError: If a column is missing, or occurs twice.
    """
    problems = []
    for name in required:
        count = csv_format.columns.count(name)
        if count > 1:
            problems.append(f"column {name!r} occurs {count} times; rename the others")
        elif count == 0:
            problems.append(
                f"there is no column {name!r}{suggest_nearest(name, csv_format.columns)}"
            )

    if problems:
        hint = _suggest_separator(header, required) if len(csv_format.columns) < 2 else ""
        columns = ", ".join(csv_format.columns[:_MAX_LISTED_COLUMNS])[:500]
        separator_name = SEPARATORS.get(csv_format.separator, csv_format.separator)
        raise ConfigurationError(
            f"{path}: {'; '.join(problems)}. The header, line {csv_format.header_line}, separated "
            f"by a {separator_name}, has: {columns}{hint}"
        )


def _suggest_separator(header: str, required: Sequence[str]) -> str:
    """Suggests the character beside a required name in the header as the separator.

    Returns:
        A question for the end of a message; "" if there is no such character.
    """
    character = r"([^\w\s\"'])"
    for name in required:
        escaped_name = re.escape(name)
        after_name = re.search(rf"(?<!\w){escaped_name}[\"' ]*{character}", header)
        before_name = re.search(rf"{character}[\"' ]*{escaped_name}(?!\w)", header)
        match = after_name or before_name
        if match:
            separator = match[1]
            return f'. Are its columns separated by {separator}? Then csv_separator="{separator}"'
    return ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        number: Number of the row, from 1. The header does not count; empty lines count only between
            the rows of a table with one column.
        line: Number of the line at which the row begins, from 1.
        cells: The cells, one per column unless there is a problem.
        problem: Why the row cannot be used; None if it can.
    """

    number: int
    line: int
    cells: list[str]
    problem: str | None = None


class BadRows:
    """Collects the bad rows of a table; refuses them, or logs that they were left out.

    Args:
        path: The file, for messages.
        on_bad_row: `refuse` or `skip`.
        key: The configuration key of `on_bad_row`, for messages.

    Attributes:
        count: Number of bad rows so far.
    """

    def __init__(self, path: Path, on_bad_row: str, key: str = "on_bad_row") -> None:
        self._path = path
        self._key = key
        self._is_skipping = on_bad_row == "skip"
        self._first_problems: list[str] = []
        self.count = 0

    def add(self, row: Row, problem: str) -> None:
        """Records a bad row.

        Raises:
            DataError: If bad rows are refused, and the message can list no further one.
        """
        self.count += 1
        if len(self._first_problems) < _MAX_SHOWN_ROWS:
            self._first_problems.append(f"row {row.number:,} (line {row.line:,}): {problem}")
            if not self._is_skipping and len(self._first_problems) == _MAX_SHOWN_ROWS:
                raise self._make_error("and perhaps more")

    def close(self) -> None:
        """Ends the table: refuses its bad rows, or logs that they were left out.

        Raises:
            DataError: If bad rows are refused, and there are any.
        """
        if self.count and not self._is_skipping:
            raise self._make_error("in all")
        if self.count:
            first_rows = "\n  ".join(self._first_problems)
            rows = "1 row" if self.count == 1 else f"{self.count:,} rows"
            logger.warning("%s: %s left out\n  %s", self._path, rows, first_rows)

    def list_notes(self) -> list[str]:
        """Returns a note for a report on the rows left out, in a list; empty if there are none."""
        if not self.count:
            return []
        rows = "1 row was" if self.count == 1 else f"{self.count:,} rows were"
        num_unlisted = self.count - len(self._first_problems)
        suffix = f"; and {num_unlisted:,} more" if num_unlisted else ""
        return [f"{rows} left out: {'; '.join(self._first_problems)}{suffix}"]

    def _make_error(self, extent: str) -> DataError:
        """Returns the error that refuses the bad rows.

        Args:
            extent: Ending of `5 bad rows`: whether there may be more.
        """
        rows = "1 bad row" if self.count == 1 else f"{self.count} bad rows {extent}"
        first_rows = "\n  ".join(self._first_problems)
        return DataError(
            f"{self._path}: {rows}; correct the file, or leave such rows out with "
            f"{self._key}=skip\n  {first_rows}"
        )


def read_rows(
    path: Path, csv_format: CSVFormat, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Row]:
    """Yields the rows of a file after its header.

    Args:
        advance: Called periodically with the number of bytes read so far.

    Raises:
        DataError: If the file ends early (gzip), is not in its encoding, or cannot be read.
    """
    text, file = open_text(path, csv_format.encoding)
    number = 0  # of the last row

    with file, text:
        lines = _RereadableLines(text, csv_format)
        try:
            for record in _read_records(lines, csv_format):
                number += 1
                yield _to_row(number, record, csv_format)
                if number % 1000 == 0:
                    advance(file.tell())
                    report_progress()
        except UnicodeError as error:
            raise make_not_text_error(path, csv_format.encoding, lines.number, error) from error
        except GZIP_ERRORS as error:
            raise DataError(
                f"{path}: damaged gzip data after row {number:,}: {error}; is the file complete?"
            ) from error
        except OSError as error:
            raise DataError(f"{path} cannot be read after row {number:,}: {error}") from error

        advance(file.tell())


class _Record(NamedTuple):
    """A record of a file as parsed, before it is compared with the header.

    Attributes:
        line: Number of the line at which the record begins, from 1.
        cells: The cells; empty if there is a problem.
        problem: Why the record cannot be read; None if it can.
    """

    line: int
    cells: list[str]
    problem: str | None = None


def _to_row(number: int, record: _Record, csv_format: CSVFormat) -> Row:
    """Returns the row of a record, with a problem if it does not fit the header."""
    if record.problem is not None:
        return Row(number, record.line, record.cells, record.problem)

    # Spreadsheets may write extra separators at the end of a line.
    cells = record.cells
    num_columns = len(csv_format.columns)
    if len(cells) > num_columns and not any(cell.strip() for cell in cells[num_columns:]):
        cells = cells[:num_columns]

    problem = None
    if len(cells) != num_columns:
        extent = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        problem = f"{extent}, the header has {num_columns}"
    elif any("\0" in cell for cell in cells):
        problem = "a NUL byte"
    return Row(number, record.line, cells, problem)


def _read_records(lines: _RereadableLines, csv_format: CSVFormat) -> Iterator[_Record]:
    """Yields the records after the header."""
    reader = _iterate_records(lines, csv_format.separator, csv_format.escape)
    blank_lines: list[int] = []  # in a table with one column: rows with empty text if others follow
    while True:
        line = lines.begin_record()
        try:
            cells = _read_cells(reader, lines)
        except StopIteration:
            return
        except (csv.Error, _TooLongError) as error:
            # The row ends with its first line; otherwise, an unclosed quote would include the next
            # rows.
            lines.put_back(1)
            yield _Record(line, [], _describe_problem(error))
            continue

        if line <= csv_format.header_line:
            continue
        record_text = "".join(lines.record)
        if line == csv_format.header_line + 1 and _RULER.fullmatch(record_text):
            continue
        if not record_text.strip():
            if len(csv_format.columns) == 1:
                blank_lines.append(line)
            continue

        for blank_line in blank_lines:
            yield _Record(blank_line, [""])
        blank_lines.clear()
        yield _Record(line, cells)


def _read_cells(reader: Iterator[list[str]], lines: _RereadableLines) -> list[str]:
    """Returns the cells of the next record; if necessary, ignores padding after quoted cells.

    Raises:
        StopIteration: At the end of the file.
        csv.Error, _TooLongError: If the record cannot be read.
    """
    try:
        return next(reader)
    except csv.Error as error:
        lines.record_failure(error)
        return _read_unpadded(reader, lines)


def _read_unpadded(reader: Iterator[list[str]], lines: _RereadableLines) -> list[str]:
    """Reads a record again, without padding after its quoted cells, as in `"a text"   ,label`.

    Raises:
        csv.Error, _TooLongError: If the record still cannot be read.
    """
    lines.put_back(0)
    lines.begin_record()
    lines.is_padded = False
    try:
        return next(reader)
    except csv.Error as error:
        lines.record_failure(error)
        raise
    finally:
        lines.is_padded = True


def _describe_problem(error: csv.Error | _TooLongError) -> str:
    """Returns the reason why a record cannot be read, for the user."""
    if isinstance(error, _TooLongError):
        return f"longer than {MAX_RECORD_CHARS:,} characters; is a quote not closed?"
    if "end of data" in str(error):
        return "a quoted cell is not closed at the end of the file"
    if "expected after" in str(error):
        return 'a quote (") within a quoted cell is not doubled, or a quoted cell is not closed'
    return str(error)


class _JoinedLines(str):
    """Several lines of a file as one line, because all line ends but the last are escaped.

    Attributes:
        num_lines: Number of joined lines.
    """

    num_lines: int

    def __new__(cls, lines: list[str]) -> _JoinedLines:
        joined = super().__new__(cls, "".join(lines))
        joined.num_lines = len(lines)
        return joined


def _join_escaped(lines: Iterator[str], escape: str) -> Iterator[str]:
    """Yields lines; joins a line whose end is escaped with the next, up to `MAX_RECORD_CHARS`."""
    parts: list[str] = []
    length = 0
    for line in lines:
        is_escaped = line[-2:-1] == escape and _is_end_escaped(line, escape)
        if not is_escaped and not parts:
            yield line
            continue

        parts.append(line)
        length += len(line)
        if is_escaped and length < MAX_RECORD_CHARS:
            continue
        yield _JoinedLines(parts)
        parts.clear()
        length = 0
    if parts:
        yield _JoinedLines(parts)


def _count_lines(line: str) -> int:
    """Returns the number of lines of the file in a line, which may be joined."""
    return line.num_lines if isinstance(line, _JoinedLines) else 1


def _is_end_escaped(line: str, escape: str) -> bool:
    """Returns whether the end of a line is escaped: preceded by an odd number of escapes.

    The `\\n` of `\\r\\n` is never escaped, because the `\\r` precedes it.
    """
    content = line[:-1]
    num_escapes = len(content) - len(content.rstrip(escape))
    return line[-1] in "\r\n" and num_escapes % 2 == 1


class _TooLongError(Exception):
    """A record is longer than `MAX_RECORD_CHARS`."""


class _Failure(NamedTuple):
    """The error of every record that extends to a certain line.

    Attributes:
        end_line: Number of the line at which the error occurs.
    """

    end_line: int
    error: csv.Error | _TooLongError


class _RereadableLines:
    """Passes lines to a `csv` reader; the lines of a bad record can be read again.

    Parsing again from each line of a bad record would take quadratic time, hours for a megabyte.
    This is avoided because a record continues on the next line only within quotes: a record that
    begins within the bad record and is still open after its first line would run into the same
    error, so it is reported as bad at once. (A part of a record that is too long counts as too
    long.)

    Attributes:
        record: The lines of the current record, as in the file.
        number: Number of lines read so far.
        is_padded: Whether spaces between a quote and a separator are kept.
    """

    def __init__(self, text: TextIO, csv_format: CSVFormat) -> None:
        self.record: list[str] = []
        self.number = 0
        self.is_padded = True

        self._lines = read_lines(text, MAX_RECORD_CHARS)
        if csv_format.escape is not None:
            self._lines = _join_escaped(self._lines, csv_format.escape)
        self._padding = re.compile(rf'" ++(?={re.escape(csv_format.separator)}|\r?\n?$)')
        self._put_back_lines: deque[str] = deque()
        self._num_chars = 0  # of the record
        self._is_at_end = False
        self._failures: dict[bool, _Failure] = {}  # by `is_padded`
        # Whether lines are checked for failures; for speed, only after a bad record.
        self._checks_failures = False

    def begin_record(self) -> int:
        """Begins a record; returns the number of its first line."""
        self.record = []
        self._num_chars = 0
        if self._checks_failures and not self._put_back_lines:
            self._failures.clear()
            self._checks_failures = False
        return self.number + 1

    def put_back(self, first: int) -> None:
        """Puts back the lines of the record from index `first` on, to be read again."""
        lines = self.record[first:]
        self._put_back_lines.extendleft(reversed(lines))
        self.number -= sum(map(_count_lines, lines))
        self._is_at_end = False

    def record_failure(self, error: csv.Error | _TooLongError) -> None:
        """Remembers the error of the current record.

        Records that begin within it can then fail at once.
        """
        previous = self._failures.get(self.is_padded)
        end_line = self.number + 1 if self._is_at_end else self.number
        if previous is None or previous.end_line < end_line:
            self._failures[self.is_padded] = _Failure(end_line, error)
        self._checks_failures = True

    def __iter__(self) -> _RereadableLines:
        return self

    def __next__(self) -> str:
        if self._checks_failures:
            return self._read_checked()

        try:
            line = next(self._lines)
        except StopIteration:
            self._is_at_end = True
            raise
        # As `_count_lines`, without a call for each line.
        self.number += line.num_lines if isinstance(line, _JoinedLines) else 1
        self.record.append(line)
        self._num_chars += len(line)
        if self._num_chars >= MAX_RECORD_CHARS:
            self._refuse_length()
        return line

    def _read_checked(self) -> str:
        """Returns the next line, which may have been put back, unless it would lead to an error.

        Raises:
            csv.Error, _TooLongError: If the record is open and would run into a recorded error.
        """
        failure = self._failures.get(self.is_padded)
        if failure is not None and self.record and self.number < failure.end_line:
            raise type(failure.error)(*failure.error.args)

        try:
            line = self._put_back_lines.popleft() if self._put_back_lines else next(self._lines)
        except StopIteration:
            self._is_at_end = True
            raise
        self.number += _count_lines(line)
        self.record.append(line)
        self._num_chars += len(line)
        if self._num_chars >= MAX_RECORD_CHARS:
            self._refuse_length()
        return line if self.is_padded else self._padding.sub('"', line)

    def _refuse_length(self) -> None:
        """Records and raises the error of a record that is too long."""
        error = _TooLongError()
        self.record_failure(error)
        raise error
