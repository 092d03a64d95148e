"""Gives files that libraries have written the usual permissions of new files in their folder.

Safetensors, for example, renames a temporary file that only its owner may read.
"""

from __future__ import annotations

import stat
import uuid
from contextlib import suppress
from pathlib import Path


def follow_umask(folder: Path) -> None:
    """Gives all files below a folder the permissions of new files there; subfolders keep theirs.

    Nothing changes on a file system without permissions.

    Args:
        folder: A folder that this process has written.
    """
    mode = _read_new_file_mode(folder)
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue

        if stat.S_IMODE(path.stat().st_mode) != mode:
            with suppress(OSError):
                path.chmod(mode)


def _read_new_file_mode(folder: Path) -> int:
    """Returns the permissions of a new file, by creating one in the folder.

    The umask does not suffice: a folder may have an access control list, and a process can read
    its umask only by changing it, for all threads.
    """
    file = folder / f".{uuid.uuid4().hex}"
    file.touch()
    try:
        return stat.S_IMODE(file.stat().st_mode)
    finally:
        file.unlink()
