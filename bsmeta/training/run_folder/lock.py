"""The lock of a run folder, which notices that the folder was deleted or taken by another run."""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from bsmeta.core.errors import ConfigurationError, TrainingError
from bsmeta.core.files import write_text
from bsmeta.training.run_folder.status import LOCK

OWNER = ".owner"
"""File in the run folder that names the process that holds the lock."""

_TIMEOUT_S = 0.5  # a reader of the status holds the lock for a moment


class FolderLock:
    """The lock of one process on a run folder.

    Files and folders are compared by their inodes, because others may take their names. Some
    network file systems have locks within a machine only; there, the file `OWNER` shows that a
    process of another machine has opened the folder later.

    Attributes:
        file_lock: The lock on the file `LOCK`.
        owner: Content of the file `OWNER` while this process holds the lock.
    """

    def __init__(self, folder: Path) -> None:
        self.file_lock = FileLock(folder / LOCK)
        self.owner = f"process {os.getpid()} on {socket.gethostname()}, {uuid.uuid4().hex}\n"
        self._folder = folder
        self._identity: _FileIdentity | None = None  # of the lock, while this process holds it
        self._owner_identity: _FileIdentity | None = None
        self._directory = -1  # kept open, so that no other folder gets its inode

    def acquire(self) -> None:
        """Creates the folder if necessary, and locks it.

        Raises:
            ConfigurationError: If another run holds the lock.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self.file_lock.acquire(timeout=_TIMEOUT_S, poll_interval=0.05)
        except Timeout:
            raise ConfigurationError(
                f"out_dir: {self._folder} is held by another run that is in progress; choose "
                "another folder for this one"
            ) from None

    def record_owner(self) -> None:
        """Records that this process holds the folder, here and in the folder."""
        if self._directory >= 0:
            os.close(self._directory)
        self._directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        self._identity = _identify_file(self._folder / LOCK)

        write_text(self._folder / OWNER, self.owner)
        self._owner_identity = _identify_file(self._folder / OWNER)

    @property
    def is_held(self) -> bool:
        """Whether this process has locked the folder; also after the lock was deleted."""
        return self._identity is not None

    def is_gone(self) -> bool:
        """Whether the lock that this process holds was deleted, alone or with the folder.

        Raises:
            OSError: For example, if a network file system does not respond.
        """
        return _identify_file(self._folder / LOCK) != self._identity

    def is_in_other_folder(self) -> bool:
        """Whether the locked folder was deleted or moved, even if another has its name now."""
        status = os.fstat(self._directory)
        return _identify_file(self._folder) != _FileIdentity(status.st_dev, status.st_ino)

    def acquire_again(self) -> None:
        """Locks the folder after its lock was deleted, and creates it if necessary.

        Raises:
            TrainingError: If another run holds the lock now.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._folder / LOCK, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise make_replaced_error(self._folder) from None
        self.file_lock = lock
        self.record_owner()

    def is_replaced(self) -> bool:
        """Whether the folder belongs to another run now."""
        if self._identity is None:
            return False
        with suppress(OSError):
            current_identity = _identify_file(self._folder / LOCK)
            if current_identity == self._identity:
                return self._find_other_owner() is not None
            return current_identity is not None
        return False

    def check_owner(self) -> None:
        """Refuses to continue if another process has opened the folder despite the lock.

        Raises:
            TrainingError: If there is such a process.
            OSError: For example, if a network file system does not respond.
        """
        other_owner = self._find_other_owner()
        if other_owner is not None:
            raise TrainingError(
                f"out_dir: {self._folder} is also used by the run of {other_owner}, which the lock "
                "did not keep out: its file system has no locks between machines. Nothing more "
                "was written. Give each run an out_dir of its own; what both have logged is mixed "
                "since the later one began"
            )

    def _find_other_owner(self) -> str | None:
        """Describes the process that opened the folder after this one; None if there is none."""
        owner_identity = _identify_file(self._folder / OWNER)
        if owner_identity in (None, self._owner_identity):
            return None

        owner = (self._folder / OWNER).read_text(encoding="utf-8", errors="replace")
        if owner == self.owner:
            self._owner_identity = owner_identity  # written again with the folder
            return None
        return owner.partition(",")[0]


def make_replaced_error(folder: Path) -> TrainingError:
    """Makes the error for a folder that now belongs to another run."""
    return TrainingError(
        f"out_dir: {folder} was replaced during the run: the folder there is now that of "
        "another run, or a copy of this one, and nothing was written to it. Start this run "
        "again in another out_dir"
    )


class _FileIdentity(NamedTuple):
    """Identifies a file or folder even if another one takes its name."""

    device: int
    inode: int


def _identify_file(path: Path) -> _FileIdentity | None:
    """Returns the identity of a file; None if it does not exist.

    Raises:
        OSError: For example, if a network file system does not respond.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return _FileIdentity(status.st_dev, status.st_ino)
