"""Unpacks untrusted archives into a folder, within limits.

An archive is refused if a path leaves the folder or occurs twice, if it contains links or devices,
or if it contains more bytes or files than expected; the message names the member. The folder
appears only when it is complete. The sizes of headers and member lists are checked before they are
read. The `data` filter of `tarfile` is not used: it permits links and repeated paths, has no
limits, and does not exist for zip archives.
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
from typing import IO, NamedTuple, cast

from isal import igzip

from bsmeta.core.errors import DataError
from bsmeta.core.files import UnsafeNameError, build_atomically, join_inside

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

MAX_FILES = 100_000
"""Maximum number of files and folders in an archive."""

MAX_HEADER_BYTES = 1 << 20
"""Maximum size of the headers of a tar member; long names are stored in extended headers."""

MAX_LIST_BYTES = MAX_FILES * 160
"""Maximum size of the member list of a zip file: enough for names of about 80 characters."""

Advance = Callable[[int], None]
"""Called with the number of bytes processed so far."""

_BLOCK_BYTES = 1 << 20
_MAX_XZ_MEMORY_BYTES = 1 << 27  # twice the memory that the largest xz preset needs
_MAX_GLOBAL_HEADERS = 100  # headers of a tar file that apply to all later members
_ZIP_ENTRY_MAGIC = b"PK\x01\x02"  # at the beginning of each entry of the member list
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Member(NamedTuple):
    """A file or folder in an archive.

    Attributes:
        name: Path in the archive.
        size: Size of the content in bytes, as stated in the archive.
        open_content: Opens the content; returns None for a folder.
    """

    name: str
    size: int
    open_content: Callable[[], IO[bytes] | None]


def unpack(archive: Path, folder: Path, max_bytes: int, advance: Advance = lambda _: None) -> None:
    """Unpacks an archive into a folder that does not exist yet.

    Args:
        archive: Path of the archive; its suffix (one of `SUFFIXES`) determines the format.
        max_bytes: Maximum total size of the unpacked files.
        advance: Called with the number of bytes written so far.

    Raises:
        DataError: If the archive is damaged, or a member is refused; the folder is not created.
    """
    try:
        with build_atomically(folder) as part:
            part.mkdir(parents=True)
            _write_members(archive, part, max_bytes, advance)
    except DataError:
        raise
    except Exception as error:  # decoders raise many types for damaged or encrypted content
        reason = str(error) or type(error).__name__
        raise DataError(f"{archive} cannot be unpacked to {folder}: {reason}") from error


def _write_members(archive: Path, folder: Path, max_bytes: int, advance: Advance) -> None:
    """Writes all members of an archive into an empty folder.

    Raises:
        DataError: If a member is refused.
    """
    if archive.name.endswith(".zip"):
        members = _read_zip_members(archive)
    else:
        members = _read_tar_members(archive, max_bytes)

    num_written = 0
    for number, member in enumerate(members, 1):
        if number > MAX_FILES:
            raise _make_refusal(archive, member.name, f"more than {MAX_FILES:,} files")

        path = _resolve_member_path(archive, member.name, folder)
        try:
            content = member.open_content()
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
                continue
            if num_written + member.size > max_bytes:
                raise _make_refusal(archive, member.name, f"more than {max_bytes:,} bytes unpacked")

            path.parent.mkdir(parents=True, exist_ok=True)
            with content, open(path, "xb") as file:
                while block := content.read(_BLOCK_BYTES):
                    num_written += len(block)
                    if num_written > max_bytes:  # the stated sizes were wrong
                        raise _make_refusal(
                            archive, member.name, f"more than {max_bytes:,} bytes unpacked"
                        )
                    file.write(block)
                    advance(num_written)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise _make_refusal(archive, member.name, "a path that already exists") from error


def _resolve_member_path(archive: Path, name: str, folder: Path) -> Path:
    """Returns the path at which a member is unpacked in the folder.

    Archivers may write a folder as `a/`, and a path as `./a`.

    Raises:
        DataError: If the path leaves the folder.
    """
    if name in (".", "./"):
        return folder

    relative = name.removeprefix("./").removesuffix("/")
    try:
        return join_inside(folder, relative, str(archive))
    except UnsafeNameError as error:
        raise _make_refusal(archive, name, error.reason) from error


def _make_refusal(archive: Path, name: str, reason: str) -> DataError:
    """Returns the error for an archive that is refused.

    Args:
        name: The refused member, or part of the archive.
    """
    return DataError(f"{archive} is not unpacked: {name!r}: {reason}")


def _read_zip_members(archive: Path) -> Iterator[Member]:
    """Yields the members of a zip file.

    Raises:
        DataError: If a member is a link, a device, or compressed with an unusual method, or the
            member list is too long.
    """
    with _ZipContent(archive) as content, zipfile.ZipFile(cast(IO[bytes], content)) as file:
        for info in file.infolist():
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _make_refusal(archive, info.filename, "a link or a device")
            if info.compress_type not in _ZIP_METHODS:  # zipfile decompresses others without limit
                raise _make_refusal(
                    archive, info.filename, "compressed with a method other than deflate"
                )

            def open_content(info: zipfile.ZipInfo = info) -> IO[bytes] | None:
                return None if info.is_dir() else file.open(info)

            yield Member(info.filename, info.file_size, open_content)


def has_compressed_member(archive: Path) -> bool:
    """Checks whether a member of a zip file is compressed, without reading the members.

    Raises:
        DataError: If the member list is too long.
        zipfile.BadZipFile: If the file is not a zip file.
    """
    with _ZipContent(archive) as content, zipfile.ZipFile(cast(IO[bytes], content)) as file:
        return any(info.compress_type != zipfile.ZIP_STORED for info in file.infolist())


class _ZipContent(io.FileIO):
    """A zip file with a limit on the size of its member list, which zipfile reads at once."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_LIST_BYTES:
            raise _make_refusal(
                Path(str(self.name)), "its member list", f"more than {MAX_LIST_BYTES:,} bytes"
            )

        data = super().read(-1 if size is None else size)
        if data.count(_ZIP_ENTRY_MAGIC) > MAX_FILES:
            raise _make_refusal(
                Path(str(self.name)), "its member list", f"more than {MAX_FILES:,} files"
            )
        return data


def _read_tar_members(archive: Path, max_bytes: int) -> Iterator[Member]:
    """Yields the members of a tar file; the content of each must be read before the next member.

    Args:
        max_bytes: Maximum total size of the files; headers and padding are added to it.

    Raises:
        DataError: If a member is a link or a device, or a limit is exceeded.
    """
    # The tar file also has a header, extended headers and padding for each file, and padding at the
    # end.
    max_tar_bytes = max_bytes + MAX_FILES * 4 * tarfile.BLOCKSIZE + 2 * tarfile.RECORDSIZE
    with _open_decompressed(archive) as decompressed:
        content = _TarContent(archive, decompressed, max_tar_bytes)
        file = tarfile.TarFile(fileobj=cast(IO[bytes], content))
        while (info := file.next()) is not None:
            content.end_header()
            _check_global_headers(archive, file.pax_headers)
            # tarfile would keep all members in memory.
            file.members.clear()  # type: ignore[attr-defined]
            if not (info.isfile() or info.isdir()):
                raise _make_refusal(archive, info.name, "a link or a device")

            def open_content(info: tarfile.TarInfo = info) -> IO[bytes] | None:
                return None if info.isdir() else file.extractfile(info)

            yield Member(info.name, info.size, open_content)
            content.begin_header()


def _check_global_headers(archive: Path, headers: Mapping[str, str]) -> None:
    """Checks the number and size of the headers that apply to all later members of a tar file.

    Any member may add some.

    Raises:
        DataError: If they exceed their limits.
    """
    if len(headers) > _MAX_GLOBAL_HEADERS or sum(map(len, headers.values())) > MAX_HEADER_BYTES:
        raise _make_refusal(archive, "its global headers", f"more than {MAX_HEADER_BYTES:,} bytes")


def _open_decompressed(archive: Path) -> IO[bytes]:
    """Opens the decompressed tar file in an archive, whose suffix determines the compression."""
    if archive.suffix in (".gz", ".tgz"):
        return cast(IO[bytes], igzip.open(archive))
    if archive.suffix == ".bz2":
        return cast(IO[bytes], bz2.open(archive))
    if archive.suffix == ".xz":
        return cast(IO[bytes], _XzContent(archive))
    return archive.open("rb")


class _XzContent(io.FileIO):
    """The decompressed content of an xz file.

    Its header states the memory that decompression needs. Files that need more than
    `_MAX_XZ_MEMORY_BYTES` are refused; `lzma.open` has no such limit.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._blocks = self._decompress()
        self._unread = b""  # the unread end of the last block

    def read(self, size: int | None = -1) -> bytes:
        """Returns up to `size` bytes, at least one before the end."""
        assert size is not None
        assert size >= 0
        while not self._unread and (block := next(self._blocks, None)) is not None:
            self._unread = block
        data = self._unread[:size]
        self._unread = self._unread[size:]
        return data

    def _decompress(self) -> Iterator[bytes]:
        """Yields the content of any number of concatenated streams, which may be padded."""
        data = super().read(_BLOCK_BYTES)
        while data:
            stream = lzma.LZMADecompressor(memlimit=_MAX_XZ_MEMORY_BYTES)
            while not stream.eof:
                if stream.needs_input and not data:
                    data = super().read(_BLOCK_BYTES)
                    if not data:
                        raise EOFError("it ends in the middle of its data")
                yield stream.decompress(data, _BLOCK_BYTES)
                data = b""

            data = stream.unused_data.lstrip(b"\0")
            while not data and (block := super().read(_BLOCK_BYTES)):
                data = block.lstrip(b"\0")


class _TarContent:
    """The content of a tar file, which can only be read forward and up to limits.

    The limits are needed because decompressed content may be endless, and a header may state any
    size.
    """

    def __init__(self, archive: Path, content: IO[bytes], max_bytes: int) -> None:
        self._archive = archive
        self._content = content
        self._position = 0
        self._max_bytes = max_bytes
        # Bytes left for the headers of the current member; None while its content is read.
        self._header_budget: int | None = MAX_HEADER_BYTES

    def begin_header(self) -> None:
        """Begins the headers of a member, whose total size is limited."""
        self._header_budget = MAX_HEADER_BYTES

    def end_header(self) -> None:
        """Ends the headers of a member; the next reads are of its content."""
        self._header_budget = None

    def tell(self) -> int:
        """Returns the number of bytes read so far."""
        return self._position

    def seek(self, position: int) -> int:
        """Skips content up to a position; returns the position reached.

        Raises:
            DataError: If the position is before the current one.
        """
        if position < self._position:
            raise _make_refusal(self._archive, "a header", "a size that leads backwards")
        while self._position < position:
            if not self._read_block(position - self._position):
                break
        return self._position

    def read(self, size: int) -> bytes:
        """Returns `size` bytes; fewer at the end.

        Raises:
            DataError: If the headers of a member, or the content, exceed their limit.
        """
        if self._header_budget is not None:
            self._header_budget -= size
            if size < 0 or self._header_budget < 0:
                raise _make_refusal(
                    self._archive, "a header", f"more than {MAX_HEADER_BYTES:,} bytes"
                )

        blocks = []
        while size > 0 and (block := self._read_block(size)):
            blocks.append(block)
            size -= len(block)
        return b"".join(blocks)

    def _read_block(self, max_size: int) -> bytes:
        """Returns up to `max_size` bytes, but at most `_BLOCK_BYTES`; b"" at the end.

        Raises:
            DataError: If the content exceeds its limit.
        """
        data = self._content.read(min(max_size, _BLOCK_BYTES))
        self._position += len(data)
        if self._position > self._max_bytes:
            raise _make_refusal(self._archive, "its content", "more bytes than its files may have")
        return data
