"""Random generators: they come back, and a missing file is not passed over."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from bsmeta.core.errors import CheckpointError
from bsmeta.training.saving import capture_rng, restore_rng, write_rng


def draw() -> list[float]:
    return [random.gauss(0, 1), random.random(), np.random.rand(), float(torch.rand(1))]  # noqa: NPY002


def test_random_state_comes_back(tmp_path: Path) -> None:
    (tmp_path / "rng").mkdir()
    random.gauss(0, 1)
    write_rng(capture_rng(), tmp_path, 0)
    first = draw()
    restore_rng(tmp_path, 0, saved_ranks=1, seed=0)
    assert draw() == first


def test_a_new_rank_seeds_itself(tmp_path: Path) -> None:
    restore_rng(tmp_path, 2, saved_ranks=2, seed=5)
    first = float(torch.rand(1))
    restore_rng(tmp_path, 2, saved_ranks=2, seed=5)
    assert float(torch.rand(1)) == first


def test_a_missing_file_of_a_rank_that_saved_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="rank1.pt: is missing, but 2 ranks saved"):
        restore_rng(tmp_path, 1, saved_ranks=2, seed=0)
