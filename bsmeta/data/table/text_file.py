"""Opens text files of unknown origin: detects compression, encoding and other formats."""

from __future__ import annotations

import codecs
import io
import os
import re
from dataclasses import dataclass, field
from gzip import BadGzipFile
from pathlib import Path
from typing import Any, BinaryIO, cast

from isal import igzip, isal_zlib

from bsmeta.core.errors import ConfigurationError, DataError, suggest_nearest
from bsmeta.core.progress import report_progress
from bsmeta.data.io.compression import GZIP_MARK
from bsmeta.data.io.file_start import find_format_name, is_markup, is_sqlite_start

GZIP_ERRORS: Any = (EOFError, BadGzipFile, isal_zlib.error)  # zlib's error has no type
AUTO = "auto"

_BLOCK = 1 << 20  # bytes
_HEAD = 1 << 16  # first bytes of a file, by which other formats are recognized
_REPORTED = 1000  # lines between reports of progress
_LISTED = 5  # lines that a message lists
_SQLITE_BYTES = 16  # first bytes that identify a database
_MOST_CONTROLS = 20  # control characters in `_HEAD`; a file with more is not text
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, because it begins with the mark of UTF-16
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
_JSON = re.compile(rb'\s*(\{|\[\s*[\{\[])\s*("|\}|\])')
_CONTROLS = bytes({*range(9), *range(14, 27), *range(28, 32)})


def open_bytes(path: Path) -> tuple[BinaryIO, io.BufferedReader]:
    """Opens a file that may be compressed with gzip.

    Returns:
        The uncompressed content, and the file on disk, whose position shows the progress.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a CSV file")
    if path.exists() and not path.is_file():
        raise DataError(
            f"{path} is a pipe or a device, and is read more than once; write it to a file first"
        )
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed by the caller
    except OSError as error:
        near = suggest_nearest(path.name, os.listdir(path.parent) if path.parent.is_dir() else ())
        raise DataError(f"{path} cannot be read: {error.strerror}{near}") from error

    if file.peek(2)[:2] == GZIP_MARK:
        return cast(BinaryIO, igzip.GzipFile(fileobj=file)), file
    return file, file


def is_sqlite(path: Path) -> bool:
    """Returns whether a path names an SQLite database, by the content or else the name."""
    if path.is_file():
        with open_bytes(path)[1] as file:
            return is_sqlite_start(file.peek(_SQLITE_BYTES))
    return path.suffix == ".sqlite"


def open_text(path: Path, encoding: str) -> tuple[io.TextIOWrapper, io.BufferedReader]:
    """Opens a file as text, without translating line ends.

    Returns:
        The text, and the file on disk, whose position shows the progress.
    """
    content, file = open_bytes(path)
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # it skips the mark, if there is one
    return io.TextIOWrapper(content, encoding=encoding, errors="strict", newline=""), file


def check_encoding(encoding: str) -> None:
    """Refuses an unknown encoding."""
    try:
        "".encode("utf-8" if encoding == AUTO else encoding)
    except LookupError as error:
        raise ConfigurationError(
            f"csv_encoding={encoding}: there is no such encoding; expected auto, or one of "
            "Python's, such as utf-8, utf-16, cp1252, latin-1"
        ) from error


def refuse_other_formats(path: Path) -> None:
    """Refuses a file that is no table of text, such as Parquet, a workbook or a web page."""
    content, file = open_bytes(path)
    with file, content:
        try:
            head = content.read(_HEAD)
        except GZIP_ERRORS as error:
            raise DataError(f"{path}: damaged gzip data: {error}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error

    if head.startswith(tuple(_MARKS)):
        return

    format_name = find_format_name(head)
    if format_name is not None:
        remedy = f" ({_TABLE_REMEDIES[format_name]})" if format_name in _TABLE_REMEDIES else ""
        raise DataError(
            f"{path} is {format_name}{remedy}; expected a CSV file, or one compressed with gzip"
        )
    if is_markup(head):
        raise DataError(f"{path} is an HTML or XML page; expected a CSV file")
    if _JSON.match(head):
        raise DataError(f"{path} begins like JSON; expected a CSV file with a header")

    controls = len(head) - len(head.translate(None, _CONTROLS))
    if controls > _MOST_CONTROLS and _detect_utf16(head) is None:
        raise DataError(f"{path} is a binary file; expected a CSV file")


def _detect_utf16(head: bytes) -> str | None:
    """Returns the encoding of UTF-16 without a mark: every other byte of Western text is 0."""
    even_zeros = head[::2].count(0)
    odd_zeros = head[1::2].count(0)
    most_zeros = len(head) // 4
    if odd_zeros > most_zeros and even_zeros == 0:
        return "utf-16-le"
    if even_zeros > most_zeros and odd_zeros == 0:
        return "utf-16-be"
    return None


def find_encoding(path: Path) -> tuple[str, str | None]:
    """Detects a file's encoding; the whole file is read.

    Returns:
        The encoding, and a note for the user if it is not UTF-8.

    Raises:
        DataError: If the file is neither UTF-8, UTF-16 nor UTF-32. Other encodings cannot be
            recognized by the content, and a wrong guess would change the texts.
    """
    content, file = open_bytes(path)
    with file, content:
        head = content.peek(_BLOCK)  # type: ignore[attr-defined]
        for mark, name in _MARKS.items():
            if head.startswith(mark):
                note = None if name == "utf-8-sig" else f"encoding: {name}, from its mark"
                return name, note

        utf16 = _detect_utf16(head)
        if utf16 is not None:
            return utf16, f"encoding: {utf16}, because every other byte is 0"

        survey = _survey_utf8(content)

    if not survey.invalid_lines:
        return "utf-8", None

    plural = "s" if survey.invalid_lines > 1 else ""
    lines = f"line{plural} {', '.join(f'{line:,}' for line in survey.first_invalid)}"
    unlisted = survey.invalid_lines - len(survey.first_invalid)
    suffix = f" and {unlisted:,} more" if unlisted else ""
    if survey.valid_lines > survey.invalid_lines:
        fix = (
            "other lines have characters in valid UTF-8, so these are damaged: correct them, or "
            "declare the encoding of the whole file"
        )
    else:
        fix = "declare the encoding that the file has"
    raise DataError(
        f"{path}: not UTF-8 in {lines}{suffix}; {fix}: csv_encoding=NAME, such as cp1252, "
        "shift_jis, gb18030, koi8-r"
    )


@dataclass
class _UTF8Survey:
    """The lines of a file that are UTF-8, and those that are not.

    Attributes:
        first_invalid: The numbers of the first lines that are not UTF-8, from 1.
        invalid_lines: Number of lines that are not UTF-8.
        valid_lines: Number of lines in UTF-8 with characters beyond ASCII; a line longer than a
            block may count several times.
    """

    first_invalid: list[int] = field(default_factory=list)
    invalid_lines: int = 0
    valid_lines: int = 0


def _survey_utf8(content: BinaryIO) -> _UTF8Survey:
    """Decodes all lines as UTF-8."""
    survey = _UTF8Survey()
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    last_invalid = 0  # a line in several parts counts once
    parts = 0
    try:
        while True:
            part = content.readline(_BLOCK)  # a longer line is read in several parts
            parts += 1
            if parts % _REPORTED == 0:
                report_progress()

            is_end = part.endswith(b"\n") or not part
            try:
                # Characters beyond ASCII take more than one byte.
                survey.valid_lines += len(decoder.decode(part, final=is_end)) < len(part)
            except UnicodeDecodeError:
                decoder.reset()
                if line != last_invalid:
                    last_invalid = line
                    survey.invalid_lines += 1
                    if survey.invalid_lines <= _LISTED:
                        survey.first_invalid.append(line)

            if not part:
                break
            line += is_end
    except GZIP_ERRORS:
        pass  # reported with the number of the row when the rows are read
    return survey


def make_not_text_error(path: Path, encoding: str, line: int, error: UnicodeError) -> DataError:
    """Returns the error for a file that is not in an encoding."""
    return DataError(
        f"{path}: after line {line:,}: not text in csv_encoding={encoding} ({error}); correct the "
        "file, or declare the encoding that it has"
    )
