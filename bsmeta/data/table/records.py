"""Records in and out for prediction: CSV or JSON lines, streamed, continued after an interruption.

Rows of the output are appended to `OUTPUT.part`, which is renamed when it is complete. Its complete
rows are kept by the next call, if `OUTPUT.part.json` beside it says that they are of the same input
and the same model.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from bsmeta.core.errors import ConfigurationError, DataError, differing
from bsmeta.core.parsing import decode_json, parse_json
from bsmeta.data.io.file_start import check_has_document
from bsmeta.data.table.csv_file import LONGEST_RECORD, BadRows, Row, find_format, read_rows
from bsmeta.data.table.text_file import (
    AUTO,
    GZIP_ERRORS,
    check_encoding,
    not_text,
    open_text,
)

JSON_LINES = (".jsonl", ".jsonl.gz")
Record = dict[str, Any]

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LONGEST_PREFIX = 1000


def read_records(
    path: Path,
    wanted: Sequence[str],
    bad: BadRows,
    *,
    check: Callable[[Record], None] = lambda _: None,
    separator: str = AUTO,
    encoding: str = AUTO,
) -> Iterator[Record]:
    """Yields the records of a file, each with all its columns or keys.

    Args:
        path: A CSV file or JSON lines, compressed with gzip or not.
        wanted: The columns that each record must have, with a text in them.
        bad: Takes the records that have none, cannot be read, or do not pass the check.
        check: Raises DataError for a record that cannot be used.

    Raises:
        DataError: If the file cannot be read.
        ConfigurationError: If a column is missing from a CSV file, or is there twice.
    """
    if path.name.endswith(JSON_LINES):
        check_encoding(encoding)
        rows = _json_rows(path, "utf-8" if encoding == AUTO else encoding)
    else:
        form = find_format(path, wanted, separator=separator, encoding=encoding)
        twice = sorted(name for name, count in Counter(form.columns).items() if count > 1)
        if twice:
            raise ConfigurationError(
                f"{path}: {', '.join(map(repr, twice))} more than once in the header; expected "
                "each column once, because all are written to the output"
            )
        rows = (
            (row, dict(zip(form.columns, row.cells, strict=True)) if not row.problem else {})
            for row in read_rows(path, form)
        )
    for row, record in rows:
        texts = {name: value for name, value in record.items() if isinstance(value, str)}
        missing = [name for name in wanted if not texts.get(name, "").strip()]
        problem = row.problem
        if problem is None and missing:
            problem = f"no text in {' and '.join(map(repr, missing))}"
        if problem is None:
            try:
                check(record)
            except DataError as error:
                problem = str(error)
        if problem is None:
            yield record
        else:
            bad.add(row, problem)


def _json_rows(path: Path, encoding: str) -> Iterator[tuple[Row, Record]]:
    text, file = open_text(path, encoding)
    number = line = 0
    with file, text:
        try:
            while content := text.readline(LONGEST_RECORD):
                line += 1
                if not content.strip():
                    continue
                number += 1
                problem, record = None, {}
                try:
                    record = decode_json(content, dict[str, Any])
                except msgspec.MsgspecError as error:
                    if number == 1:
                        check_has_document(str(path), "input")
                    problem = f"no JSON object: {error}"
                yield Row(number, line, [], problem), record
        except UnicodeError as error:
            raise not_text(path, encoding, line, error) from error
        except GZIP_ERRORS as error:
            raise DataError(f"{path}: damaged gzip data after row {number:,}: {error}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read after row {number:,}: {error}") from error


class RecordWriter:
    """Writes records to a CSV file or JSON lines, after those of an interrupted call.

    Args:
        path: The output, which appears when it is complete; its name says the format.
        key: What determines the records; JSON-serializable.
        spreadsheet_safe: Whether the cells of a CSV file are `spreadsheet_safe_cell`s.

    Attributes:
        done: The number of records that an interrupted call has written.

    Raises:
        ConfigurationError: If the output exists, its format is unknown, or the interrupted call was
            another one.
        DataError: If it cannot be written.
    """

    def __init__(
        self, path: Path, key: Mapping[str, Any], *, spreadsheet_safe: bool = False
    ) -> None:
        check_output(path)
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._about = path.with_name(f"{path.name}.part.json")
        self._is_json = path.name.endswith(".jsonl")
        self._columns: dict[str, None] = {}  # in order
        self._spreadsheet_safe = spreadsheet_safe
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("a+", encoding="utf-8", newline="")
            self._lock()
            end, rows = complete_rows(self._part, quoted=not self._is_json)
            os.truncate(self._part, end)
            self._check_key(key, rows)
            self.done = self._rows_after_header(rows)
        except OSError as error:
            raise self._not_written(error) from error

    def write(self, record: Record) -> None:
        """Appends a record."""
        try:
            if self._is_json:
                self._file.write(msgspec.json.encode(record).decode() + "\n")
                return
            flat = flattened(record)
            if self._spreadsheet_safe:
                flat = {
                    spreadsheet_safe_cell(name): spreadsheet_safe_cell(cell)
                    for name, cell in flat.items()
                }
            if not self._columns:
                self._columns = dict.fromkeys(flat)
                self._write_row(list(self._columns))
            extra = [name for name in flat if name not in self._columns]
            if extra:
                raise DataError(
                    f"a record has {', '.join(map(repr, extra))}, which the first record does not "
                    f"have; write JSON lines: output={self._path.with_suffix('.jsonl')}"
                )
            self._write_row([flat.get(name, "") for name in self._columns])
        except OSError as error:
            raise self._not_written(error) from error

    def _write_row(self, cells: list[Any]) -> None:
        # `csv` does not quote a carriage return, which ends a row for readers, or a space at the
        # beginning, which they skip.
        texts = [cell for cell in cells if isinstance(cell, str)]
        needs_quotes = any("\r" in text or text.startswith(" ") for text in texts)
        quoting: Literal[0, 1] = csv.QUOTE_ALL if needs_quotes else csv.QUOTE_MINIMAL
        csv.writer(self._file, lineterminator="\n", quoting=quoting).writerow(cells)

    def finish(self) -> None:
        """Renames the complete output."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.rename(self._path)
            self._about.unlink()
        except OSError as error:
            raise self._not_written(error) from error

    def _lock(self) -> None:
        """Takes the lock of the unfinished output, which ends with the process."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"{self._part} is being written by another process; wait for its end, or name "
                "another output"
            ) from error

    def _check_key(self, key: Mapping[str, Any], rows: int) -> None:
        now = json.loads(json.dumps(key))
        if rows == 0:
            self._about.write_text(json.dumps(now))
            return
        try:
            saved = parse_json(self._about.read_text())
        except (OSError, ValueError):
            saved = {}
        differences = "\n".join(differing(saved, now, "there"))
        if differences:
            raise ConfigurationError(
                f"{self._part} was begun by another call; delete it to begin again, or name "
                f"another output:\n{differences}"
            )

    def _rows_after_header(self, rows: int) -> int:
        """The number of rows but for the header of a CSV file, which it reads."""
        if self._is_json or rows == 0:
            return rows
        self._file.seek(0)
        self._columns = dict.fromkeys(next(csv.reader(self._file)))
        self._file.seek(0, os.SEEK_END)
        return rows - 1

    def _not_written(self, error: OSError) -> DataError:
        return DataError(f"output={self._path} cannot be written: {error}")


def spreadsheet_safe_cell(cell: Any) -> Any:
    """A cell that a spreadsheet shows; with ' before a text that it would compute as a formula.

    Formulas can start programs and send cells to a server. Numbers stay as they are. The characters
    are those of OWASP's page on CSV injection.
    """
    if not isinstance(cell, str) or not cell.startswith(_FORMULA_STARTS) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"


def check_output(path: Path) -> None:
    """Refuses an output that exists, or whose format is unknown."""
    if path.suffix not in (".csv", ".jsonl"):
        raise ConfigurationError(f"output={path}: expected a name that ends in .csv or .jsonl")
    if path.exists():
        raise ConfigurationError(f"output={path} exists; delete it, or name another file")


def complete_rows(path: Path, *, quoted: bool) -> tuple[int, int]:
    """The end of the last complete row of a file, and the number of rows up to it.

    Args:
        quoted: Whether line ends between quotes do not end a row.
    """
    end = position = rows = quotes = 0
    with path.open("rb") as file:
        for line in file:
            position += len(line)
            quotes += line.count(b'"') if quoted else 0
            if line.endswith(b"\n") and quotes % 2 == 0:
                end, rows = position, rows + 1
    return end, rows


def flattened(record: Mapping[str, Any]) -> Record:
    """A record as cells of a row: `{"a": {"b": 1}}` as `{"a.b": 1}`; lists as JSON.

    Objects whose keys together exceed `_LONGEST_PREFIX` characters are cells of JSON, too:
    otherwise, a long key before many others would be repeated in the name of each.
    """
    flat: Record = {}
    waiting = [("", iter(record.items()))]
    while waiting:
        prefix, items = waiting[-1]
        for name, value in items:
            column = prefix + name
            if isinstance(value, dict) and value and len(column) <= _LONGEST_PREFIX:
                waiting.append((f"{column}.", iter(value.items())))
                break
            if isinstance(value, (list, dict)):
                flat[column] = msgspec.json.encode(value).decode()
            else:
                flat[column] = "" if value is None else value
        else:
            waiting.pop()
    return flat
