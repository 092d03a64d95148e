"""Sets of files that a manifest lists: downloaded, verified, unpacked, and complete in the end.

    {"files": [{"path": "wiki.tar.gz", "address": "https://…/wiki.tar.gz", "bytes": 17179869184,
                "sha256": "…", "unpack": "wiki_data", "unpacked_bytes": 161061273600}]}

An address may be relative: to a mirror, else to the folder of the manifest. `.download/` in the
target folder records what is complete, so that the next call does what is left.

Archives are not trusted: they are unpacked only into one folder, and within limits. Refused, with
the member's name: paths that leave the folder, links, devices, a path that is there twice, and more
bytes or files than expected. The folder appears only when it is complete. `tarfile`'s filter `data`
is not used: it permits links and repeated paths, has no limits, and does not exist for zip
archives.
"""

from __future__ import annotations

import bz2
import contextlib
import json
import lzma
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast
from urllib.parse import urljoin, urlsplit

import msgspec
from filelock import FileLock, Timeout
from isal import igzip

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import building, free_bytes, gigabytes
from bsmeta.data.io.download import Source, download, sha256_of

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

MOST_FILES = 100_000
"""Files and folders that an archive may have."""

_BLOCK = 1 << 20

Member = tuple[str, int, Callable[[], IO[bytes] | None]]
"""Name, stated size, and a function that opens the content; None for a folder."""

STATE = ".download"

Advance = Callable[[str, int, int], None]
"""Called with what is done, the bytes that are done, and all bytes."""


def unpack(
    archive: Path, folder: Path, most: int, advance: Callable[[int], None] = lambda _: None
) -> None:
    """Unpacks an archive into a folder that does not exist yet.

    Args:
        archive: The archive; its suffix (one of `SUFFIXES`) says what it is.
        most: The most bytes that its files may have together.
        advance: Called with the number of bytes written so far.

    Raises:
        DataError: If the archive is damaged, or anything in it is refused; there is no folder then.
    """
    try:
        with building(folder) as part:
            part.mkdir(parents=True)
            _write_members(archive, part, most, advance)
    except DataError:
        raise
    except Exception as error:  # the decoders of damaged or encrypted content raise many types
        reason = str(error) or type(error).__name__
        raise DataError(f"{archive} cannot be unpacked to {folder}: {reason}") from error


def _write_members(archive: Path, folder: Path, most: int, advance: Callable[[int], None]) -> None:
    written = 0
    members = _zip_members if archive.name.endswith(".zip") else _tar_members
    for number, (name, size, open_content) in enumerate(members(archive, most), 1):
        if number > MOST_FILES:
            raise _refused(archive, name, f"more than {MOST_FILES:,} files")
        path = folder.joinpath(*_checked_parts(archive, name))
        try:
            content = open_content()
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
                continue
            if written + size > most:
                raise _refused(archive, name, f"more than {most:,} bytes unpacked")
            path.parent.mkdir(parents=True, exist_ok=True)
            with content, open(path, "xb") as file:
                while block := content.read(_BLOCK):
                    written += len(block)
                    if written > most:  # the stated sizes were wrong
                        raise _refused(archive, name, f"more than {most:,} bytes unpacked")
                    file.write(block)
                    advance(written)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise _refused(archive, name, "a path that is there already") from error


def _checked_parts(archive: Path, name: str) -> tuple[str, ...]:
    """The parts of a member's path, which stay in the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise _refused(archive, name, "a path that leaves the folder")
    return path.parts


def _refused(archive: Path, name: str, reason: str) -> DataError:
    return DataError(f"{archive} is not unpacked: {name!r}: {reason}")


def _zip_members(archive: Path, most: int) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(archive, info.filename, "a link or a device")

            def open_content(info: zipfile.ZipInfo = info) -> IO[bytes] | None:
                return None if info.is_dir() else file.open(info)

            yield info.filename, info.file_size, open_content


def _tar_members(archive: Path, most: int) -> Iterator[Member]:
    # A header and padding for each file, extended headers, and the padding at the end.
    limit = most + MOST_FILES * 4 * tarfile.BLOCKSIZE + 2 * tarfile.RECORDSIZE
    with (
        _decompressed(archive) as content,
        tarfile.open(fileobj=cast(IO[bytes], _Bounded(archive, content, limit)), mode="r|") as file,
    ):
        for info in file:
            if not (info.isfile() or info.isdir()):
                raise _refused(archive, info.name, "a link or a device")

            def open_content(info: tarfile.TarInfo = info) -> IO[bytes] | None:
                return None if info.isdir() else file.extractfile(info)

            yield info.name, info.size, open_content


def _decompressed(archive: Path) -> IO[bytes]:
    if archive.suffix in (".gz", ".tgz"):
        return cast(IO[bytes], igzip.open(archive))
    if archive.suffix == ".bz2":
        return cast(IO[bytes], bz2.open(archive))
    return cast(IO[bytes], lzma.open(archive)) if archive.suffix == ".xz" else archive.open("rb")


class _Bounded:
    """A file that may be read up to a limit: decompressed content has no end of its own."""

    def __init__(self, archive: Path, content: IO[bytes], most: int) -> None:
        self._archive = archive
        self._content = content
        self._left = most

    def read(self, size: int) -> bytes:
        """Up to `size` bytes.

        Raises:
            DataError: If there are more than the limit.
        """
        data = self._content.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _refused(self._archive, "its content", "more bytes than its files may have")
        return data


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A file of a manifest.

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
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.yaml.decode
        entries = decode(content, type=_Manifest).files
    except OSError as error:
        raise DataError(f"manifest={path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"manifest={path}: {error}", ["manifest"]) from error
    base = f"{(mirror or path.resolve().parent.as_uri()).rstrip('/')}/"
    for entry in entries:
        entry.address = urljoin(base, entry.address)
        entry.sha256 = entry.sha256.lower()
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


def _problems(entry: Entry) -> Iterator[str]:
    for name in {entry.path: None, entry.target: None}:
        parts = PurePosixPath(name).parts
        if not parts or parts[0] in ("/", STATE) or ".." in parts or "\\" in name:
            yield f"{name!r}: expected a path in the target folder"
    if urlsplit(entry.address).scheme not in ("http", "https", "file"):
        yield f"address {entry.address!r}: expected http(s)://, file://, or a relative address"
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


class FileSet:
    """The files of a manifest in a folder."""

    def __init__(self, entries: list[Entry], folder: Path, *, keep_archives: bool) -> None:
        self._folder = folder
        self._keep_archives = keep_archives
        self._all = entries

    def fetch(self, retries: int, timeout: float, advance: Advance = lambda *_: None) -> int:
        """Downloads, verifies and unpacks whatever is not complete yet.

        Args:
            retries: Failures in a row after which a download is given up.
            timeout: Seconds without data that are a failure.
            advance: Reports the progress.

        Returns:
            The number of files that were not complete before.

        Raises:
            ConfigurationError: If the disk is too small, or something else is in the way.
            DataError: If a file cannot be had, or is another one.
        """
        try:
            (self._folder / STATE).mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._folder / STATE / "lock")
            with lock.acquire(timeout=0):
                left = [entry for entry in self._all if not self._is_complete(entry, advance)]
                self._check(left)
                for entry in left:
                    self._fetch(entry, retries, timeout, advance)
                return len(left)
        except Timeout as error:
            raise ConfigurationError(
                f"folder={self._folder}: another process downloads to it; wait for its end"
            ) from error
        except OSError as error:
            raise ConfigurationError(f"folder={self._folder} cannot be written: {error}") from error

    def _check(self, left: list[Entry]) -> None:
        """Refuses what is in the way, and a disk that is too small for what is left."""
        problems = [
            f"{self._folder / entry.target} is there, but not from this manifest; move it away"
            for entry in left
            if (self._folder / entry.target).exists()
        ]
        if problems:
            raise ConfigurationError("\n".join(problems))
        compressed = sum(entry.bytes - self._bytes_of(entry) for entry in left)
        unpacked = sum(entry.unpacked_bytes or 0 for entry in left)
        free = free_bytes(self._folder)
        if free < compressed + unpacked:
            raise ConfigurationError(
                f"folder={self._folder}: {gigabytes(free)} are free, and "
                f"{gigabytes(compressed + unpacked)} are needed ({gigabytes(compressed)} to "
                f"download, {gigabytes(unpacked)} unpacked); nothing was downloaded",
                ["folder"],
            )

    def _bytes_of(self, entry: Entry) -> int:
        """The bytes of a file that are there already."""
        sizes = [
            path.stat().st_size
            for path in (self._folder / entry.path, self._folder / f"{entry.path}.part")
            if path.is_file()
        ]
        return min(entry.bytes, max(sizes, default=0))

    def _fetch(self, entry: Entry, retries: int, timeout: float, advance: Advance) -> None:
        path = self._folder / entry.path
        source = Source(entry.address, entry.bytes, entry.sha256)

        def show(what: str, total: int) -> Callable[[int], None]:
            return lambda done: advance(f"{what} {entry.path}", done, total)

        if not _is_file(path, entry, show("verifying", entry.bytes)):
            downloading = show("downloading", entry.bytes)
            download(source, path, retries=retries, timeout=timeout, advance=downloading)
        if entry.unpack is not None and entry.unpacked_bytes is not None:
            unpacking = show("unpacking", entry.unpacked_bytes)
            unpack(path, self._folder / entry.unpack, entry.unpacked_bytes, unpacking)
            if not self._keep_archives:
                path.unlink()
        record = self._record(entry)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(self._found(entry)))

    def _is_complete(self, entry: Entry, advance: Advance) -> bool:
        with contextlib.suppress(OSError, ValueError):
            if json.loads(self._record(entry).read_text()) == self._found(entry):
                return True
        # A copy of the folder may have other times: the content decides.
        return entry.unpack is None and _is_file(
            self._folder / entry.path,
            entry,
            lambda done: advance(f"verifying {entry.path}", done, entry.bytes),
        )

    def _record(self, entry: Entry) -> Path:
        return self._folder / STATE / f"{entry.target}.json"

    def _found(self, entry: Entry) -> dict[str, Any]:
        """What identifies a complete file or folder; in a folder, files may be added later."""
        status = os.stat(self._folder / entry.target)
        changed = status.st_mtime_ns if entry.unpack is None else None
        return {"sha256": entry.sha256, "unpack": entry.unpack, "changed": changed}


def _is_file(path: Path, entry: Entry, advance: Callable[[int], None]) -> bool:
    if not path.is_file() or path.stat().st_size != entry.bytes:
        return False
    return sha256_of(path, advance) == entry.sha256
