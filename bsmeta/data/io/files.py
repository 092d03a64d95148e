"""Opens and decompresses files of documents, local (`str`) or remote (`FileRef`)."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import BinaryIO, cast

from bsmeta.core.files import refuse_special_file
from bsmeta.core.progress import report_each
from bsmeta.data.io.compression import AccessPoint, read_content
from bsmeta.data.io.file_ref import FileRef


def open_file(path: str | FileRef, num_kept_blocks: int = 1) -> BinaryIO:
    """Opens a file for reading.

    Args:
        num_kept_blocks: Number of the most recently read blocks of a remote file that are kept in
            memory.

    Raises:
        DataError: If it is a pipe, a socket or a device.
        OSError: If a local file cannot be opened; reading a remote one raises `DataError`.
    """
    if not isinstance(path, FileRef):
        refuse_special_file(path)
        return open(path, "rb")

    from bsmeta.data.io.remote.remote_file import RemoteFile

    return cast(BinaryIO, RemoteFile(path, num_kept_blocks))


def measure_file(path: str | FileRef) -> int:
    """Returns the size of a file in bytes."""
    return path.size if isinstance(path, FileRef) else os.path.getsize(path)


def refuse_bad_copy(path: str | FileRef) -> None:
    """Checks that a bad cached copy of a remote file is not the cause of a rejected document.

    Raises:
        DataError: If the cached copy differs from the remote file.
    """
    if isinstance(path, FileRef):
        from bsmeta.data.io.remote.remote_file import refuse_bad_cached_copy

        refuse_bad_cached_copy(path)


def read_shard_content(
    path: str | FileRef, file: BinaryIO, point: AccessPoint | None = None
) -> Generator[bytes, None, None]:
    """Yields the decompressed content of a shard in blocks; see `compression.read_content`.

    If a remote file is damaged, its cached copy is checked and, if it is bad, downloaded again;
    reading then resumes at the same byte.

    Raises:
        DamagedFileError: If the file itself is damaged, once the content before the damage is
            yielded.
        DataError: If the content read before the damage differs from the server's.
    """
    if isinstance(path, FileRef):
        from bsmeta.data.io.remote.remote_file import read_remote_content

        yield from read_remote_content(path, file, point)
    else:
        yield from report_each(read_content(path, file, point))
