"""Copies of a state, which share memory; random generators, which come back."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from bsmeta.core.errors import CheckpointError
from bsmeta.training.engines import HostCopies
from bsmeta.training.saving import capture_rng, restore_rng, write_rng


def test_copies_are_made_in_the_same_memory() -> None:
    tied, state = torch.arange(6.0), torch.arange(4)
    value = {"model": {"in": tied, "out": tied}, "optimizer": [{"step": 3, "state": state}, ()]}
    copies = HostCopies()
    first = copies.nested(value)
    assert first["model"]["in"] is first["model"]["out"]
    torch.testing.assert_close(first, value, rtol=0, atol=0)
    tied += 1
    assert first["model"]["in"].tolist() == [0, 1, 2, 3, 4, 5]
    second = copies.nested(value)
    assert second["model"]["in"] is first["model"]["in"]
    assert second["model"]["in"].tolist() == [1, 2, 3, 4, 5, 6]
    assert second["optimizer"][0]["state"] is first["optimizer"][0]["state"] is not state
    grown = copies.nested({"model": {"in": torch.arange(8.0)}})
    assert grown["model"]["in"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


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
