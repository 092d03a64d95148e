"""Checkpoints: sealed, found again, and refused when a file is not what was written."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bsmeta.core.errors import CheckpointError, ConfigurationError
from bsmeta.models import manifest
from bsmeta.models.manifest import FileEntry
from bsmeta.training.checkpoints import checkpoint
from bsmeta.training.checkpoints.checkpoint import Checkpoint, list_checkpoints
from bsmeta.training.ranks.processes import ALONE
from tests.training.written_checkpoints import begin_checkpoint, write_checkpoint


def test_a_committed_checkpoint_is_intact_and_leaves_no_other_files(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 7)
    assert folder == tmp_path / "checkpoint-7step"
    assert checkpoint.list_faults(Checkpoint(folder, 7), ALONE) == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint-7step"]


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def zero_tail(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8] + bytes(8))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[1234] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, zero_tail, flip_a_bit, Path.unlink])
def test_a_damaged_file_is_named_and_the_previous_checkpoint_used(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(tmp_path, 1)
    newest = write_checkpoint(tmp_path, 2)
    damage(newest / "state" / "weights")
    intact, faults = checkpoint.find_newest_intact(tmp_path, ALONE)
    assert intact == Checkpoint(tmp_path / "checkpoint-1step", 1)
    assert len(faults) == 1
    assert str(newest / "state" / "weights") in faults[0]
    assert faults[0] in caplog.text


def test_the_latest_checkpoint_is_found_by_number(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10)
    write_checkpoint(tmp_path, 9)
    newest, faults = checkpoint.find_newest_intact(tmp_path, ALONE)
    assert newest == Checkpoint(tmp_path / "checkpoint-10step", 10)
    assert faults == []


def test_an_interrupted_save_is_ignored_and_removed(tmp_path: Path) -> None:
    checkpoint.Writer(tmp_path, 5, ALONE)
    assert list_checkpoints(tmp_path) == []
    checkpoint.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["state", "rng", "trainer_state.json"])
def test_a_checkpoint_with_a_deleted_part_is_not_committed(tmp_path: Path, part: str) -> None:
    writer = begin_checkpoint(tmp_path, 5)
    if (writer.folder / part).is_dir():
        shutil.rmtree(writer.folder / part)
    else:
        (writer.folder / part).unlink()
    with pytest.raises(FileNotFoundError, match=f"{part} was deleted while"):
        writer.commit()
    assert list_checkpoints(tmp_path) == []


def test_a_save_does_not_recreate_a_deleted_run_folder(tmp_path: Path) -> None:
    """A recreated folder would lack the mark of a run, as if it were a user's folder."""
    with pytest.raises(FileNotFoundError):
        checkpoint.Writer(tmp_path / "deleted", 5, ALONE)
    assert not (tmp_path / "deleted").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "2", "got `str` - at `$.format`"),
        ("step", "7", "got `str` - at `$.step`"),
        ("step", 8, "is of step 8, but its folder is named checkpoint-7step"),
        ("files", ["a"], "Expected `object`, got `array` - at `$.files`"),
        ("files", {}, "does not list trainer_state.json"),
        ("files", {"a": 5}, "Expected `object`, got `int`"),
        ("files", {"a": {"bytes": "5", "xxh3": 32 * "0"}}, "Expected `int`, got `str`"),
        ("files", {"a": {"bytes": 5}}, "missing required field `xxh3`"),
        ("files", {"../a": {"bytes": 5, "xxh3": 32 * "0"}}, "the name '../a' cannot"),
        ("files", {"/a": {"bytes": 5, "xxh3": 32 * "0"}}, "the name '/a' cannot"),
    ],
)
def test_a_malformed_manifest_is_named(tmp_path: Path, key: str, value: Any, message: str) -> None:
    write_checkpoint(tmp_path, 6)
    file = write_checkpoint(tmp_path, 7) / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    (fault,) = checkpoint.list_faults(Checkpoint(file.parent, 7), ALONE)
    assert str(file) in fault
    assert message in fault
    newest, faults = checkpoint.find_newest_intact(tmp_path, ALONE)
    assert newest == Checkpoint(tmp_path / "checkpoint-6step", 6)
    assert faults == [fault]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (5, r"an earlier version .* \(format 5, expected 6\)"),
        (7, "a later version .* start afresh"),
    ],
)
def test_a_checkpoint_of_another_version_is_refused(
    number: int, message: str, tmp_path: Path
) -> None:
    """It is neither damaged nor skipped, since an older checkpoint may have the same version."""
    write_checkpoint(tmp_path, 6)
    file = write_checkpoint(tmp_path, 7) / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": number}))
    with pytest.raises(ConfigurationError, match=message):
        checkpoint.list_faults(Checkpoint(file.parent, 7), ALONE)
    with pytest.raises(ConfigurationError, match=message):
        checkpoint.find_newest_intact(tmp_path, ALONE)


@pytest.mark.parametrize("content", ["[]", "null", "7", '{"files": {}}', 5000 * "["])
def test_a_file_that_is_no_manifest_is_a_fault(tmp_path: Path, content: str) -> None:
    file = write_checkpoint(tmp_path, 7) / "manifest.json"
    file.write_text(content)
    (fault,) = checkpoint.list_faults(Checkpoint(file.parent, 7), ALONE)
    assert f"{file}: cannot be read" in fault


def test_a_copy_under_the_name_of_another_step_is_skipped(tmp_path: Path) -> None:
    shutil.copytree(write_checkpoint(tmp_path, 7), tmp_path / "checkpoint-5000step")
    newest, _ = checkpoint.find_newest_intact(tmp_path, ALONE)
    assert newest == Checkpoint(tmp_path / "checkpoint-7step", 7)


@pytest.mark.parametrize("folder", ["state", "state/pytorch_model", "rng"])
def test_a_file_to_load_that_the_manifest_does_not_list_is_refused(
    tmp_path: Path, folder: str
) -> None:
    saved = write_checkpoint(tmp_path, 7)
    (saved / "KEEP").touch()  # what a person may put there
    (saved / "notes.txt").touch()
    assert checkpoint.list_faults(Checkpoint(saved, 7), ALONE) == []
    (saved / folder).mkdir(exist_ok=True)
    extra = saved / folder / "__9_0.distcp"
    for make in (extra.touch, lambda: extra.symlink_to(tmp_path)):
        make()
        (fault,) = checkpoint.list_faults(Checkpoint(saved, 7), ALONE)
        assert f"{extra}: is not listed in manifest.json" in fault
        extra.unlink()


def test_a_file_that_cannot_be_read_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector must not end a run that could resume from the previous checkpoint."""
    saved = write_checkpoint(tmp_path, 7)
    read = manifest.describe_file

    def fail(file: Path) -> FileEntry:
        if file.name == "weights":
            raise OSError(errno.EIO, "Input/output error")
        return read(file)

    monkeypatch.setattr(manifest, "describe_file", fail)
    (fault,) = checkpoint.list_faults(Checkpoint(saved, 7), ALONE)
    assert fault == f"{saved}/state/weights: cannot be read ([Errno 5] Input/output error)"


def test_later_checkpoints_are_set_aside_and_kept(tmp_path: Path) -> None:
    for _ in range(3):
        for step in (10, 20, 30):
            write_checkpoint(tmp_path, step)
        checkpoint.set_aside_newer(tmp_path, 10)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "checkpoint-10step",
        "superseded-checkpoint-20step",
        "superseded-checkpoint-20step.2",
        "superseded-checkpoint-20step.3",
        "superseded-checkpoint-30step",
        "superseded-checkpoint-30step.2",
        "superseded-checkpoint-30step.3",
    ]
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [10]


def test_a_path_of_the_manifest_that_is_too_long_is_a_fault(tmp_path: Path) -> None:
    """Although each part could be the name of a folder."""
    name = "/".join(99 * ["a" * 99])
    file = write_checkpoint(tmp_path, 7) / "manifest.json"
    content = json.loads(file.read_text())
    content["files"][name] = {"bytes": 5, "xxh3": 32 * "0"}
    file.write_text(json.dumps(content))
    (fault,) = checkpoint.list_faults(Checkpoint(file.parent, 7), ALONE)
    assert fault.startswith(f"{file.parent / name}: cannot be read ([Errno 36] File")


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "JSONDecodeError: Expecting property name"),
        (DEEP, "ExtremeContentError: nested too deeply"),
        ("[1]", "ValueError: found list, expected an object"),
        ('{"engine": 5}', "ValidationError: Expected `str`, got `int` - at `$.engine`"),
        ('{"parameters": {"a": 5}}', "Expected `array`, got `int` - at `$.parameters[...]`"),
        ('{"progress": [1]}', "Expected `object`, got `array` - at `$.progress`"),
        ('{"last_losses": ["x"]}', "Expected `float`, got `str` - at `$.last_losses[0]`"),
    ],
)
def test_a_malformed_trainer_state_is_named(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(CheckpointError) as error:
        Checkpoint(tmp_path, 7).read_state()
    assert str(error.value).startswith(f"{tmp_path / 'trainer_state.json'}: cannot be read (")
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
        (DEEP.encode(), "ExtremeContentError: nested too deeply"),
        (b"7", "ValueError: found int, expected an object"),
    ],
)
def test_a_malformed_data_state_is_named(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "data_state.json").write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        Checkpoint(tmp_path, 7).read_data()
    assert str(error.value).startswith(f"{tmp_path / 'data_state.json'}: cannot be read (")
    assert reason in str(error.value)


def test_infinite_losses_are_a_valid_state(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"last_losses": [1.5, NaN, Infinity]}')
    assert str(Checkpoint(tmp_path, 7).read_state()) == "{'last_losses': [1.5, nan, inf]}"
