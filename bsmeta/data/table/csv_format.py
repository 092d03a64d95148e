"""Detects the dialect of a CSV file: its encoding, separator, quotes and columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.problems import nearest
from bsmeta.data.table.text_file import (
    AUTO,
    GZIP_ERRORS,
    check_encoding,
    find_encoding,
    not_text,
    open_text,
    refuse_other_formats,
)

LONGEST_RECORD = 2**24
"""Characters of a row, at most: an unclosed quote must not read the rest of a file into memory."""

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}

_SAMPLE_CHARACTERS = 1 << 18
_SAMPLE_RECORDS = 200
_LISTED_COLUMNS = 20


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

    def reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """The rows of some lines; the reader of `csv`, whose errors it raises."""
        return _reader(lines, self.separator, self.escape)


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
    if not "".join(sample).strip("\ufeff \r\n"):
        raise DataError(f"{path} is empty; expected a CSV file with a header")
    skipped = 0
    declared = re.fullmatch(r"\ufeff?sep=(.)\r?\n?", sample[0])
    if declared:  # a first line for Excel
        separator = declared[1] if separator == AUTO else separator
        skipped = 1
    separators = list(SEPARATORS) if separator == AUTO else [_one_character(separator)]
    found = max(
        (_Trial.of(sample[skipped:], separator, escape, wanted)
        for separator in separators
        for escape in (None, "\\")),
        key=lambda trial: trial.score,
    )  # fmt: skip
    if separator == AUTO and found.separator != ",":
        notes.append(f"columns are separated by a {SEPARATORS[found.separator]}")
    if found.escape:
        notes.append("quotes are escaped by a backslash")
    header = next(line for line in sample[skipped:] if line.strip("\ufeff \r\n"))
    _check_columns(path, found, wanted, skipped + found.line, header)
    return CSVFormat(
        encoding, found.separator, found.escape, found.columns, skipped + found.line, tuple(notes)
    )


@dataclass(frozen=True)
class _Trial:
    """The first rows of a file, read with one separator."""

    separator: str
    escape: str | None
    columns: tuple[str, ...]
    line: int
    score: tuple[int, float, int, int]

    @classmethod
    def of(
        cls, lines: Sequence[str], separator: str, escape: str | None, wanted: Sequence[str]
    ) -> _Trial:
        reader = _reader(lines, separator, escape)
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
        score = (named, share, len(columns), 0 if escape else 1)
        return cls(separator, escape, columns, line, score)


def _reader(lines: Iterable[str], separator: str, escape: str | None) -> Iterator[list[str]]:
    csv.field_size_limit(LONGEST_RECORD)  # the default is shorter than many a text
    return csv.reader(
        lines,
        delimiter=separator,
        escapechar=escape,
        skipinitialspace=True,  # `"a text", label`, as in seed document 004
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


def _check_columns(
    path: Path, found: _Trial, wanted: Sequence[str], line: int, header: str
) -> None:
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
            f"{path}: {'; '.join(problems)}. The header, line {line}, separated by a "
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
