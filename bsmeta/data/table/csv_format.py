"""What a CSV file is like: whether it is one, its encoding, its separator, its columns."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path
from typing import Any, BinaryIO, cast

from isal import igzip, isal_zlib

from bsmeta.config.checks.problems import nearest
from bsmeta.config.errors import ConfigurationError, DataError

GZIP_ERRORS: Any = (EOFError, BadGzipFile, isal_zlib.error)  # zlib's error has no type
LONGEST_RECORD = 2**24
"""Characters of a row, at most: an unclosed quote must not read the rest of a file into memory."""

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
AUTO = "auto"

_BLOCK = 1 << 20
_SAMPLE_CHARACTERS = 1 << 18
_SAMPLE_RECORDS = 200
_LISTED_COLUMNS = 20
_MOST_CONTROLS = 20  # control characters of 64 KB, beyond which it is not text

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SQLITE = b"SQLite format 3\0"
_OTHER_FORMATS = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PK\x03\x04": "a ZIP archive or an Excel workbook (save the sheet as CSV)",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (save the sheet as CSV)",
    _SQLITE: "an SQLite database",
    b"%PDF": "a PDF file",
    b"BZh": "a bzip2 file (only gzip is read)",
    b"\xfd7zXZ": "an xz file (only gzip is read)",
    b"\x28\xb5\x2f\xfd": "a Zstandard file (only gzip is read)",
}
_MARKUP = re.compile(rb"\s*(<!doctype|<html|<\?xml)", re.IGNORECASE)
_JSON = re.compile(rb'\s*(\{|\[\s*[\{\[])\s*("|\}|\])')
_CONTROLS = bytes({*range(9), *range(14, 27), *range(28, 32)})
_UNDEFINED_IN_1252 = (b"\x81", b"\x8d", b"\x8f", b"\x90", b"\x9d")


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


def open_bytes(path: Path) -> tuple[BinaryIO, io.BufferedReader]:
    """Opens a file, gzip or not: its content, and the file as it is on disk.

    Raises:
        DataError: If it cannot be read.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a CSV file")
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed by the caller
    except OSError as error:
        near = nearest(path.name, os.listdir(path.parent) if path.parent.is_dir() else ())
        raise DataError(f"{path} cannot be read: {error.strerror}{near}") from error
    is_gzip = file.peek(2)[:2] == b"\x1f\x8b"
    return (cast(BinaryIO, igzip.GzipFile(fileobj=file)) if is_gzip else file), file


def is_sqlite(path: Path) -> bool:
    """Whether a path names an SQLite database, by its content or, if there is no file, its name."""
    if path.is_file():
        with open_bytes(path)[1] as file:
            return file.peek(len(_SQLITE))[: len(_SQLITE)] == _SQLITE
    return path.suffix == ".sqlite"


def find_format(
    path: Path,
    wanted: Sequence[str],
    *,
    separator: str = AUTO,
    encoding: str = AUTO,
) -> CSVFormat:
    """Finds out how a file is to be read.

    Args:
        path: The file.
        wanted: The columns that must be there.
        separator: The declared separator, or `auto`.
        encoding: The declared encoding, or `auto`: the whole file is read to find it out.

    Raises:
        DataError: If the file is empty, or no CSV file.
        ConfigurationError: If a wanted column is missing, or is there twice.
    """
    _refuse_other_formats(path)
    notes = []
    if encoding == AUTO:
        encoding, note = _find_encoding(path)
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
        (_Trial.of(sample[skipped:], one, escape, wanted)
        for one in separators
        for escape in (None, "\\")),
        key=lambda trial: trial.score,
    )  # fmt: skip
    if separator == AUTO and found.separator != ",":
        notes.append(f"columns are separated by a {SEPARATORS[found.separator]}")
    if found.escape:
        notes.append("quotes are escaped by a backslash")
    _check_columns(path, found, wanted, skipped + found.line)
    return CSVFormat(
        encoding, found.separator, found.escape, found.columns, skipped + found.line, tuple(notes)
    )


def open_text(path: Path, encoding: str) -> tuple[io.TextIOWrapper, io.BufferedReader]:
    """Opens a file as text, with the line ends that it has, and the file as it is on disk."""
    content, file = open_bytes(path)
    return io.TextIOWrapper(content, encoding=encoding, errors="strict", newline=""), file


def check_encoding(encoding: str) -> None:
    """Refuses an unknown encoding.

    Raises:
        ConfigurationError: Naming `csv_encoding`.
    """
    try:
        "".encode("utf-8" if encoding == AUTO else encoding)
    except LookupError as error:
        raise ConfigurationError(
            f"csv_encoding={encoding}: there is no such encoding; expected auto, or one of "
            "Python's, such as utf-8, utf-16, cp1252, latin-1"
        ) from error


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


def _refuse_other_formats(path: Path) -> None:
    content, file = open_bytes(path)
    with file, content:
        try:
            head = content.read(1 << 16)
        except GZIP_ERRORS as error:
            raise DataError(f"{path}: damaged gzip data: {error}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error
    if head.startswith(tuple(_MARKS)):
        return
    for mark, name in _OTHER_FORMATS.items():
        if head.startswith(mark):
            raise DataError(f"{path} is {name}; expected a CSV file, or one compressed with gzip")
    if _MARKUP.match(head):
        raise DataError(f"{path} is an HTML or XML page; expected a CSV file")
    if _JSON.match(head):
        raise DataError(f"{path} begins like JSON; expected a CSV file with a header")
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if controls > _MOST_CONTROLS and _utf16(head) is None:
        raise DataError(f"{path} is a binary file; expected a CSV file")


def _utf16(head: bytes) -> str | None:
    """UTF-16 without a mark: every other byte of Western text is 0."""
    for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros, others = head[first::2].count(0), head[1 - first :: 2].count(0)
        if zeros > len(head) // 4 and others == 0:
            return name
    return None


def _find_encoding(path: Path) -> tuple[str, str | None]:
    """The encoding of a file, and what to tell the user about it."""
    content, file = open_bytes(path)
    with file, content:
        head = content.peek(_BLOCK)  # type: ignore[attr-defined]
        for mark, name in _MARKS.items():
            if head.startswith(mark):
                note = None if name == "utf-8-sig" else f"encoding: {name}, from its mark"
                return name, note
        wide = _utf16(head)
        if wide is not None:
            return wide, f"encoding: {wide}, because every other byte is 0"
        decoder = codecs.getincrementaldecoder("utf-8")()
        is_utf8, is_1252, line, wrong_line = True, True, 1, 0
        try:
            while block := content.read(_BLOCK):
                if is_utf8:
                    try:
                        decoder.decode(block)
                    except UnicodeDecodeError as error:
                        is_utf8 = False
                        wrong_line = line + block[: error.start].count(b"\n")
                    line += block.count(b"\n")
                is_1252 = is_1252 and not any(byte in block for byte in _UNDEFINED_IN_1252)
        except GZIP_ERRORS:
            pass  # reported with the number of the row, when the rows are read
    if is_utf8:
        return "utf-8", None
    name = "cp1252" if is_1252 else "latin-1"
    return name, (
        f"encoding: {name}, guessed, because line {wrong_line:,} is not UTF-8; csv_encoding names "
        "another"
    )


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


def not_text(path: Path, encoding: str, line: int, error: UnicodeError) -> DataError:
    """The error about a file that is not in an encoding."""
    return DataError(
        f"{path}: after line {line:,}: not text in csv_encoding={encoding} ({error}); declare the "
        "encoding that the file has, or csv_encoding=auto"
    )


def _check_columns(path: Path, found: _Trial, wanted: Sequence[str], line: int) -> None:
    problems = []
    for name in wanted:
        count = found.columns.count(name)
        if count > 1:
            problems.append(f"column {name!r} is there {count} times; rename the others")
        elif count == 0:
            problems.append(f"there is no column {name!r}{nearest(name, found.columns)}")
    if problems:
        shown = ", ".join(found.columns[:_LISTED_COLUMNS])[:500]
        raise ConfigurationError(
            f"{path}: {'; '.join(problems)}. The header, line {line}, separated by a "
            f"{SEPARATORS.get(found.separator, found.separator)}, has: {shown}"
        )
