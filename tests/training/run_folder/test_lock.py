"""The lock of a run folder, also if the folder is deleted or taken by another run."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, TrainingError
from bsmeta.training.run_folder.lock import FolderLock


def hold(folder: Path) -> FolderLock:
    lock = FolderLock(folder)
    lock.acquire()
    lock.record_owner()
    return lock


def test_a_held_folder_is_refused(tmp_path: Path) -> None:
    lock = hold(tmp_path / "run")
    assert lock.is_held
    other = FolderLock(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="held by another run that is in progress"):
        other.acquire()
    assert not other.is_held


def test_a_deleted_folder_is_locked_again(tmp_path: Path) -> None:
    lock = hold(tmp_path / "run")
    assert not lock.is_gone()
    assert not lock.is_in_other_folder()

    shutil.rmtree(tmp_path / "run")
    assert lock.is_gone()
    assert lock.is_in_other_folder()
    assert not lock.is_replaced()

    lock.acquire_again()
    assert not lock.is_gone()
    with pytest.raises(ConfigurationError, match="held by another run"):
        hold(tmp_path / "run")


def test_a_deleted_lock_in_the_same_folder_is_gone(tmp_path: Path) -> None:
    lock = hold(tmp_path)
    (tmp_path / ".lock").unlink()
    assert lock.is_gone()
    assert not lock.is_in_other_folder()


def test_a_folder_that_another_run_has_taken_is_not_locked_again(tmp_path: Path) -> None:
    lock = hold(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    other = hold(tmp_path / "run")
    assert lock.is_replaced()
    assert not other.is_replaced()
    with pytest.raises(TrainingError, match="the folder there is now that of another run"):
        lock.acquire_again()


def test_a_second_holder_is_noticed_where_locks_do_not_exclude(tmp_path: Path) -> None:
    """As on a file system without locks between machines."""
    first = hold(tmp_path)
    first.check_owner()
    second = FolderLock(tmp_path)
    second.record_owner()
    second.check_owner()
    assert first.is_replaced()
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(TrainingError, match=f"is also used by the run of {owner}, which the lock"):
        first.check_owner()
