"""The permissions of files that libraries write: those that the user's umask leaves, as of others.

Safetensors writes to a temporary file that only its owner may read, and renames it.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

_UMASK = re.compile(r"^Umask:\s*([0-7]+)$", re.MULTILINE)


def follow_umask(folder: Path) -> None:
    """Gives the files below a folder the permissions of files that are opened to be written.

    Where the file system has none to give, they stay as they are.

    Args:
        folder: What this process has written; its folders have these permissions already.
    """
    mode = 0o666 & ~umask()
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        if stat.S_IMODE(path.stat().st_mode) != mode:
            with suppress(OSError):
                path.chmod(mode)


def umask() -> int:
    """The umask of this process."""
    with suppress(OSError):
        found = _UMASK.search(Path("/proc/self/status").read_text())
        if found is not None:
            return int(found[1], 8)
    # It can only be read by changing it, for all threads: strictly, for what they open meanwhile.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
