"""Tensors on disk: read whole by any process, and errors of files and of the disk are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bsmeta.core.errors import CheckpointError
from bsmeta.training.checkpoints.shards import read_full_tensors, read_tensor_shapes, write_shards
from bsmeta.training.ranks.processes import ALONE
from tests.disks import small_disk

__all__ = ["small_disk"]

WEIGHT = torch.arange(6.0).reshape(2, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = {"model/weight": WEIGHT, "optimizer/step/weight": torch.tensor(4.0)}
    write_shards(state, tmp_path / "state", ALONE)
    return tmp_path / "state"


def test_whole_tensors_are_read_by_prefix(folder: Path) -> None:
    assert read_tensor_shapes(folder) == {
        "model/weight": (torch.Size([2, 3]), torch.float32),
        "optimizer/step/weight": (torch.Size([]), torch.float32),
    }
    tensors = read_full_tensors(folder, "model/")
    assert list(tensors) == ["model/weight"]
    assert torch.equal(tensors["model/weight"], WEIGHT)


def test_a_missing_or_truncated_part_is_named(folder: Path) -> None:
    (part,) = folder.glob("*.distcp")
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(CheckpointError, match=rf"^{folder}: \w+: .* \(rank 0\)$"):
        read_full_tensors(folder, "model/")
    part.rename(folder / "other.distcp")
    with pytest.raises(CheckpointError, match=rf"^{folder}: cannot be read \(FileNotFoundError"):
        read_full_tensors(folder, "model/")


@pytest.mark.parametrize(("count", "size"), [(1, 1_000_000), (20, 10_000), (3000, 10)])
def test_a_full_disk_is_an_error_of_the_system(small_disk: Path, count: int, size: int) -> None:
    """Its number is all that other ranks learn of it."""
    tensors = {str(number): torch.ones(size) for number in range(count)}
    with pytest.raises(OSError, match="No space left on device"):
        write_shards(tensors, small_disk / "state", ALONE)
