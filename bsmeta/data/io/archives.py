"""Archives, which are not trusted: unpacked only into one folder, and within limits.

Refused, with the member's name: paths that leave the folder, links, devices, a path that is there
twice, and more bytes or files than expected. The folder appears only when it is complete.
`tarfile`'s filter `data` is not used: it permits links and repeated paths, has no limits, and does
not exist for zip archives.
"""

from __future__ import annotations

import bz2
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from isal import igzip

from bsmeta.core.errors import DataError
from bsmeta.core.files import UnsafeNameError, building, path_inside

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

MOST_FILES = 100_000
"""Files and folders that an archive may have."""

Member = tuple[str, int, Callable[[], IO[bytes] | None]]
"""Name, stated size, and a function that opens the content; None for a folder."""

Advance = Callable[[int], None]
"""Called with the number of bytes that are written."""

_BLOCK = 1 << 20


def unpack(archive: Path, folder: Path, most: int, advance: Advance = lambda _: None) -> None:
    """Unpacks an archive into a folder that does not exist yet.

    Args:
        archive: The archive; its suffix (one of `SUFFIXES`) says what it is.
        most: The most bytes that its files may have together.

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


def _write_members(archive: Path, folder: Path, most: int, advance: Advance) -> None:
    written = 0
    members = _zip_members if archive.name.endswith(".zip") else _tar_members
    for number, (name, size, open_content) in enumerate(members(archive, most), 1):
        if number > MOST_FILES:
            raise _refused(archive, name, f"more than {MOST_FILES:,} files")
        path = _member_path(archive, name, folder)
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


def _member_path(archive: Path, name: str, folder: Path) -> Path:
    """The path of a member; archivers write folders as `a/`, and what is below `.` as `./a`."""
    if name in (".", "./"):
        return folder
    relative = name.removeprefix("./").removesuffix("/")
    try:
        return path_inside(folder, relative, str(archive))
    except UnsafeNameError as error:
        raise _refused(archive, name, error.reason) from error


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
        data = self._content.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _refused(self._archive, "its content", "more bytes than its files may have")
        return data
