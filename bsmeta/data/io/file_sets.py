"""Sets of files that a manifest lists: downloaded, verified, unpacked, and complete in the end.

    {"files": [{"path": "wiki.tar.gz", "address": "https://…/wiki.tar.gz", "bytes": 17179869184,
                "sha256": "…", "unpack": "wiki_data", "unpacked_bytes": 161061273600}]}

An address may be relative: to a mirror, else to the folder of the manifest. `.download/` in the
target folder records what is complete, so that the next call does what is left.

Bytes are appended to `FILE.part`, from http(s) or from the disk; the next call continues there. A
file gets its name when its hash is right. pooch would begin an interrupted download again at the
first byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import httpx2
import msgspec
from filelock import FileLock, Timeout

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import format_bytes, free_bytes, name_fault, path_inside
from bsmeta.core.parsing import decode_json, decode_yaml, parse_json
from bsmeta.core.secrets import hide_values, shown_url
from bsmeta.data.io.archives import SUFFIXES, unpack
from bsmeta.data.io.remote import (
    CONTENT_RANGE,
    Retries,
    TransientError,
    check_encoding,
    check_transient,
    shown_server,
    steady,
    transport_errors,
)

STATE = ".download"

Advance = Callable[[int], None]
"""Called with the number of bytes that are done."""

_BLOCK = 1 << 20
_ADVICE = "see whether the address can be reached from here, and start again: it continues"


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A file of a manifest; its string is its address as messages show it.

    Attributes:
        path: Its name in the target folder.
        address: http(s)://, file://, or relative.
        sha256: Its hash, in hexadecimal.
        unpack: The folder (in the target folder) that an archive is unpacked to.
        unpacked_bytes: The bytes of its files together, at most.
    """

    path: str
    address: str
    bytes: int
    sha256: str
    unpack: str | None = None
    unpacked_bytes: int | None = None

    def __str__(self) -> str:
        return shown_url(self.address)

    @property
    def target(self) -> str:
        """The path that exists once the entry is complete."""
        return self.path if self.unpack is None else self.unpack


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    files: list[Entry]


def read_manifest(path: Path, mirror: str | None = None) -> list[Entry]:
    """The files of a manifest, with absolute addresses.

    Args:
        path: A JSON or YAML file.
        mirror: What relative addresses begin with; None: the folder of the manifest.

    Raises:
        DataError: If it cannot be read.
        ConfigurationError: With all problems of its content.
    """
    try:
        content = path.read_bytes()
        decode = decode_json if path.suffix == ".json" else decode_yaml
        entries = decode(content, _Manifest).files
    except OSError as error:
        raise DataError(f"manifest={path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"manifest={path}: {error}", ["manifest"]) from error
    base = f"{(mirror or path.resolve().parent.as_uri()).rstrip('/')}/"
    problems = _resolve_addresses(entries, base)
    if not problems:
        problems = [
            f"files[{number}]: {problem}"
            for number, entry in enumerate(entries)
            for problem in _problems(entry)
        ]
        problems += _collisions([name for entry in entries for name in {entry.path, entry.target}])
    if problems:
        listed = "\n  ".join(problems)
        raise ConfigurationError(f"manifest={path}:\n  {listed}", ["manifest"])
    return entries


def _resolve_addresses(entries: Sequence[Entry], base: str) -> list[str]:
    """Make the addresses absolute, and return which of them are no URLs."""
    problems = []
    for number, entry in enumerate(entries):
        entry.sha256 = entry.sha256.lower()
        try:
            entry.address = urljoin(base, entry.address)
            hide_values(entry.address)
        except ValueError as error:  # such as a [ without its ]
            problems.append(f"files[{number}]: the address is no URL ({error})")
    return problems


def _problems(entry: Entry) -> Iterator[str]:
    for name in {entry.path: None, entry.target: None}:
        fault = name_fault(name)
        if fault is None and name.split("/")[0] == STATE:
            fault = f"{STATE} holds the state of the download"
        if fault is not None:
            yield f"{name!r}: {fault}; expected a path in the target folder"
    if urlsplit(entry.address).scheme not in ("http", "https", "file"):
        yield f"address {str(entry)!r}: expected http(s)://, file://, or a relative address"
    if not re.fullmatch("[0-9a-f]{64}", entry.sha256):
        yield f"sha256 {entry.sha256!r}: expected 64 hexadecimal digits"
    if entry.bytes < 0 or (entry.unpacked_bytes or 0) < 0:
        yield "negative number of bytes"
    if (entry.unpack is None) != (entry.unpacked_bytes is None):
        yield "unpack and unpacked_bytes belong together"
    if entry.unpack is not None and not entry.path.endswith(SUFFIXES):
        yield f"{entry.path!r} is unpacked by its suffix: one of {', '.join(SUFFIXES)}"


def _collisions(names: list[str]) -> Iterator[str]:
    yield from (f"{name} is there twice" for name in sorted({*names}) if names.count(name) > 1)
    for name in names:
        for parent in map(str, PurePosixPath(name).parents):
            if parent in names:
                yield f"{name} is in {parent}, which is a file or an archive's folder"


@dataclass(frozen=True)
class FileSet:
    """The files of a manifest in a folder.

    Attributes:
        retries: Consecutive failures after which a download is given up.
        timeout: Seconds without data that are a failure.
        advance: Called with what is done, the bytes that are done, and all bytes.
    """

    entries: list[Entry]
    folder: Path
    keep_archives: bool
    retries: int
    timeout: float
    advance: Callable[[str, int, int], None] = lambda *_: None

    def fetch(self) -> int:
        """Downloads, verifies and unpacks whatever is not complete yet.

        Returns:
            The number of files that were not complete before.

        Raises:
            ConfigurationError: If the disk is too small, or something else is in the way.
            DataError: If a file cannot be had, or is another one.
        """
        try:
            (self.folder / STATE).mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / STATE / "lock")
            with lock.acquire(timeout=0):
                left = [entry for entry in self.entries if not self._is_complete(entry)]
                self._check(left)
                for entry in left:
                    self._fetch(entry)
                return len(left)
        except Timeout as error:
            raise ConfigurationError(
                f"folder={self.folder}: another process downloads to it; wait for its end"
            ) from error
        except OSError as error:
            raise ConfigurationError(f"folder={self.folder} cannot be written: {error}") from error

    def _check(self, left: list[Entry]) -> None:
        """Refuses what is in the way, and a disk that is too small for what is left."""
        problems = [
            f"{path} is there, but not from this manifest; move it away"
            for entry in left
            if (path := self._path(entry.target)).exists()
        ]
        if problems:
            raise ConfigurationError("\n".join(problems))
        compressed = sum(entry.bytes - self._bytes_of(entry) for entry in left)
        unpacked = sum(entry.unpacked_bytes or 0 for entry in left)
        free = free_bytes(self.folder)
        if free < compressed + unpacked:
            raise ConfigurationError(
                f"folder={self.folder}: {format_bytes(free)} are free, and "
                f"{format_bytes(compressed + unpacked)} are needed ({format_bytes(compressed)} to "
                f"download, {format_bytes(unpacked)} unpacked); nothing was downloaded",
                ["folder"],
            )

    def _path(self, name: str) -> Path:
        """The path of a name of the manifest, in the target folder."""
        return path_inside(self.folder, name, "the manifest")

    def _bytes_of(self, entry: Entry) -> int:
        """The bytes of a file that are there already."""
        paths = self._path(entry.path), self._path(f"{entry.path}.part")
        return min(entry.bytes, max((p.stat().st_size for p in paths if p.is_file()), default=0))

    def _fetch(self, entry: Entry) -> None:
        path = self._path(entry.path)
        if not self._is_there(entry):
            advance = self._shown("downloading", entry, entry.bytes)
            download(entry, path, retries=self.retries, timeout=self.timeout, advance=advance)
        if entry.unpack is not None and entry.unpacked_bytes is not None:
            advance = self._shown("unpacking", entry, entry.unpacked_bytes)
            unpack(path, self._path(entry.unpack), entry.unpacked_bytes, advance)
            if not self.keep_archives:
                path.unlink()
        record = self._record(entry)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(self._found(entry)))

    def _is_complete(self, entry: Entry) -> bool:
        with contextlib.suppress(OSError, ValueError):
            if parse_json(self._record(entry).read_text()) == self._found(entry):
                return True
        # A copy of the folder may have other times: the content decides.
        return entry.unpack is None and self._is_there(entry)

    def _is_there(self, entry: Entry) -> bool:
        """Whether the file of an entry is in the folder, by its content."""
        path = self._path(entry.path)
        if not path.is_file() or path.stat().st_size != entry.bytes:
            return False
        with open(path, "rb") as file:
            blocks = iter(lambda: file.read(_BLOCK), b"")
            return _sha256(blocks, self._shown("verifying", entry, entry.bytes)) == entry.sha256

    def _shown(self, what: str, entry: Entry, total: int) -> Advance:
        return lambda done: self.advance(f"{what} {entry.path}", done, total)

    def _record(self, entry: Entry) -> Path:
        return self._path(f"{STATE}/{entry.target}.json")

    def _found(self, entry: Entry) -> dict[str, Any]:
        """What identifies a complete file or folder; in a folder, files may be added later."""
        status = os.stat(self._path(entry.target))
        changed = status.st_mtime_ns if entry.unpack is None else None
        return {"sha256": entry.sha256, "unpack": entry.unpack, "changed": changed}


def download(
    entry: Entry, path: Path, *, retries: int, timeout: float, advance: Advance = lambda _: None
) -> None:
    """Downloads a file, or the rest of it; see `FileSet` for the arguments.

    Raises:
        DataError: If it cannot be had, or is another file than expected.
    """
    part = path.with_name(f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    resumed = part.exists() and part.stat().st_size > 0

    def rest(start: int) -> Iterator[bytes]:
        open_from = partial(_opened, entry, timeout=timeout)
        attempts = Retries(retries, _ADVICE)
        return attempts.read(str(entry), open_from, start, entry.bytes, entry.bytes)

    found = _sha256(filled(part, rest), advance)
    if found != entry.sha256 and resumed:  # what an earlier call left may be of another file
        part.unlink()
        found = _sha256(filled(part, rest), advance)
    if found != entry.sha256:
        part.unlink()
        raise DataError(
            f"{entry} is another file than expected: its sha256 is {found}, not {entry.sha256}; "
            "correct the manifest, or use another mirror"
        )
    part.replace(path)


def filled(part: Path, rest: Callable[[int], Iterator[bytes]]) -> Iterator[bytes]:
    """The content of a file: what a part of it has, then the rest, which is appended to it.

    Args:
        rest: The content from a byte on.
    """
    with open(part, "a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        while file.tell() < size:
            yield file.read(_BLOCK)
        for block in rest(size):
            file.write(block)
            yield block
        file.flush()
        os.fsync(file.fileno())


def _sha256(blocks: Iterator[bytes], advance: Advance) -> str:
    found, done = hashlib.sha256(), 0
    for block in blocks:
        found.update(block)
        done += len(block)
        advance(done)
    return found.hexdigest()


@contextlib.contextmanager
def _opened(entry: Entry, start: int, timeout: float) -> Iterator[Iterator[bytes]]:
    """The content of a file from byte `start` on."""
    if urlsplit(entry.address).scheme == "file":
        yield _local_blocks(entry, start)
        return
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with (
        transport_errors(str(entry), shown_server(entry.address)),
        httpx2.stream(
            "GET", entry.address, headers=headers, timeout=timeout, follow_redirects=True
        ) as response,
    ):
        skipped = _checked_start(response, entry, start)
        yield steady(_without_first(response.iter_raw(), skipped), timeout)


def _local_blocks(entry: Entry, start: int) -> Iterator[bytes]:
    path = Path(unquote(urlsplit(entry.address).path))
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            raise DataError(f"{entry} has {size:,} bytes instead of {entry.bytes:,}")
        with open(path, "rb") as file:
            file.seek(start)
            yield from iter(lambda: file.read(_BLOCK), b"")
    except OSError as error:
        raise DataError(f"{entry} cannot be read: {error.strerror}") from error


def _without_first(blocks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for block in blocks:
        yield block[count:]
        count = max(0, count - len(block))


def _checked_start(response: httpx2.Response, entry: Entry, start: int) -> int:
    """How many bytes of a response are before `start`: all, if the server ignores ranges."""
    check_transient(response)
    status = response.status_code
    if status == 416:
        raise DataError(f"{entry} has fewer than {start:,} of {entry.bytes:,} bytes")
    if status not in (200, 206):
        raise DataError(f"{entry}: the server answers HTTP {status}; correct the address")
    check_encoding(response)
    total, skipped = response.headers.get("Content-Length") or "*", start
    if status == 206:
        stated = response.headers.get("Content-Range", "")
        match = CONTENT_RANGE.fullmatch(stated)
        if match is None or int(match[1]) != start:
            raise TransientError(f"another part of the file than requested ({stated})")
        total, skipped = match[3], 0
    if total not in ("*", str(entry.bytes)):
        content = response.headers.get("Content-Type", "no Content-Type")
        raise TransientError(f"{total} bytes ({content}) instead of {entry.bytes}")
    return skipped
