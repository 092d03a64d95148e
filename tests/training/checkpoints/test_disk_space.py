"""Room for a checkpoint, and the message when a disk is full."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from bsmeta.core.errors import DataError
from bsmeta.training.checkpoints.checkpoint import DATA_STATE_FILE, TRAINER_STATE_FILE
from bsmeta.training.checkpoints.disk_space import check_room, explain_full_disk
from tests.disks import small_disk
from tests.training.test_retention import begin

__all__ = ["small_disk"]

Usage = namedtuple("Usage", "total used free")


def write(out_dir: Path, step: int, *, size: int) -> None:
    writer = begin(out_dir, step)
    for file in ("trainer_state.json", "data_state.json"):
        writer.write_json(file, {})
    (writer.folder / "config.yaml").write_bytes(bytes(size - 4))
    writer.commit()


def test_a_save_needs_slightly_more_room_than_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 1_050_000))
    check_room(tmp_path)  # nothing is known yet
    write(tmp_path, 4, size=1_000_000)
    write(tmp_path, 8, size=10_000_000)
    (tmp_path / "checkpoint-8step" / "manifest.json").unlink()  # and so of no known size
    (tmp_path / "checkpoint-5000step").mkdir()
    with pytest.raises(DataError) as caught:
        check_room(tmp_path)
    for part in ("1,050 kB free", "one needs 1,100 kB", "checkpoint-4step is intact", "Free some"):
        assert part in str(caught.value)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 1_200_000))
    check_room(tmp_path)


@pytest.mark.parametrize(
    ("has_model", "export_dtype", "needed"),
    [
        (True, None, "3,300 kB"),
        (True, "bfloat16", "3,300 kB"),
        (False, None, "1,540 kB"),
        (False, "bfloat16", "1,320 kB"),
    ],
)
def test_a_save_with_a_model_needs_room_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_model: bool,
    export_dtype: str | None,
    needed: str,
) -> None:
    """The size of the last model, or 2 or 4 bytes for each of its 100,000 weights."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 1_200_000))
    writer = begin(tmp_path, 2)
    writer.write_json(TRAINER_STATE_FILE, {"parameters": {"a": [200, 400], "b": [20_000]}})
    writer.write_json(DATA_STATE_FILE, {})
    (writer.folder / "config.yaml").write_bytes(bytes(1_000_000))
    if has_model:
        (writer.folder / "model").mkdir()
        (writer.folder / "model" / "model.safetensors").write_bytes(bytes(2_000_000))
    writer.commit()
    check_room(tmp_path)
    with pytest.raises(DataError, match=f"one needs {needed}"):
        check_room(tmp_path, with_model=True, export_dtype=export_dtype)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
    ],
)
def test_a_full_disk_is_explained(tmp_path: Path, error: Exception) -> None:
    explained = explain_full_disk(error, tmp_path)
    assert isinstance(explained, DataError)
    assert "resume_from_checkpoint_dir=latest" in str(explained)


def test_an_explained_error_is_not_explained_again(tmp_path: Path) -> None:
    cause = OSError(errno.ENOSPC, "No space left on device")
    explanation = explain_full_disk(cause, tmp_path)
    explanation.__cause__ = cause
    assert explain_full_disk(explanation, tmp_path) is explanation
    assert str(explanation).count("No space left on device") == 1


def test_other_errors_are_unchanged(tmp_path: Path) -> None:
    error = RuntimeError("shapes do not match")
    assert explain_full_disk(error, tmp_path) is error


def test_a_cycle_of_causes_ends(tmp_path: Path) -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert explain_full_disk(one, tmp_path) is one


def test_only_an_intact_checkpoint_is_called_intact(tmp_path: Path) -> None:
    write(tmp_path, 4, size=1000)
    write(tmp_path, 8, size=1000)
    (tmp_path / "checkpoint-8step" / "config.yaml").write_bytes(bytes(500))
    error = explain_full_disk(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert "checkpoint-4step is intact" in str(error)
    (tmp_path / "checkpoint-4step" / "config.yaml").write_bytes(bytes(500))
    error = explain_full_disk(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert "There is no intact checkpoint yet" in str(error)


def test_a_full_disk_other_than_that_of_the_run_is_named(tmp_path: Path, small_disk: Path) -> None:
    """The run folder has room, so its disk is not to blame."""
    with pytest.raises(OSError, match="No space") as full:
        (small_disk / "file").write_bytes(bytes(1 << 20))
    full.value.filename = os.fspath(small_disk / "file")  # as open() and rename() set it
    error = explain_full_disk(full.value, tmp_path)
    assert str(error).startswith(f"the disk of {small_disk / 'file'} is full ([Errno 28]")
    assert "There is no intact checkpoint yet" in str(error)
