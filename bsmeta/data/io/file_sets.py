"""Downloads, verifies and unpacks the files that a manifest lists.

    {"files": [{"path": "wiki.tar.gz", "address": "https://…/wiki.tar.gz", "bytes": 17179869184,
                "sha256": "…", "unpack": "wiki_data", "unpacked_bytes": 161061273600}]}

An address may be relative to a mirror or, without a mirror, to the folder of the manifest.
`.download/` in the target folder records which entries are complete; rerun the same command to
fetch the others.

Files are fetched over http(s) or copied from the disk into `FILE.part`, which is renamed once its
hash is verified. An interrupted download resumes at the first missing byte (pooch would start
over).
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
from bsmeta.core.files import find_name_fault, format_bytes, join_inside, measure_free_bytes
from bsmeta.core.parsing import decode_json, decode_yaml, parse_json
from bsmeta.core.secrets import declare_secrets_in, format_url
from bsmeta.data.io.archives import SUFFIXES, Advance, unpack
from bsmeta.data.io.remote.store import (
    CONTENT_RANGE,
    Retries,
    TransientError,
    check_encoding,
    check_transient,
    convert_transport_errors,
    format_server,
    refuse_slow_response,
)

STATE_FOLDER = ".download"

_BLOCK_BYTES = 1 << 20
_ADVICE = "check that the address can be reached from here, and run the same command to resume"


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A file in a manifest; `str` returns its address for messages, without secrets.

    Attributes:
        path: Path in the target folder.
        address: http(s)://, file://, or relative.
        bytes: Size of the file.
        sha256: Hash of the file, in hexadecimal.
        unpack: Folder (in the target folder) into which an archive is unpacked.
        unpacked_bytes: Maximum total size of the unpacked files.
    """

    path: str
    address: str
    bytes: int
    sha256: str
    unpack: str | None = None
    unpacked_bytes: int | None = None

    def __str__(self) -> str:
        return format_url(self.address)

    @property
    def target(self) -> str:
        """The path in the target folder that exists once the entry is complete."""
        return self.path if self.unpack is None else self.unpack


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a manifest."""

    files: list[Entry]


def read_manifest(path: Path, mirror: str | None = None) -> list[Entry]:
    """Reads the entries of a manifest, and makes their addresses absolute.

    Args:
        path: A JSON file; any other suffix is read as YAML.
        mirror: Base URL of relative addresses; None is the folder of the manifest.

    Raises:
        DataError: If the manifest cannot be read.
        ConfigurationError: If its content is invalid; lists all problems.
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
        problems = _find_problems(entries)
    if problems:
        problem_list = "\n  ".join(problems)
        raise ConfigurationError(f"manifest={path}:\n  {problem_list}", ["manifest"])
    return entries


def _resolve_addresses(entries: Sequence[Entry], base: str) -> list[str]:
    """Makes addresses absolute and hashes lower-case, in place.

    Returns:
        A problem for each address that is not a URL.
    """
    problems = []
    for index, entry in enumerate(entries):
        entry.sha256 = entry.sha256.lower()
        try:
            entry.address = urljoin(base, entry.address)
            declare_secrets_in(entry.address)
        except ValueError as error:  # such as an unbalanced bracket
            problems.append(f"files[{index}]: the address is not a URL ({error})")
    return problems


def _find_problems(entries: Sequence[Entry]) -> list[str]:
    """Returns the problems of all entries, and conflicts between their paths."""
    problems: list[str] = []
    names: list[str] = []
    for index, entry in enumerate(entries):
        problems += [f"files[{index}]: {problem}" for problem in _find_entry_problems(entry)]
        names += {entry.path, entry.target}  # one name if nothing is unpacked
    problems += _find_name_conflicts(names)
    return problems


def _find_entry_problems(entry: Entry) -> Iterator[str]:
    """Yields the problems of a single entry."""
    for name in dict.fromkeys((entry.path, entry.target)):
        fault = find_name_fault(name)
        if fault is None and name.split("/")[0] == STATE_FOLDER:
            fault = f"{STATE_FOLDER} holds the state of the download"
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


def _find_name_conflicts(names: list[str]) -> Iterator[str]:
    """Yields a problem for each path that occurs twice, or that is inside another path."""
    for name in sorted(set(names)):
        if names.count(name) > 1:
            yield f"{name} is listed twice"

    for name in names:
        for parent in map(str, PurePosixPath(name).parents):
            if parent in names:
                yield f"{name} is in {parent}, which is a file or an archive's folder"


@dataclass(frozen=True)
class FileSet:
    """The files of a manifest in a folder.

    Attributes:
        folder: The target folder.
        keep_archives: Whether archives are kept after they were unpacked.
        retries: Number of consecutive failures after which a download is abandoned.
        timeout: Number of seconds without data after which a request counts as failed.
        advance: Called with the current activity, the number of bytes processed so far, and their
            total number.
    """

    entries: list[Entry]
    folder: Path
    keep_archives: bool
    retries: int
    timeout: float
    advance: Callable[[str, int, int], None] = lambda *_: None

    def fetch(self) -> int:
        """Downloads, verifies and unpacks the entries that are not complete yet.

        Returns:
            The number of entries that were fetched.

        Raises:
            ConfigurationError: If the disk is too small, the folder cannot be written or is in use,
                or it contains other files with the same names.
            DataError: If a file cannot be downloaded, or differs from the manifest.
        """
        try:
            (self.folder / STATE_FOLDER).mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / STATE_FOLDER / "lock")
            with lock.acquire(timeout=0):
                missing = [entry for entry in self.entries if not self._is_complete(entry)]
                self._check_names(missing)
                self._check_space(missing)
                for entry in missing:
                    self._fetch(entry)
                return len(missing)
        except Timeout as error:
            raise ConfigurationError(
                f"folder={self.folder}: another process is downloading to it; wait until it ends"
            ) from error
        except OSError as error:
            raise ConfigurationError(f"folder={self.folder} cannot be written: {error}") from error

    def _check_names(self, missing: list[Entry]) -> None:
        """Checks that no other files in the folder have the names of missing entries.

        Raises:
            ConfigurationError: If some have.
        """
        targets = [self._resolve(entry.target) for entry in missing]
        problems = [
            f"{path} exists, but is not from this manifest; move it away"
            for path in targets
            if path.exists()
        ]
        if problems:
            raise ConfigurationError("\n".join(problems))

    def _check_space(self, missing: list[Entry]) -> None:
        """Checks that the disk has room for the missing entries.

        Raises:
            ConfigurationError: If it is too small.
        """
        download_bytes = sum(entry.bytes - self._count_bytes(entry) for entry in missing)
        unpacked_bytes = sum(entry.unpacked_bytes or 0 for entry in missing)
        needed_bytes = download_bytes + unpacked_bytes
        free_bytes = measure_free_bytes(self.folder)
        if free_bytes < needed_bytes:
            raise ConfigurationError(
                f"folder={self.folder}: {format_bytes(free_bytes)} are free, and "
                f"{format_bytes(needed_bytes)} are needed ({format_bytes(download_bytes)} to "
                f"download, {format_bytes(unpacked_bytes)} unpacked); nothing was downloaded",
                ["folder"],
            )

    def _resolve(self, name: str) -> Path:
        """Resolves a file name from the manifest to a path in the target folder."""
        return join_inside(self.folder, name, "the manifest")

    def _count_bytes(self, entry: Entry) -> int:
        """Counts the bytes of an entry's file that are already in the folder."""
        paths = self._resolve(entry.path), self._resolve(f"{entry.path}.part")
        sizes = [path.stat().st_size for path in paths if path.is_file()]
        return min(entry.bytes, max(sizes, default=0))

    def _fetch(self, entry: Entry) -> None:
        """Downloads and unpacks an entry, and records that it is complete."""
        path = self._resolve(entry.path)
        if not self._has_file(entry):
            advance = self._make_reporter("downloading", entry, entry.bytes)
            download(entry, path, retries=self.retries, timeout=self.timeout, advance=advance)

        if entry.unpack is not None and entry.unpacked_bytes is not None:
            advance = self._make_reporter("unpacking", entry, entry.unpacked_bytes)
            unpack(path, self._resolve(entry.unpack), entry.unpacked_bytes, advance)
            if not self.keep_archives:
                path.unlink()

        record_path = self._locate_record(entry)
        record_path.parent.mkdir(parents=True, exist_ok=True)
        record_path.write_text(json.dumps(self._describe_target(entry)))

    def _is_complete(self, entry: Entry) -> bool:
        """Returns whether an entry is recorded as complete, or its file has the right content."""
        with contextlib.suppress(OSError, ValueError):
            record = parse_json(self._locate_record(entry).read_text())
            if record == self._describe_target(entry):
                return True

        # In a copy of the folder, modification times may differ, so the content is verified.
        return entry.unpack is None and self._has_file(entry)

    def _has_file(self, entry: Entry) -> bool:
        """Returns whether the folder contains the file of an entry, with the right hash."""
        path = self._resolve(entry.path)
        if not path.is_file() or path.stat().st_size != entry.bytes:
            return False

        with open(path, "rb") as file:
            blocks = iter(lambda: file.read(_BLOCK_BYTES), b"")
            sha256 = _compute_sha256(blocks, self._make_reporter("verifying", entry, entry.bytes))
        return sha256 == entry.sha256

    def _make_reporter(self, activity: str, entry: Entry, total: int) -> Advance:
        """Returns a function that reports the progress of an activity on an entry."""
        return lambda num_done: self.advance(f"{activity} {entry.path}", num_done, total)

    def _locate_record(self, entry: Entry) -> Path:
        """Returns the path of the file that marks an entry as complete."""
        return self._resolve(f"{STATE_FOLDER}/{entry.target}.json")

    def _describe_target(self, entry: Entry) -> dict[str, Any]:
        """Returns the record of a complete entry.

        The record of a folder has no modification time, because files may be added to it later.
        """
        status = os.stat(self._resolve(entry.target))
        modification_time = status.st_mtime_ns if entry.unpack is None else None
        return {"sha256": entry.sha256, "unpack": entry.unpack, "changed": modification_time}


def download(
    entry: Entry,
    path: Path,
    *,
    retries: int,
    timeout: float,
    advance: Advance = lambda _: None,
) -> None:
    """Downloads the file of an entry, or its missing bytes.

    Args:
        path: Path of the complete file.
        retries: See `FileSet`.
        timeout: See `FileSet`.
        advance: Called with the number of bytes processed so far.

    Raises:
        DataError: If the file cannot be downloaded, or differs from the entry.
    """
    part = path.with_name(f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    was_resumed = part.exists() and part.stat().st_size > 0

    def read_from(start: int) -> Iterator[bytes]:
        open_from = partial(_open_from, entry, timeout=timeout)
        attempts = Retries(retries, _ADVICE)
        return attempts.read(str(entry), open_from, start, entry.bytes, entry.bytes)

    sha256 = _compute_sha256(complete_part(part, read_from), advance)
    if sha256 != entry.sha256 and was_resumed:
        # The part from an earlier call may be from a different file.
        part.unlink()
        sha256 = _compute_sha256(complete_part(part, read_from), advance)
    if sha256 != entry.sha256:
        part.unlink()
        raise DataError(
            f"{entry} is not the expected file: its sha256 is {sha256}, not {entry.sha256}; "
            "correct the manifest, or use another mirror"
        )
    part.replace(path)


def complete_part(part: Path, read_from: Callable[[int], Iterator[bytes]]) -> Iterator[bytes]:
    """Yields the bytes of a partial file, then the missing bytes, which are appended to it.

    Args:
        read_from: Yields the content of the complete file from a given byte on.
    """
    with open(part, "a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        while file.tell() < size:
            yield file.read(_BLOCK_BYTES)

        for block in read_from(size):
            file.write(block)
            yield block
        file.flush()
        os.fsync(file.fileno())


def _compute_sha256(blocks: Iterator[bytes], advance: Advance) -> str:
    """Returns the SHA-256 of the blocks in hexadecimal; reports the progress."""
    sha256 = hashlib.sha256()
    num_hashed = 0
    for block in blocks:
        sha256.update(block)
        num_hashed += len(block)
        advance(num_hashed)
    return sha256.hexdigest()


@contextlib.contextmanager
def _open_from(entry: Entry, start: int, timeout: float) -> Iterator[Iterator[bytes]]:
    """Opens the content of an entry's file from byte `start` on, to be read in blocks."""
    if urlsplit(entry.address).scheme == "file":
        yield _read_local(entry, start)
        return

    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with (
        convert_transport_errors(str(entry), format_server(entry.address)),
        httpx2.stream(
            "GET", entry.address, headers=headers, timeout=timeout, follow_redirects=True
        ) as response,
    ):
        _check_response(response, entry, start)
        is_whole_file = response.status_code != 206
        num_skipped = start if is_whole_file else 0
        yield refuse_slow_response(_skip_bytes(response.iter_raw(), num_skipped), timeout)


def _read_local(entry: Entry, start: int) -> Iterator[bytes]:
    """Yields the content of a local file from byte `start` on."""
    path = Path(unquote(urlsplit(entry.address).path))
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            raise DataError(f"{entry} has {size:,} bytes instead of {entry.bytes:,}")
        with open(path, "rb") as file:
            file.seek(start)
            yield from iter(lambda: file.read(_BLOCK_BYTES), b"")
    except OSError as error:
        raise DataError(f"{entry} cannot be read: {error.strerror}") from error


def _skip_bytes(blocks: Iterator[bytes], count: int) -> Iterator[bytes]:
    """Yields the blocks without the first `count` bytes."""
    for block in blocks:
        yield block[count:]
        count = max(0, count - len(block))


def _check_response(response: httpx2.Response, entry: Entry, start: int) -> None:
    """Checks that a response contains the file from byte `start` on, or the whole file.

    Servers that ignore ranges send the whole file.

    Raises:
        TransientError: If a retry may succeed.
        DataError: If the server does not have the file.
    """
    check_transient(response)
    status = response.status_code
    if status == 416:
        raise DataError(f"{entry} has fewer than {start:,} of {entry.bytes:,} bytes")
    if status not in (200, 206):
        raise DataError(f"{entry}: the server answers HTTP {status}; correct the address")
    check_encoding(response)

    if status == 206:
        content_range = response.headers.get("Content-Range", "")
        match = CONTENT_RANGE.fullmatch(content_range)
        if match is None or int(match[1]) != start:
            raise TransientError(f"a different part of the file than requested ({content_range})")
        file_size = match[3]
    else:
        file_size = response.headers.get("Content-Length") or "*"

    if file_size not in ("*", str(entry.bytes)):
        content_type = response.headers.get("Content-Type", "no Content-Type")
        raise TransientError(f"{file_size} bytes ({content_type}) instead of {entry.bytes}")
