"""Checkpoints: sealed, found again, and refused when a file is not what was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bsmeta.config.errors import CheckpointError, ConfigurationError
from bsmeta.training import checkpoint
from bsmeta.training.distributed import Processes

ALONE = Processes(0, 1, torch.device("cpu"))


def write(out_dir: Path, step: int) -> Path:
    writer = checkpoint.Writer(out_dir, step, ALONE)
    (writer.folder / "state").mkdir()
    (writer.folder / "state" / "weights").write_bytes(bytes(range(256)) * 40)
    writer.write_json("trainer_state.json", {"step": step})
    return writer.commit().folder


def test_a_committed_checkpoint_is_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = write(tmp_path, 7)
    assert folder == tmp_path / "checkpoint-7step"
    assert checkpoint.problems(folder, ALONE) == []
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
def test_a_damaged_file_is_named_and_the_checkpoint_before_it_taken(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1)
    newest = write(tmp_path, 2)
    damage(newest / "state" / "weights")
    chosen = checkpoint.choose("latest", tmp_path, ALONE)
    assert chosen == checkpoint.Checkpoint(tmp_path / "checkpoint-1step", 1)
    assert str(newest / "state" / "weights") in caplog.text
    with pytest.raises(CheckpointError, match="state/weights"):
        checkpoint.choose(str(newest), tmp_path, ALONE)


def test_latest_orders_by_number(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 9)
    chosen = checkpoint.choose("latest", tmp_path, ALONE)
    assert chosen is not None
    assert chosen.step == 10


def test_all_damaged_is_an_error_and_none_at_all_is_a_fresh_start(tmp_path: Path) -> None:
    assert checkpoint.choose("latest", tmp_path, ALONE) is None
    (write(tmp_path, 3) / checkpoint.MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
        checkpoint.choose("latest", tmp_path, ALONE)


def test_a_path_that_is_no_checkpoint_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a checkpoint folder"):
        checkpoint.choose(str(tmp_path), tmp_path, ALONE)


def test_an_interrupted_save_does_not_count_and_is_removed(tmp_path: Path) -> None:
    checkpoint.Writer(tmp_path, 5, ALONE)
    assert checkpoint.found(tmp_path) == []
    checkpoint.clean(tmp_path)
    assert list(tmp_path.iterdir()) == []
