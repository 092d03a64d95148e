"""The permissions of files that libraries write: those of any file that is made in their folder.

Safetensors writes to a temporary file that only its owner may read, and renames it.
"""

from __future__ import annotations

import stat
import uuid
from contextlib import suppress
from pathlib import Path


def follow_umask(folder: Path) -> None:
    """Gives the files below a folder the permissions that the umask leaves to new files.

    Where the file system has none to give, they stay as they are.

    Args:
        folder: What this process has written; its folders have these permissions already.
    """
    mode = _mode_of_new_files(folder)
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        if stat.S_IMODE(path.stat().st_mode) != mode:
            with suppress(OSError):
                path.chmod(mode)


def _mode_of_new_files(folder: Path) -> int:
    """The permissions of a file that is made for this.

    A process can only read its umask by changing it, for all threads; and a folder with an access
    control list has permissions of its own for new files.
    """
    file = folder / f".{uuid.uuid4().hex}"
    file.touch()
    try:
        return stat.S_IMODE(file.stat().st_mode)
    finally:
        file.unlink()
