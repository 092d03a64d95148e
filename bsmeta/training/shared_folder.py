"""Checks that a folder is shared by all ranks.

On machines that do not share `out_dir`, the same path names a different folder on each, and nothing
would fail until the first checkpoint, hours later.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bsmeta.core.errors import ConfigurationError

if TYPE_CHECKING:  # imports torch, which is slow; a run that is refused should fail fast
    from bsmeta.training.processes import Processes

TOKEN = ".shared-folder-"
"""Prefix of the file that rank 0 writes for the check."""

_WAIT_S = 10.0  # a network file system may show a new file on other machines only after a while
_PAUSE_S = 0.2
_RANKS_SHOWN = 5  # in a message


class _Sight(NamedTuple):
    """Where a rank looked for the file of rank 0, and whether it found it."""

    rank: int
    host: str
    path: str
    is_shared: bool


def check_is_shared(folder: Path, key: str, processes: Processes) -> None:
    """Refuses a folder in which a rank does not find the file that rank 0 has just written.

    All ranks call it, each with its own path; the folder exists on rank 0.

    Args:
        key: The configuration key that names the folder.

    Raises:
        ConfigurationError: If a rank has another folder, or cannot read it.
    """
    if processes.size == 1:
        return

    token = folder / f"{TOKEN}{secrets.token_hex(8)}"
    name, content = processes.on_main(lambda: _write_token(token))
    is_shared = _sees_content(folder / name, content)
    sights = processes.gather(_Sight(processes.rank, socket.gethostname(), str(folder), is_shared))
    if processes.is_main:
        token.unlink(missing_ok=True)

    failures = [sight for sight in sights if not sight.is_shared]
    if not failures:
        return

    first = sights[0]
    descriptions = [
        f"rank {sight.rank} on {sight.host} has {sight.path}" for sight in failures[:_RANKS_SHOWN]
    ]
    if len(failures) > _RANKS_SHOWN:
        descriptions.append(f"and {len(failures) - _RANKS_SHOWN} more")
    raise ConfigurationError(
        f"{key}: not all processes share one folder: rank 0 on {first.host} has {first.path} and "
        f"wrote a file there, which {len(failures)} of {processes.size} ranks do not find: "
        f"{'; '.join(descriptions)}. Expected a folder on a file system that all machines share "
        "(such as NFS or Lustre), named by an absolute path: a relative one depends on the working "
        "folder of each process"
    )


def _write_token(token: Path) -> tuple[str, str]:
    """Writes a new file; returns its name and its content."""
    content = secrets.token_hex(16)
    token.write_text(content)
    return token.name, content


def _sees_content(file: Path, content: str) -> bool:
    """Waits up to `_WAIT_S` seconds for a file with this content; returns whether it appeared."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            os.listdir(file.parent)  # makes an NFS client refresh the folder
            if file.read_text() == content:
                return True
        except OSError:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
