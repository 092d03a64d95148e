"""Reads records (CSV, JSON lines or Parquet) and writes predictions (CSV or JSON lines).

Both are streamed, and writing can be resumed: rows are appended to `OUTPUT.part`, which is renamed
when it is complete. After an interruption, the next call keeps the complete rows if
`OUTPUT.part.json` records the same input and the same model.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec

from bsmeta.core.errors import ConfigurationError, DataError, describe_differences
from bsmeta.core.foreign_json import decode_values
from bsmeta.core.parsing import parse_json
from bsmeta.data.io.file_start import refuse_other_format
from bsmeta.data.table.csv_file import (
    MAX_RECORD_CHARS,
    BadRows,
    CSVFormat,
    Row,
    detect_format,
    read_rows,
)
from bsmeta.data.table.text_file import (
    AUTO,
    GZIP_ERRORS,
    check_encoding,
    is_truncated,
    make_not_text_error,
    open_bytes,
    open_text,
    read_lines,
)

JSON_LINES = (".jsonl", ".jsonl.gz")
PARQUET = ".parquet"

Record = dict[str, Any]
"""A record: values by column or key."""

PARQUET_BATCH_ROWS = 256
"""Number of rows of a Parquet file that are converted at a time."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_NUMBER_PATTERN = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MAX_NUMBER_CHARS = 40  # in a message
_MAX_PREFIX_CHARS = 1000  # of the path of an object whose keys become columns


def read_records(
    path: Path,
    required: Sequence[str],
    bad_rows: BadRows,
    *,
    check: Callable[[Record], None] = lambda _: None,
    separator: str = AUTO,
    encoding: str = AUTO,
) -> Iterator[Record]:
    """Yields the good records of a file, each with all its columns or keys.

    Args:
        path: A CSV file or JSON lines, compressed with gzip or not, or a Parquet file.
        required: The columns in which each record must have a text.
        bad_rows: Receives the rows that cannot be read, lack a text, or fail the check.
        check: Raises a `DataError` for a record that cannot be used.
        separator: The separator of a CSV file, or `auto`.
        encoding: The encoding of a text file, or `auto`.

    Raises:
        DataError: If the file cannot be read, or `bad_rows` refuses a row.
        ConfigurationError: If a column is missing from a CSV file, or occurs twice.
    """
    for row, record in read_record_rows(path, required, separator=separator, encoding=encoding):
        problem = row.problem or _describe_record_problem(record, required, check)
        if problem is None:
            yield record
        else:
            bad_rows.add(row, problem)


def is_record_file(path: Path) -> bool:
    """Returns whether a path names JSON lines or Parquet, whose values need not be texts."""
    return path.name.endswith((*JSON_LINES, PARQUET))


def read_record_rows(
    path: Path, required: Sequence[str], *, separator: str = AUTO, encoding: str = AUTO
) -> Iterator[tuple[Row, Record]]:
    """Yields the rows of a file with their records; the record of a bad row is empty.

    Args:
        path: A CSV file or JSON lines, compressed with gzip or not, or a Parquet file.
        required: The columns that a CSV file must have, and whose texts must be valid Unicode.
        separator: The separator of a CSV file, or `auto`.
        encoding: The encoding of a text file, or `auto`.

    Raises:
        DataError: If the file cannot be read.
        ConfigurationError: If a column is missing from a CSV file, or occurs twice.
    """
    if path.name.endswith(PARQUET):
        return _read_parquet_rows(path, required)
    if path.name.endswith(JSON_LINES):
        check_encoding(encoding)
        return _read_json_rows(path, required, "utf-8" if encoding == AUTO else encoding)
    csv_format = detect_format(path, required, separator=separator, encoding=encoding)
    return _read_csv_rows(path, csv_format)


def describe_missing_texts(record: Record, required: Sequence[str]) -> str | None:
    """Names the required columns in which a record has no text; None if it has all texts."""
    missing = []
    reasons = []
    for name in required:
        value = record.get(name)
        number = describe_number(value)
        if number is not None:
            reasons.append(f"{name!r} is {number}, not a text")
        elif not isinstance(value, str) or not value.strip():
            missing.append(repr(name))
    if missing:
        reasons.insert(0, f"no text in {' and '.join(missing)}")
    return "; ".join(reasons) or None


def describe_number(value: Any) -> str | None:
    """Returns `the number 1` or `the boolean true` for such a JSON value; None for any other."""
    if not isinstance(value, (bool, int, float)):
        return None
    json_type = "boolean" if isinstance(value, bool) else "number"
    return f"the {json_type} {json.dumps(value)[:_MAX_NUMBER_CHARS]}"


def _describe_record_problem(
    record: Record, required: Sequence[str], check: Callable[[Record], None]
) -> str | None:
    """Returns why a record cannot be used; None if it can."""
    problem = describe_missing_texts(record, required)
    if problem is not None:
        return problem
    try:
        check(record)
    except DataError as error:
        return str(error)
    return None


def _read_csv_rows(path: Path, csv_format: CSVFormat) -> Iterator[tuple[Row, Record]]:
    """Yields the rows of a CSV file with their records; the record of a bad row is empty."""
    counts = Counter(csv_format.columns)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ConfigurationError(
            f"{path}: {', '.join(map(repr, repeated))} more than once in the header; expected "
            "each column once, because all are written to the output"
        )
    for row in read_rows(path, csv_format):
        record: Record = {}
        if not row.problem:
            record = dict(zip(csv_format.columns, row.cells, strict=True))
        yield row, record


def _read_json_rows(
    path: Path, required: Sequence[str], encoding: str
) -> Iterator[tuple[Row, Record]]:
    """Yields the rows of JSON lines with their records; the record of a bad row is empty."""
    text, file = open_text(path, encoding)
    number = line = 0
    with file, text:
        try:
            for content in read_lines(text, MAX_RECORD_CHARS):
                line += 1
                if not content.strip():
                    continue
                number += 1

                record, problem = _decode_line(content, required)
                if problem is not None and number == 1:
                    refuse_other_format(str(path), "input")
                yield Row(number, line, [], problem), record
        except UnicodeError as error:
            raise make_not_text_error(path, encoding, line, error) from error
        except GZIP_ERRORS as error:
            raise DataError(f"{path}: damaged gzip data after row {number:,}: {error}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read after row {number:,}: {error}") from error


def _decode_line(line: str, required: Sequence[str]) -> tuple[Record, str | None]:
    """Returns the record of a line, and None; or an empty record, and why the line is bad."""
    if is_truncated(line, MAX_RECORD_CHARS):
        return {}, f"longer than {MAX_RECORD_CHARS:,} characters"
    try:
        return decode_values(line, required), None
    except msgspec.MsgspecError as error:
        return {}, f"not a JSON object: {error}"


def _read_parquet_rows(path: Path, required: Sequence[str]) -> Iterator[tuple[Row, Record]]:
    """Yields the rows of a Parquet file with their records; the record of a bad row is empty."""
    open_bytes(path)[1].close()  # raises an error if the file cannot be read
    # Imported here because pyarrow loads slowly, and most tables do not need it.
    from bsmeta.data.io.parquet import ParquetReader

    with closing(ParquetReader(str(path))) as reader:
        number = 0
        while lines := reader.read(number, PARQUET_BATCH_ROWS):
            for line in lines:
                number += 1
                record: Record = {}
                problem = None
                try:
                    record = decode_values(bytes(line), required)
                except msgspec.MsgspecError as error:
                    problem = str(error)
                yield Row(number, number, [], problem), record

        if reader.damage:
            raise DataError(f"{path} cannot be read after row {number:,}: {reader.damage}")


class RecordWriter:
    """Writes records to a CSV file or JSON lines; resumes the output of an interrupted call.

    Args:
        path: The output, which appears when it is complete; its suffix determines the format.
        key: Everything that determines the records, as JSON types.
        spreadsheet_safe: Whether `escape_spreadsheet_cell` is applied to the cells of a CSV file.

    Attributes:
        num_done: Number of records that an interrupted call has already written.

    Raises:
        ConfigurationError: If the output exists, its format is unknown, or the interrupted call had
            a different key.
        DataError: If the output cannot be written.
    """

    def __init__(
        self, path: Path, key: Mapping[str, Any], *, spreadsheet_safe: bool = False
    ) -> None:
        check_output(path)
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._key_path = path.with_name(f"{path.name}.part.json")
        self._is_json = path.name.endswith(".jsonl")
        self._spreadsheet_safe = spreadsheet_safe
        self._columns: dict[str, None] = {}  # in order; empty before the first record

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("a+", encoding="utf-8", newline="")
            self._lock()

            end, num_rows = find_complete_rows(self._part, quoted=not self._is_json)
            os.truncate(self._part, end)
            self._check_key(key, num_rows)
            self.num_done = num_rows
            if not self._is_json and num_rows > 0:
                self._read_header()
                self.num_done -= 1
        except OSError as error:
            raise self._make_write_error(error) from error

    def write(self, record: Record) -> None:
        """Appends a record to the output."""
        try:
            if self._is_json:
                self._file.write(msgspec.json.encode(record).decode() + "\n")
            else:
                self._write_csv(record)
        except OSError as error:
            raise self._make_write_error(error) from error

    def _write_csv(self, record: Record) -> None:
        """Appends a record to a CSV file; writes the header before the first record.

        Raises:
            DataError: If the record has a column that the first record does not have.
        """
        cells = flatten_record(record)
        if self._spreadsheet_safe:
            cells = {
                escape_spreadsheet_cell(name): escape_spreadsheet_cell(cell)
                for name, cell in cells.items()
            }

        if not self._columns:
            self._columns = dict.fromkeys(cells)
            write_csv_row(self._file, list(self._columns))
        extra = [name for name in cells if name not in self._columns]
        if extra:
            raise DataError(
                f"a record has {', '.join(map(repr, extra))}, which the first record does not "
                f"have; write JSON lines: output={self._path.with_suffix('.jsonl')}"
            )
        write_csv_row(self._file, [cells.get(name, "") for name in self._columns])

    def finish(self) -> None:
        """Renames the complete output."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.rename(self._path)
            self._key_path.unlink()
        except OSError as error:
            raise self._make_write_error(error) from error

    def _lock(self) -> None:
        """Locks the unfinished output until the process ends.

        Raises:
            ConfigurationError: If another process has locked it.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"{self._part} is being written by another process; wait until it ends, or name "
                "another output"
            ) from error

    def _check_key(self, key: Mapping[str, Any], num_rows: int) -> None:
        """Saves the key of a new output, or compares it with the key of an interrupted call.

        Args:
            num_rows: Number of complete rows in the output.

        Raises:
            ConfigurationError: If the keys differ.
        """
        current = json.loads(json.dumps(key))  # as it is after loading: tuples become lists
        if num_rows == 0:
            self._key_path.write_text(json.dumps(current))
            return

        try:
            saved = parse_json(self._key_path.read_text())
        except (OSError, ValueError):
            saved = {}
        differences = "\n".join(describe_differences(saved, current, "there"))
        if differences:
            raise ConfigurationError(
                f"{self._part} was begun by another call; delete it to begin again, or name "
                f"another output:\n{differences}"
            )

    def _read_header(self) -> None:
        """Reads the columns of an existing CSV file."""
        self._file.seek(0)
        self._columns = dict.fromkeys(next(csv.reader(self._file)))
        self._file.seek(0, os.SEEK_END)

    def _make_write_error(self, error: OSError) -> DataError:
        """Returns the error for an output that cannot be written."""
        return DataError(f"output={self._path} cannot be written: {error}")


def write_csv_row(file: TextIO, cells: Sequence[Any]) -> None:
    """Writes a row of a CSV file, quoted so that any reader reads the same cells."""
    # `csv` quotes neither a carriage return, at which readers end the row, nor a space at the
    # beginning, which readers skip.
    texts = [cell for cell in cells if isinstance(cell, str)]
    needs_quotes = any("\r" in text or text.startswith(" ") for text in texts)
    quoting: Literal[0, 1] = csv.QUOTE_ALL if needs_quotes else csv.QUOTE_MINIMAL
    csv.writer(file, lineterminator="\n", quoting=quoting).writerow(cells)


def escape_spreadsheet_cell(cell: Any) -> Any:
    """Returns a cell, with a ' before a text that a spreadsheet would evaluate as a formula.

    Formulas can start programs and send cells to a server. Numbers are unchanged. The characters
    with which formulas begin are from OWASP's page on CSV injection.
    """
    if not isinstance(cell, str):
        return cell
    is_formula = cell.startswith(_FORMULA_STARTS) and not _NUMBER_PATTERN.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def check_output(path: Path) -> None:
    """Checks that an output does not exist, and has the suffix of a known format.

    Raises:
        ConfigurationError: If it exists or has another suffix.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise ConfigurationError(f"output={path}: expected a name that ends in .csv or .jsonl")
    if path.exists():
        raise ConfigurationError(f"output={path} exists; delete it, or name another file")


def find_complete_rows(path: Path, *, quoted: bool) -> tuple[int, int]:
    """Returns the offset after the last complete row of a file, and the number of complete rows.

    Args:
        quoted: Whether line ends within quotes are part of a row, as in CSV.
    """
    end = position = num_rows = num_quotes = 0
    with path.open("rb") as file:
        for line in file:
            position += len(line)
            if quoted:
                num_quotes += line.count(b'"')
            if line.endswith(b"\n") and num_quotes % 2 == 0:
                end = position
                num_rows += 1
    return end, num_rows


def flatten_record(record: Mapping[str, Any]) -> Record:
    """Returns a record as the cells of a row: `{"a": {"b": 1}}` as `{"a.b": 1}`; lists as JSON.

    An object whose path is longer than `_MAX_PREFIX_CHARS` also becomes JSON: otherwise, a long key
    would be repeated in the names of all columns below it.
    """
    cells: Record = {}
    # The objects that are being flattened, the innermost last; of each, the prefix of its columns,
    # and its remaining items.
    stack = [("", iter(record.items()))]
    while stack:
        prefix, items = stack[-1]
        for name, value in items:
            column = prefix + name
            if isinstance(value, dict) and value and len(column) <= _MAX_PREFIX_CHARS:
                stack.append((f"{column}.", iter(value.items())))
                break
            if isinstance(value, (list, dict, msgspec.Raw)):
                cells[column] = msgspec.json.encode(value).decode()
            else:
                cells[column] = "" if value is None else value
        else:
            stack.pop()
    return cells
