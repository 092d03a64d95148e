"""Text files of unknown origin: whether they are text, compressed with gzip, in which encoding."""

from __future__ import annotations

import codecs
import io
import os
import re
from gzip import BadGzipFile
from pathlib import Path
from typing import Any, BinaryIO, cast

from isal import igzip, isal_zlib

from bsmeta.core.errors import ConfigurationError, DataError, nearest
from bsmeta.core.progress import report_progress
from bsmeta.data.io.compression import GZIP_MARK
from bsmeta.data.io.file_start import find_format_name, is_markup, is_sqlite_start

GZIP_ERRORS: Any = (EOFError, BadGzipFile, isal_zlib.error)  # zlib's error has no type
AUTO = "auto"

_BLOCK = 1 << 20
_REPORTED = 1000  # lines, after which progress is reported
_LISTED = 5  # lines in a message
_SQLITE_BYTES = 16  # that say whether it is a database
_MOST_CONTROLS = 20  # control characters of 64 KB, beyond which it is not text
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_TABLE_REMEDIES = {
    "a pointer of Git LFS": "fetch its content with git lfs pull",
    "a ZIP archive or an Excel workbook": "save the sheet as CSV",
    "an old Excel workbook": "save the sheet as CSV",
    "a bzip2 file": "only gzip is read",
    "an xz file": "only gzip is read",
    "a Zstandard file": "only gzip is read",
}
_JSON = re.compile(rb'\s*(\{|\[\s*[\{\[])\s*("|\}|\])')
_CONTROLS = bytes({*range(9), *range(14, 27), *range(28, 32)})


def open_bytes(path: Path) -> tuple[BinaryIO, io.BufferedReader]:
    """Opens a file, gzip or not: its content, and the file as it is on disk."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a CSV file")
    if path.exists() and not path.is_file():
        raise DataError(
            f"{path} is a pipe or a device, and is read more than once; write it to a file first"
        )
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed by the caller
    except OSError as error:
        near = nearest(path.name, os.listdir(path.parent) if path.parent.is_dir() else ())
        raise DataError(f"{path} cannot be read: {error.strerror}{near}") from error
    is_gzip = file.peek(2)[:2] == GZIP_MARK
    return (cast(BinaryIO, igzip.GzipFile(fileobj=file)) if is_gzip else file), file


def is_sqlite(path: Path) -> bool:
    """Whether a path names an SQLite database, by its content or, if there is no file, its name."""
    if path.is_file():
        with open_bytes(path)[1] as file:
            return is_sqlite_start(file.peek(_SQLITE_BYTES))
    return path.suffix == ".sqlite"


def open_text(path: Path, encoding: str) -> tuple[io.TextIOWrapper, io.BufferedReader]:
    """Opens a file as text, with the line ends that it has, and the file as it is on disk."""
    content, file = open_bytes(path)
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # without the mark, if there is one
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
            head = content.read(1 << 16)
        except GZIP_ERRORS as error:
            raise DataError(f"{path}: damaged gzip data: {error}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error
    if head.startswith(tuple(_MARKS)):
        return
    name = find_format_name(head)
    if name is not None:
        remedy = f" ({_TABLE_REMEDIES[name]})" if name in _TABLE_REMEDIES else ""
        raise DataError(
            f"{path} is {name}{remedy}; expected a CSV file, or one compressed with gzip"
        )
    if is_markup(head):
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


def find_encoding(path: Path) -> tuple[str, str | None]:
    """Detects a file's encoding; returns it with a note for the user. The whole file is read.

    Raises:
        DataError: If it is neither UTF-8, UTF-16 nor UTF-32: in which of the many others, the
            content does not say, and a wrong guess changes the texts.
    """
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
        first, count, valid = _lines_not_utf8(content)
    if not count:
        return "utf-8", None
    lines = f"line{'s' if count > 1 else ''} {', '.join(f'{line:,}' for line in first)}"
    more = f" and {count - len(first):,} more" if count > len(first) else ""
    fix = (
        "other lines have characters in valid UTF-8, so these are damaged: correct them, or "
        "declare the encoding of the whole file"
        if valid > count
        else "declare the encoding that the file has"
    )
    raise DataError(
        f"{path}: not UTF-8 in {lines}{more}; {fix}: csv_encoding=NAME, such as cp1252, shift_jis, "
        "gb18030, koi8-r"
    )


def _lines_not_utf8(content: BinaryIO) -> tuple[list[int], int, int]:
    """The first lines that are not UTF-8, how many are not, and how many are, beyond ASCII."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    first: list[int] = []
    line, last, count, valid, parts = 1, 0, 0, 0, 0
    try:
        while True:
            part = content.readline(_BLOCK)  # a longer line in several parts
            parts += 1
            if parts % _REPORTED == 0:
                report_progress()
            ends = part.endswith(b"\n") or not part
            try:
                valid += len(decoder.decode(part, final=ends)) < len(part)
            except UnicodeDecodeError:
                decoder.reset()
                if line != last:  # a line counts once
                    last, count = line, count + 1
                    first += [line] if count <= _LISTED else []
            if not part:
                break
            line += ends
    except GZIP_ERRORS:
        pass  # reported with the number of the row, when the rows are read
    return first, count, valid


def not_text(path: Path, encoding: str, line: int, error: UnicodeError) -> DataError:
    """The error about a file that is not in an encoding."""
    return DataError(
        f"{path}: after line {line:,}: not text in csv_encoding={encoding} ({error}); correct the "
        "file, or declare the encoding that it has"
    )
