"""Explains from the first bytes of a file why no document can be read from it.

A file that has the name of a shard may be an error page of a server, a Git LFS pointer, an archive
or one large JSON array. Callers that find no document in a file use `explain_no_document`, so that
training, evaluation, annotation and tables report the same cause and remedy.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from typing import BinaryIO, NamedTuple

import msgspec

from bsmeta.core.errors import DataError, format_value
from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.core.printable import make_printable
from bsmeta.data.io.compression import GZIP_MAGIC, LFS_POINTER, ZSTD_MAGIC, DamagedFileError
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import open_file, read_shard_content
from bsmeta.data.io.lines import BYTE_ORDER_MARK
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import PARQUET, is_parquet
from bsmeta.metadata.records import UNREADABLE

MAX_SEARCHED_LINES = 2048
"""Maximum number of first lines that are searched for a JSON object."""

_SQLITE_MAGIC = b"SQLite format 3\0"
_LFS_NAME = "a Git LFS pointer"
_PARQUET_NAME = "a Parquet file"
_ZSTD_NAME = "a Zstandard file"

FORMAT_NAMES = {
    b"PAR1": _PARQUET_NAME,
    b"ARROW1": "an Arrow file",
    LFS_POINTER: _LFS_NAME,
    b"PK\x05\x06": "an empty ZIP archive",
    b"PK\x03\x04": "a ZIP archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    _SQLITE_MAGIC: "an SQLite database",
    b"%PDF": "a PDF file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    ZSTD_MAGIC: _ZSTD_NAME,
    b"WARC/": "a WARC file",
}
"""Names of formats, by the first bytes of a file."""

_REQUIRED_SUFFIXES = {_PARQUET_NAME: PARQUET, _ZSTD_NAME: ".zst"}
"""The suffixes of files in formats that can be read."""

_REMEDIES = {
    _PARQUET_NAME: f"rename it so that its name ends in {PARQUET}",
    _ZSTD_NAME: "rename it so that its name ends in .zst",
    _LFS_NAME: "fetch its content with git lfs pull",
    "a WARC file": "make shards of its pages with bsmeta annotate",
}
_MARKUP = re.compile(rb"\s*(<!doctype|<html|<head|<\?xml)", re.IGNORECASE)
_UTF16_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_NUM_HEAD_BYTES = 1 << 12  # of a file, examined
_MAX_BLANK_BYTES = 1 << 20  # of content, searched for a visible character
_MAX_QUOTED_CHARS = 40  # of a file, in a message


class _Object(msgspec.Struct):
    """A JSON object with any columns."""


_OBJECT_DECODER = ForeignDecoder(_Object)


class FileStart(NamedTuple):
    """A description of a file without documents, for a message.

    Attributes:
        description: A verb phrase about the file, such as `is a PDF file`.
        remedy: Advice for the user, as an imperative.
        is_recognized: Whether the file is in a known other format. Otherwise, it may be a file of
            documents that is empty, or whose first lines are damaged.
    """

    description: str
    remedy: str
    is_recognized: bool = True

    def __str__(self) -> str:
        return f"{self.description}; {self.remedy}"


_IN_UTF16 = FileStart("is encoded in UTF-16", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")


def explain_not_utf8(content: bytes, error: UnicodeDecodeError) -> FileStart:
    """Describes a text that is not in UTF-8: as UTF-16, or by its first line in another encoding.

    Args:
        error: The error in decoding the whole content.
    """
    if content.startswith(_UTF16_BYTE_ORDER_MARKS):
        return _IN_UTF16
    line = content.count(b"\n", 0, error.start) + 1
    return FileStart(
        f"is not in UTF-8 in line {line:,}",
        "convert it from its encoding, such as CP1252 (iconv -f CP1252 -t UTF-8)",
    )


def has_document(path: str | FileRef) -> bool:
    """Returns whether one of the first lines of a shard is a JSON object, or a Parquet row.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If the file is remote and cannot be read.
    """
    with contextlib.closing(open_shard(path, columns=())) as reader:
        while reader.line < MAX_SEARCHED_LINES:
            lines = reader.read(reader.line, 1)
            if not lines:
                return False
            if is_parquet(path) or _is_object(bytes(lines[0])):
                return True
    return False


def explain_no_document(path: str | FileRef) -> FileStart | None:
    """Describes a file without documents; returns None if it has documents.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If the file is remote and cannot be read.
    """
    return None if has_document(path) else describe_start(path)


def refuse_other_format(path: str | FileRef, key: str) -> None:
    """Checks that a file of documents is not in a recognized other format.

    Files that are empty, or whose first lines are damaged, are accepted.

    Args:
        key: The configuration key that names the file, for the message.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If the file is in another format, or remote and cannot be read.
    """
    start = explain_no_document(path)
    if start is not None and start.is_recognized:
        raise DataError(f"{key}: {path} {start}")


def describe_start(path: str | FileRef) -> FileStart:
    """Describes a file from which no document can be read.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If the file is remote and cannot be read.
    """
    with open_file(path) as file:
        head = file.read(_NUM_HEAD_BYTES)
        wrong_format = _find_wrong_format(path, head)
        if wrong_format is not None:
            return wrong_format

        # From here on, the file may be in the format that its suffix names.
        if is_parquet(path):
            return _describe_table(path)
        if _has_suffix(path, ".gz") and not head.startswith(GZIP_MAGIC):
            return FileStart(
                "is not compressed with gzip, although its name ends in .gz "
                f"({_quote_start(head)})",
                "rename or compress it",
            )
        file.seek(0)
        content, damage = _read_start(path, file)
    return _describe_content(path, content, damage)


def _find_wrong_format(path: str | FileRef, head: bytes) -> FileStart | None:
    """Describes a file that is empty or in another format than its suffix names; otherwise None.

    Args:
        head: The first bytes of the file, which may be compressed.
    """
    if not head:
        return FileStart("is empty (0 bytes)", "write or download it again", is_recognized=False)

    format_name = find_format_name(head)
    if format_name is not None:
        suffix = _REQUIRED_SUFFIXES.get(format_name)
        if suffix is None or not _has_suffix(path, suffix):
            remedy = _REMEDIES.get(format_name, "convert it to lines of JSON, one object each")
            return FileStart(f"is {format_name}", remedy)

    if head.startswith(GZIP_MAGIC) and not _has_suffix(path, ".gz"):
        return FileStart("is compressed with gzip", "rename it so that its name ends in .gz")
    if is_markup(head):
        return FileStart(
            f"is an HTML or XML page ({_quote_start(head)}), as servers send instead of a file",
            "download it again",
        )
    return None


def find_format_name(head: bytes) -> str | None:
    """Returns the name of the binary format of a file by its first bytes; None if it may be text.

    The name begins with an article, for messages.
    """
    for magic, name in FORMAT_NAMES.items():
        if head.startswith(magic):
            return name
    return None


def is_sqlite_start(head: bytes) -> bool:
    """Returns whether a file with these first bytes is an SQLite database."""
    return head.startswith(_SQLITE_MAGIC)


def is_markup(head: bytes) -> bool:
    """Returns whether a file with these first bytes is an HTML or XML page."""
    return _MARKUP.match(head.removeprefix(BYTE_ORDER_MARK)) is not None


def _read_start(path: str | FileRef, file: BinaryIO) -> tuple[bytes, str]:
    """Reads the beginning of a file's decompressed content, up to some visible characters.

    Returns:
        The first bytes, and the damage at which reading stopped ("" if none).
    """
    content = b""
    try:
        for block in read_shard_content(path, file):
            content += block
            if len(content) >= _MAX_BLANK_BYTES or len(content.lstrip()) >= _NUM_HEAD_BYTES:
                break
    except (DamagedFileError, OSError) as error:
        return content, str(error)
    return content, ""


def _describe_table(path: str | FileRef) -> FileStart:
    """Describes a Parquet file without readable rows."""
    with contextlib.closing(open_shard(path, columns=())) as reader:
        reader.read(0, 1)
        damage = reader.damage
    if damage:
        return FileStart(f"cannot be read ({damage})", "replace it", is_recognized=False)
    return FileStart(
        "is a Parquet table without rows", "write or download it again", is_recognized=False
    )


def _describe_content(path: str | FileRef, content: bytes, damage: str) -> FileStart:
    """Describes a file that is not in a known binary format.

    Args:
        content: The first bytes of its decompressed content.
        damage: Why no more bytes can be read; "" if they can.
    """
    text = content.removeprefix(BYTE_ORDER_MARK).lstrip()
    if not text and damage:
        return FileStart(f"cannot be read ({damage})", "replace it", is_recognized=False)
    if not text:
        extent = "only blank lines" if content else "no content"
        return FileStart(f"has {extent}", "write or download it again", is_recognized=False)

    if text.startswith(_UTF16_BYTE_ORDER_MARKS):
        return _IN_UTF16
    if is_markup(text):
        return FileStart(f"is an HTML or XML page ({_quote_start(text)})", "download it again")

    if text.startswith(b"["):
        return FileStart(
            f"is a JSON array ({_quote_start(text)}), not lines of one JSON object each",
            f"convert it: {_format_conversion_command(path, '.[]')}",
        )
    if text.startswith(b"{"):
        return FileStart(
            f"has JSON objects that extend over several lines ({_quote_start(text)})",
            f"write each on one line: {_format_conversion_command(path, '.')}",
        )
    return FileStart(
        f"has no JSON object ({_quote_start(text)})",
        "expected lines of one JSON object each",
        is_recognized=False,
    )


def _format_conversion_command(path: str | FileRef, jq_filter: str) -> str:
    """Returns a shell command that converts a file to lines of JSON in a new file.

    Args:
        jq_filter: Selects the objects to write, such as `.[]`.
    """
    name = os.path.basename(str(path))
    stem, suffix = os.path.splitext(name)
    decompress = {".gz": "gzip -dc", ".zst": "zstd -dc"}.get(suffix)
    if decompress is None:
        stem = name
    new_name = f"{stem.removesuffix('.json').removesuffix('.jsonl')}.lines.jsonl"

    quoted_name = shlex.quote(name)
    quoted_new_name = shlex.quote(new_name)
    convert = f"jq -c {shlex.quote(jq_filter)}"
    if decompress is None:
        return f"{convert} {quoted_name} > {quoted_new_name}"
    return f"{decompress} {quoted_name} | {convert} > {quoted_new_name}"


def _quote_start(head: bytes) -> str:
    """Returns `it begins with "…"`, with the first characters of a file on one line."""
    text = make_printable(head[:_NUM_HEAD_BYTES].decode(errors="replace"))
    one_line = " ".join(text.split())
    return f"it begins with {format_value(one_line[:_MAX_QUOTED_CHARS].rstrip())}"


def _is_object(line: bytes) -> bool:
    """Returns whether a line is a JSON object."""
    try:
        _OBJECT_DECODER.decode(line)
    except UNREADABLE:
        return False
    return True


def _has_suffix(path: str | FileRef, suffix: str) -> bool:
    return str(path).endswith(suffix)
