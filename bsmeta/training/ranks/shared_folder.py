"""Determines which ranks share a folder.

On machines that do not share `out_dir`, the same path names a different folder on each, and nothing
would fail until the first checkpoint, hours later. A run in a bucket needs no shared folder, but
its ranks must know with whom they share theirs.
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
    from bsmeta.training.ranks.processes import Processes

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


def check_is_shared(folder: Path, processes: Processes) -> None:
    """Refuses an `out_dir` in which a rank does not find the file that rank 0 has just written.

    All ranks call it, each with its own path; the folder exists on rank 0.

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
        f"out_dir: not all processes share one folder: rank 0 on {first.host} has {first.path} and "
        f"wrote a file there, which {len(failures)} of {processes.size} ranks do not find: "
        f"{'; '.join(descriptions)}. Expected a folder on a file system that all machines share "
        "(such as NFS or Lustre), named by an absolute path: a relative one depends on the working "
        "folder of each process"
    )


class _Folder(NamedTuple):
    """Identifies a folder on one machine; a shared folder has another identity on each machine."""

    machine: str
    device: int
    inode: int


def find_leaders(folder: Path, processes: Processes) -> tuple[int, ...]:
    """Returns for each rank the lowest rank with the same folder; () if all share one.

    All ranks call it, each with its own path; missing folders are created. Ranks of one machine
    compare the inodes. The first rank of each folder of a machine looks for the files that those
    of other machines have written.

    Raises:
        ConfigurationError: If a folder cannot be written, or is shared in one direction only.
    """
    if processes.size == 1:
        return ()

    folders = processes.run_on_all(lambda: _prepare(folder))
    first_ranks = [folders.index(identity) for identity in folders]
    rank = processes.rank
    token = folder / f"{TOKEN}{processes.broadcast(secrets.token_hex(8))}"
    is_first = first_ranks[rank] == rank
    try:
        processes.run_on_all(lambda: _write_rank(token, rank) if is_first else None)
        others = [
            other
            for other in sorted(set(first_ranks))
            if other < rank and folders[other].machine != folders[rank].machine
        ]
        lowest_rank = _find_lowest_rank(token, others, rank) if is_first else rank
        lowest_ranks = processes.gather(lowest_rank)
    finally:
        if is_first:
            _name_token(token, rank).unlink(missing_ok=True)

    leaders = tuple(lowest_ranks[first_rank] for first_rank in first_ranks)
    for follower, leader in enumerate(leaders):
        if leaders[leader] != leader:
            raise ConfigurationError(
                f"staging_dir: rank {follower} finds the files of rank {leader}, which finds those "
                f"of rank {leaders[leader]}, which rank {follower} does not find; expected a local "
                "folder on each machine, or one that all machines share. Choose another staging_dir"
            )
    return leaders if any(leaders) else ()


def _prepare(folder: Path) -> _Folder:
    """Creates a folder if it does not exist, and identifies it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ConfigurationError(
            f"staging_dir: {folder} on {socket.gethostname()} cannot be used: "
            f"{error.strerror or error}; expected a folder that can be written"
        ) from error
    return _Folder(_identify_machine(), status.st_dev, status.st_ino)


def _identify_machine() -> str:
    """Returns an identifier that two machines do not share, even if their names are the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return socket.gethostname()


def _name_token(token: Path, rank: int) -> Path:
    return token.with_name(f"{token.name}-{rank}")


def _write_rank(token: Path, rank: int) -> None:
    """Writes the file by which other ranks recognize the folder of a rank."""
    _name_token(token, rank).write_text("")


def _find_lowest_rank(token: Path, others: list[int], rank: int) -> int:
    """Waits up to `_WAIT_S` seconds for the file of the first of `others`, which are sorted.

    Returns:
        The lowest rank whose file has appeared; `rank` if there is none.
    """
    if not others:
        return rank

    deadline = time.monotonic() + _WAIT_S
    while True:
        names = os.listdir(token.parent)  # makes an NFS client refresh the folder
        visible = [other for other in others if _name_token(token, other).name in names]
        if visible[:1] == others[:1] or time.monotonic() > deadline:
            return visible[0] if visible else rank
        time.sleep(_PAUSE_S)


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
