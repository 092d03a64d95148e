"""Opens text files of unknown origin: detects their compression and encoding, and other formats."""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from gzip import BadGzipFile
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from isal import igzip, isal_zlib

from bsmeta.core.errors import ConfigurationError, DataError, suggest_nearest
from bsmeta.core.files import refuse_special_file
from bsmeta.core.progress import report_progress
from bsmeta.data.io.compression import GZIP_MAGIC
from bsmeta.data.io.file_start import find_format_name, is_markup, is_sqlite_start

GZIP_ERRORS: Any = (EOFError, BadGzipFile, isal_zlib.error)  # zlib's error has no type
AUTO = "auto"

_BLOCK_BYTES = 1 << 20
_NUM_HEAD_BYTES = 1 << 16  # first bytes of a file, by which other formats are recognized
_REPORT_INTERVAL = 1000  # lines between progress reports
_MAX_LISTED_LINES = 5  # in a message
_NUM_SQLITE_BYTES = 16  # first bytes that identify a database
_MAX_CONTROL_CHARS = 20  # in the first bytes; a file with more is not text
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is the beginning of this one
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_TABLE_REMEDIES = {
    "a Git LFS pointer": "fetch its content with git lfs pull",
    "a ZIP archive or an Excel workbook": "save the sheet as CSV",
    "an old Excel workbook": "save the sheet as CSV",
    "a bzip2 file": "only gzip is read",
    "an xz file": "only gzip is read",
    "a Zstandard file": "only gzip is read",
}
_JSON_START = re.compile(rb'\s*(\{|\[\s*[\{\[])\s*("|\}|\])')
_CONTROL_CHARS = bytes({*range(9), *range(14, 27), *range(28, 32)})  # except white space and ESC


def open_bytes(path: Path) -> tuple[BinaryIO, io.BufferedReader]:
    """Opens a file that may be compressed with gzip.

    Returns:
        The decompressed content, and the file on disk, whose position shows the progress.

    Raises:
        DataError: If it is not a file, or cannot be read.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a CSV file")
    refuse_special_file(path)
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed by the caller
    except OSError as error:
        names = os.listdir(path.parent) if path.parent.is_dir() else ()
        suggestion = suggest_nearest(path.name, names)
        raise DataError(f"{path} cannot be read: {error.strerror}{suggestion}") from error

    if file.peek(2)[:2] == GZIP_MAGIC:
        return cast(BinaryIO, igzip.GzipFile(fileobj=file)), file
    return file, file


def is_sqlite(path: Path) -> bool:
    """Returns whether a file is an SQLite database: by its content, or by its suffix if missing."""
    if path.is_file():
        with open_bytes(path)[1] as file:
            return is_sqlite_start(file.peek(_NUM_SQLITE_BYTES))
    return path.suffix == ".sqlite"


def open_text(path: Path, encoding: str) -> tuple[io.TextIOWrapper, io.BufferedReader]:
    """Opens a file as text, without translating line ends.

    Returns:
        The text, and the file on disk, whose position shows the progress.

    Raises:
        DataError: If it is not a file, or cannot be read.
    """
    content, file = open_bytes(path)
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # skips a byte order mark
    return io.TextIOWrapper(content, encoding=encoding, errors="strict", newline=""), file


def read_lines(text: TextIO, max_chars: int) -> Iterator[str]:
    """Yields the lines of a file, each truncated to a number of characters."""
    while line := text.readline(max_chars):
        yield line
        while is_truncated(line, max_chars):
            line = text.readline(max_chars)


def is_truncated(line: str, max_chars: int) -> bool:
    """Returns whether a line of `read_lines` lacks its end."""
    return len(line) == max_chars and line[-1] not in "\r\n"


def check_encoding(encoding: str) -> None:
    """Checks that an encoding is `auto` or known to Python.

    Raises:
        ConfigurationError: If it is not.
    """
    try:
        "".encode("utf-8" if encoding == AUTO else encoding)
    except LookupError as error:
        raise ConfigurationError(
            f"csv_encoding={encoding}: there is no such encoding; expected auto, or one of "
            "Python's, such as utf-8, utf-16, cp1252, latin-1"
        ) from error


def refuse_non_text(path: Path) -> None:
    """Checks that a file may be CSV: that it is not a workbook, a page of HTML, Parquet, ….

    Raises:
        DataError: If it is in another format, or cannot be read.
    """
    content, file = open_bytes(path)
    with file, content:
        try:
            head = content.read(_NUM_HEAD_BYTES)
        except GZIP_ERRORS as error:
            raise DataError(f"{path}: damaged gzip data: {error}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error

    if head.startswith(tuple(_BYTE_ORDER_MARKS)):
        return

    format_name = find_format_name(head)
    if format_name is not None:
        remedy = f" ({_TABLE_REMEDIES[format_name]})" if format_name in _TABLE_REMEDIES else ""
        raise DataError(
            f"{path} is {format_name}{remedy}; expected a CSV file, or one compressed with gzip"
        )
    if is_markup(head):
        raise DataError(f"{path} is an HTML or XML page; expected a CSV file")
    if _JSON_START.match(head):
        raise DataError(f"{path} begins like JSON; expected a CSV file with a header")

    num_controls = len(head) - len(head.translate(None, _CONTROL_CHARS))
    if num_controls > _MAX_CONTROL_CHARS and _detect_utf16(head) is None:
        raise DataError(f"{path} is a binary file; expected a CSV file")


def _detect_utf16(head: bytes) -> str | None:
    """Returns the encoding of Western UTF-16 text without a byte order mark; None for other text.

    In such a text, most bytes at odd or at even positions are 0, and no others.
    """
    num_even_zeros = head[::2].count(0)
    num_odd_zeros = head[1::2].count(0)
    threshold = len(head) // 4
    if num_odd_zeros > threshold and num_even_zeros == 0:
        return "utf-16-le"
    if num_even_zeros > threshold and num_odd_zeros == 0:
        return "utf-16-be"
    return None


def detect_encoding(path: Path) -> tuple[str, str | None]:
    """Detects the encoding of a file; reads all of it if it has no byte order mark.

    Encodings other than UTF-8, UTF-16 and UTF-32 are not guessed, because a wrong guess would
    change the texts.

    Returns:
        The encoding, and a note for the user if it is not UTF-8.

    Raises:
        DataError: If the file is in another encoding, or damaged.
    """
    content, file = open_bytes(path)
    with file, content:
        head = content.peek(_BLOCK_BYTES)  # type: ignore[attr-defined]
        for mark, encoding in _BYTE_ORDER_MARKS.items():
            if head.startswith(mark):
                note = f"encoding: {encoding}, from its mark"
                return encoding, None if encoding == "utf-8-sig" else note

        utf16 = _detect_utf16(head)
        if utf16 is not None:
            return utf16, f"encoding: {utf16}, because every other byte is 0"

        survey = _survey_utf8(content)

    if survey.num_invalid_lines:
        raise _make_not_utf8_error(path, survey)
    return "utf-8", None


@dataclass
class _UTF8Survey:
    """Counts of the valid and invalid UTF-8 lines of a file.

    Attributes:
        first_invalid_lines: The numbers of the first lines that are not UTF-8, from 1.
        num_invalid_lines: Number of lines that are not UTF-8.
        num_valid_lines: Number of lines in UTF-8 with non-ASCII characters; a line longer than a
            block may count several times.
    """

    first_invalid_lines: list[int] = field(default_factory=list)
    num_invalid_lines: int = 0
    num_valid_lines: int = 0


def _make_not_utf8_error(path: Path, survey: _UTF8Survey) -> DataError:
    """Returns the error for a file with lines that are not UTF-8."""
    plural = "s" if survey.num_invalid_lines > 1 else ""
    lines = f"line{plural} {', '.join(f'{line:,}' for line in survey.first_invalid_lines)}"
    num_unlisted = survey.num_invalid_lines - len(survey.first_invalid_lines)
    suffix = f" and {num_unlisted:,} more" if num_unlisted else ""
    fix = "declare the encoding of the file"
    if survey.num_valid_lines > survey.num_invalid_lines:
        fix = (
            "other lines have characters in valid UTF-8, so these are damaged: correct them, or "
            "declare the encoding of the whole file"
        )
    return DataError(
        f"{path}: not UTF-8 in {lines}{suffix}; {fix}: csv_encoding=NAME, such as cp1252, "
        "shift_jis, gb18030, koi8-r"
    )


def _survey_utf8(content: BinaryIO) -> _UTF8Survey:
    """Decodes all lines as UTF-8; counts valid and invalid lines."""
    survey = _UTF8Survey()
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    last_invalid_line = 0
    num_parts = 0
    try:
        while True:
            part = content.readline(_BLOCK_BYTES)  # a longer line is read in several parts
            num_parts += 1
            if num_parts % _REPORT_INTERVAL == 0:
                report_progress()

            is_end = part.endswith(b"\n") or not part
            try:
                text = decoder.decode(part, final=is_end)
                if len(text) < len(part):  # it has a non-ASCII character, of more than one byte
                    survey.num_valid_lines += 1
            except UnicodeDecodeError:
                decoder.reset()
                if line != last_invalid_line:  # a line in several parts counts once
                    last_invalid_line = line
                    survey.num_invalid_lines += 1
                    if survey.num_invalid_lines <= _MAX_LISTED_LINES:
                        survey.first_invalid_lines.append(line)

            if not part:
                break
            if is_end:
                line += 1
    except GZIP_ERRORS:
        pass  # reported with the number of the row when the rows are read
    return survey


def make_not_text_error(path: Path, encoding: str, line: int, error: UnicodeError) -> DataError:
    """Returns the error for a file that is not in the expected encoding.

    Args:
        line: Number of the last line that could be read.
    """
    return DataError(
        f"{path}: after line {line:,}: not text in csv_encoding={encoding} ({error}); correct the "
        "file, or declare its encoding"
    )
