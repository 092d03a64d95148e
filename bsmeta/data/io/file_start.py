"""Why no document can be read from a file: its first bytes, described for a message.

A server's error page, a pointer of Git LFS, an archive or one large JSON array often has the name
of a file of documents. Whoever finds no document in a file asks `explain_no_document` here, so that
training, evaluation, annotation and tables report the file itself, and how to repair it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from typing import BinaryIO, NamedTuple

import msgspec

from bsmeta.core.errors import DataError, show
from bsmeta.core.parsing import JSONDecoder
from bsmeta.core.printable import printable
from bsmeta.data.io.compression import GZIP_MARK, LFS_POINTER, DamagedFileError
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.files import open_file, shard_content
from bsmeta.data.io.lines import BYTE_ORDER_MARK
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import PARQUET, is_parquet
from bsmeta.metadata.records import UNREADABLE

LINES_LOOKED_AT = 2048
"""First lines among which a file of documents must have one that is a JSON object."""

ZSTANDARD_MARK = b"\x28\xb5\x2f\xfd"

_SQLITE = b"SQLite format 3\0"
_LFS_NAME = "a pointer of Git LFS"
FORMATS = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    LFS_POINTER: _LFS_NAME,
    b"PK\x05\x06": "an empty ZIP archive",
    b"PK\x03\x04": "a ZIP archive or an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    _SQLITE: "an SQLite database",
    b"%PDF": "a PDF file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    ZSTANDARD_MARK: "a Zstandard file",
    b"WARC/": "a WARC file",
}
"""First bytes -> the name of the format."""

_SUFFIXES = {"a Parquet file": (PARQUET,), "a Zstandard file": (".zst",)}  # read by these names
_NO_SUFFIX: tuple[str, ...] = ()
_REMEDIES = {
    **{
        name: f"rename it so that its name ends in {suffix}"
        for name, (suffix,) in _SUFFIXES.items()
    },
    _LFS_NAME: "fetch its content with git lfs pull",
    "a WARC file": "make shards of its pages with bsmeta annotate",
}
_MARKUP = re.compile(rb"\s*(<!doctype|<html|<head|<\?xml)", re.IGNORECASE)
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_HEAD = 1 << 12  # bytes
_CONTENT_LOOKED_AT = 1 << 20  # bytes, which may all be blank
_SHOWN = 40  # characters of a file in a message
_OBJECT = JSONDecoder(dict[str, msgspec.Raw])


class FileStart(NamedTuple):
    """How a file without documents begins.

    Attributes:
        content: A predicate of the file, such as `is empty`.
        remedy: What the user can do, as an imperative.
        is_recognized: Whether it is a format of its own; otherwise it may be a file of documents
            whose first lines are damaged.
    """

    content: str
    remedy: str
    is_recognized: bool = True

    def __str__(self) -> str:
        return f"{self.content}; {self.remedy}"


def has_document(path: str | FileRef) -> bool:
    """Whether one of the first lines of a shard is a JSON object, or a Parquet file has a row.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If the file is remote and cannot be read.
    """
    with contextlib.closing(open_shard(path, columns=())) as reader:
        while reader.line < LINES_LOOKED_AT and (lines := reader.read(reader.line, 1)):
            if is_parquet(path) or _is_object(bytes(lines[0])):
                return True
    return False


def explain_no_document(path: str | FileRef) -> FileStart | None:
    """Describes how a file begins; None if it has a document.

    Raises:
        OSError: If a local file cannot be opened.
        DataError: If the file is remote and cannot be read.
    """
    return None if has_document(path) else describe_start(path)


def check_has_document(path: str | FileRef, key: str) -> None:
    """Refuses a file of a recognized format that is not a file of documents.

    Files that are empty, or whose first lines are damaged, are accepted.

    Args:
        key: The configuration key that names the file.

    Raises:
        DataError: If the file is of another format.
    """
    start = explain_no_document(path)
    if start is not None and start.is_recognized:
        raise DataError(f"{key}: {path} {start}")


def describe_start(path: str | FileRef) -> FileStart:
    """Describes the first bytes of a file from which no document can be read."""
    with open_file(path) as file:
        head = file.read(_HEAD)
        if not head:
            return FileStart("is empty (0 bytes)", "write or download it again", False)
        name = format_name(head)
        if name is not None and not _ends_in(path, _SUFFIXES.get(name, _NO_SUFFIX)):
            remedy = _REMEDIES.get(name, "convert it to lines of JSON, one object each")
            return FileStart(f"is {name}", remedy)
        if head.startswith(GZIP_MARK) and not _ends_in(path, ".gz"):
            return FileStart("is compressed with gzip", "rename it so that its name ends in .gz")
        if is_markup(head):
            return FileStart(
                f"is an HTML or XML page ({_begins(head)}), as servers send instead of a file",
                "download it again",
            )
        if is_parquet(path):
            return _describe_table(path)
        if _ends_in(path, ".gz") and not head.startswith(GZIP_MARK):
            return FileStart(
                f"is not compressed with gzip, although its name ends in .gz ({_begins(head)})",
                "rename or compress it",
            )
        file.seek(0)
        content, damage = _first_content(path, file)
    return _describe_content(path, content, damage)


def format_name(head: bytes) -> str | None:
    """The name of the format that a file of these first bytes has; None if it may be text."""
    return next((name for mark, name in FORMATS.items() if head.startswith(mark)), None)


def is_sqlite_start(head: bytes) -> bool:
    """Whether a file of these first bytes is an SQLite database."""
    return head.startswith(_SQLITE)


def is_markup(head: bytes) -> bool:
    """Whether a file of these first bytes is an HTML or XML page."""
    return _MARKUP.match(head.removeprefix(BYTE_ORDER_MARK)) is not None


def _first_content(path: str | FileRef, file: BinaryIO) -> tuple[bytes, str]:
    """The first bytes of the uncompressed content, and why there are no more of them, if known."""
    content = b""
    try:
        for block in shard_content(path, file):
            content += block
            if len(content) >= _CONTENT_LOOKED_AT or len(content.lstrip()) >= _HEAD:
                break
    except (DamagedFileError, OSError) as error:
        return content, str(error)
    return content, ""


def _describe_table(path: str | FileRef) -> FileStart:
    with contextlib.closing(open_shard(path, columns=())) as reader:
        reader.read(0, 1)
        damage = reader.damage
    if damage:
        return FileStart(f"cannot be read ({damage})", "replace it", False)
    return FileStart("is a Parquet table without rows", "write or download it again", False)


def _describe_content(path: str | FileRef, content: bytes, damage: str) -> FileStart:
    """Describes the first bytes of the content of a file that is no known binary format."""
    text = content.removeprefix(BYTE_ORDER_MARK).lstrip()
    if not text and damage:
        return FileStart(f"cannot be read ({damage})", "replace it", False)
    if not text:
        contents = "only blank lines" if content else "no content"
        return FileStart(f"has {contents}", "write or download it again", False)
    if text.startswith(_UTF16_MARKS):
        return FileStart("is encoded in UTF-16", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    if is_markup(text):
        return FileStart(f"is an HTML or XML page ({_begins(text)})", "download it again")
    if text.startswith(b"["):
        return FileStart(
            f"is a JSON array ({_begins(text)}), not lines of one JSON object each",
            f"convert it: {_conversion(path, '.[]')}",
        )
    if text.startswith(b"{"):
        return FileStart(
            f"has JSON objects that extend over several lines ({_begins(text)})",
            f"write each on one line: {_conversion(path, '.')}",
        )
    return FileStart(
        f"has no JSON object ({_begins(text)})", "expected lines of one JSON object each", False
    )


def _conversion(path: str | FileRef, jq_filter: str) -> str:
    """A command that writes lines of JSON into a new file."""
    name = os.path.basename(str(path))
    stem, suffix = os.path.splitext(name)
    unpack = {".gz": "gzip -dc", ".zst": "zstd -dc"}.get(suffix)
    if unpack is None:
        stem = name
    new_name = f"{stem.removesuffix('.json').removesuffix('.jsonl')}.lines.jsonl"
    source, target = shlex.quote(name), shlex.quote(new_name)
    convert = f"jq -c {shlex.quote(jq_filter)}"
    if unpack is None:
        return f"{convert} {source} > {target}"
    return f"{unpack} {source} | {convert} > {target}"


def _begins(head: bytes) -> str:
    """`it begins with "…"`, with only the first characters of a file, on one line."""
    text = printable(head[:_HEAD].decode(errors="replace"))
    return f"it begins with {show(' '.join(text.split())[:_SHOWN].rstrip())}"


def _is_object(line: bytes) -> bool:
    try:
        _OBJECT.decode(line)
    except UNREADABLE:
        return False
    return True


def _ends_in(path: str | FileRef, suffix: str | tuple[str, ...]) -> bool:
    return str(path).endswith(suffix)
