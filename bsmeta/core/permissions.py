"""Gives files written by libraries the usual permissions of new files in their folder.

Safetensors, for example, writes to a temporary file that only its owner may read, and renames it.
"""

from __future__ import annotations

import stat
import uuid
from contextlib import suppress
from pathlib import Path


def follow_umask(folder: Path) -> None:
    """Gives the files below a folder the permissions of new files under the umask.

    On a file system without permissions, nothing changes.

    Args:
        folder: A folder written by this process; its subfolders have the permissions already.
    """
    mode = _read_mode_of_new_files(folder)
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue

        if stat.S_IMODE(path.stat().st_mode) != mode:
            with suppress(OSError):
                path.chmod(mode)


def _read_mode_of_new_files(folder: Path) -> int:
    """Returns the permissions of a new file, by creating one in the folder.

    A process can only read its umask by changing it for all threads, and a folder with an access
    control list has other permissions for new files.
    """
    file = folder / f".{uuid.uuid4().hex}"
    file.touch()
    try:
        return stat.S_IMODE(file.stat().st_mode)
    finally:
        file.unlink()
