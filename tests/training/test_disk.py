"""Room for a checkpoint: what is asked before a save, and what is said after one that failed."""

from __future__ import annotations

import errno
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from bsmeta.config.errors import CheckpointError
from bsmeta.training.checkpoint import Writer
from bsmeta.training.distributed import ALONE
from bsmeta.training.retention import check_room, explained

Usage = namedtuple("Usage", "total used free")


def write(out_dir: Path, step: int, *, size: int) -> None:
    writer = Writer(out_dir, step, ALONE)
    for file in ("trainer_state.json", "data_state.json"):
        writer.write_json(file, {})
    (writer.folder / "config.yaml").write_bytes(bytes(size - 4))
    writer.commit()


def test_a_save_needs_room_for_the_last_one_and_a_little_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 1_050_000))
    check_room(tmp_path)  # nothing is known yet
    write(tmp_path, 4, size=1_000_000)
    write(tmp_path, 8, size=10_000_000)
    (tmp_path / "checkpoint-8step" / "manifest.json").unlink()  # and so of no known size
    (tmp_path / "checkpoint-5000step").mkdir()
    with pytest.raises(CheckpointError) as caught:
        check_room(tmp_path)
    for part in ("1050 kB free", "one needs 1100 kB", "checkpoint-4step is whole", "Free some"):
        assert part in str(caught.value)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 1_200_000))
    check_room(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
    ],
)
def test_a_full_disk_is_explained(tmp_path: Path, error: Exception) -> None:
    found = explained(error, tmp_path)
    assert isinstance(found, CheckpointError)
    assert "resume_from_checkpoint_dir=latest" in str(found)


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    error = RuntimeError("shapes do not match")
    assert explained(error, tmp_path) is error


def test_a_circle_of_causes_ends(tmp_path: Path) -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert explained(one, tmp_path) is one


def test_only_a_checkpoint_that_is_whole_is_called_so(tmp_path: Path) -> None:
    write(tmp_path, 4, size=1000)
    write(tmp_path, 8, size=1000)
    (tmp_path / "checkpoint-8step" / "config.yaml").write_bytes(bytes(500))
    error = explained(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert "checkpoint-4step is whole" in str(error)
    (tmp_path / "checkpoint-4step" / "config.yaml").write_bytes(bytes(500))
    error = explained(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert "There is no whole checkpoint yet" in str(error)
