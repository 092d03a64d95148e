"""Archives, which are not trusted: unpacked only into one folder, and within limits.

Refused, with the member's name: paths that leave the folder, links, devices, a path that is there
twice, and more bytes or files than expected. The folder appears only when it is complete. What an
archive states about itself is limited before it is read: headers and lists of members may be long.
`tarfile`'s filter `data` is not used: it permits links and repeated paths, has no limits, and does
not exist for zip archives.
"""

from __future__ import annotations

import bz2
import io
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, cast

from isal import igzip

from bsmeta.core.errors import DataError
from bsmeta.core.files import UnsafeNameError, building, path_inside

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

MOST_FILES = 100_000
"""Files and folders that an archive may have."""

HEADER_BYTES = 1 << 20
"""Bytes of all headers of one member of a tar file: extended headers have long names and more."""

LIST_BYTES = MOST_FILES * 160
"""Bytes of the list of members of a zip file: enough for names of about 80 characters."""

Member = tuple[str, int, Callable[[], IO[bytes] | None]]
"""Name, stated size, and a function that opens the content; None for a folder."""

Advance = Callable[[int], None]
"""Called with the number of bytes that are written."""

_BLOCK = 1 << 20
_XZ_MEMORY = 1 << 27  # bytes: twice as much as the largest preset of xz needs
_MOST_GLOBALS = 100  # headers that are about all members of a tar file
_ZIP_ENTRY = b"PK\x01\x02"  # before each entry of the list of members
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


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
    with _ZipContent(archive) as content, zipfile.ZipFile(cast(IO[bytes], content)) as file:
        for info in file.infolist():
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(archive, info.filename, "a link or a device")
            if info.compress_type not in _ZIP_METHODS:  # zipfile decompresses others without limit
                raise _refused(
                    archive, info.filename, "compressed with a method other than deflate"
                )

            def open_content(info: zipfile.ZipInfo = info) -> IO[bytes] | None:
                return None if info.is_dir() else file.open(info)

            yield info.filename, info.file_size, open_content


class _ZipContent(io.FileIO):
    """A zip file whose list of members, which is read at once, has a limit."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > LIST_BYTES:
            raise _refused(
                Path(str(self.name)), "its list of members", f"more than {LIST_BYTES:,} bytes"
            )
        data = super().read(-1 if size is None else size)
        if data.count(_ZIP_ENTRY) > MOST_FILES:
            raise _refused(
                Path(str(self.name)), "its list of members", f"more than {MOST_FILES:,} files"
            )
        return data


def _tar_members(archive: Path, most: int) -> Iterator[Member]:
    # A header and padding for each file, extended headers, and the padding at the end.
    limit = most + MOST_FILES * 4 * tarfile.BLOCKSIZE + 2 * tarfile.RECORDSIZE
    with _decompressed(archive) as decompressed:
        content = _TarContent(archive, decompressed, limit)
        file = tarfile.TarFile(fileobj=cast(IO[bytes], content))
        while (info := file.next()) is not None:
            content.end_header()
            _check_globals(archive, file.pax_headers)
            file.members.clear()  # type: ignore[attr-defined]  # they would all be kept
            if not (info.isfile() or info.isdir()):
                raise _refused(archive, info.name, "a link or a device")

            def open_content(info: tarfile.TarInfo = info) -> IO[bytes] | None:
                return None if info.isdir() else file.extractfile(info)

            yield info.name, info.size, open_content
            content.begin_header()


def _check_globals(archive: Path, headers: Mapping[str, str]) -> None:
    """Limits the headers that are kept for all later members, each of which may add some."""
    if len(headers) > _MOST_GLOBALS or sum(map(len, headers.values())) > HEADER_BYTES:
        raise _refused(archive, "its global headers", f"more than {HEADER_BYTES:,} bytes")


def _decompressed(archive: Path) -> IO[bytes]:
    if archive.suffix in (".gz", ".tgz"):
        return cast(IO[bytes], igzip.open(archive))
    if archive.suffix == ".bz2":
        return cast(IO[bytes], bz2.open(archive))
    return cast(IO[bytes], _XzContent(archive)) if archive.suffix == ".xz" else archive.open("rb")


class _XzContent(io.FileIO):
    """The content of an xz file, whose header states how much memory decompression needs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._blocks = self._decompress()
        self._rest = b""

    def read(self, size: int | None = -1) -> bytes:
        """Reads up to `size` bytes, of which there is at least one before the end."""
        assert size is not None
        assert size >= 0
        while not self._rest and (block := next(self._blocks, None)) is not None:
            self._rest = block
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _decompress(self) -> Iterator[bytes]:
        """The content of any number of streams, with padding between them."""
        data = super().read(_BLOCK)
        while data:
            stream = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
            while not stream.eof:
                if stream.needs_input and not data:
                    data = super().read(_BLOCK)
                    if not data:
                        raise EOFError("it ends in the middle of its data")
                yield stream.decompress(data, _BLOCK)
                data = b""
            data = stream.unused_data.lstrip(b"\0")
            while not data and (more := super().read(_BLOCK)):
                data = more.lstrip(b"\0")


class _TarContent:
    """The content of a tar file, which is read only forwards and up to limits.

    Decompressed content has no end of its own, and a header may state any size.
    """

    def __init__(self, archive: Path, content: IO[bytes], most: int) -> None:
        self._archive = archive
        self._content = content
        self._position = 0
        self._most = most
        self._header_left: int | None = HEADER_BYTES  # None while the content of a file is read

    def begin_header(self) -> None:
        """Has to be called before the headers of a member are read."""
        self._header_left = HEADER_BYTES

    def end_header(self) -> None:
        """Has to be called before the content of a member is read."""
        self._header_left = None

    def tell(self) -> int:
        """The number of bytes that were read."""
        return self._position

    def seek(self, position: int) -> int:
        """Skips content."""
        if position < self._position:
            raise _refused(self._archive, "a header", "a size that leads backwards")
        while self._position < position:
            if not self._read(min(position - self._position, _BLOCK)):
                break
        return self._position

    def read(self, size: int) -> bytes:
        """Reads `size` bytes; fewer at the end."""
        if self._header_left is not None:
            self._header_left -= size
            if size < 0 or self._header_left < 0:
                raise _refused(self._archive, "a header", f"more than {HEADER_BYTES:,} bytes")
        parts = []
        while size > 0 and (part := self._read(min(size, _BLOCK))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _read(self, size: int) -> bytes:
        data = self._content.read(size)
        self._position += len(data)
        if self._position > self._most:
            raise _refused(self._archive, "its content", "more bytes than its files may have")
        return data
