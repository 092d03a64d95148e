"""Random generators, which come back from a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bsmeta.core.errors import CheckpointError
from bsmeta.training.checkpoints.rng import capture_rng, restore_rng, write_rng
from tests.training.checkpoints.pickles import write_call

CPU = torch.device("cpu")


def draw() -> list[float]:
    return [random.gauss(0, 1), random.random(), np.random.rand(), float(torch.rand(1))]  # noqa: NPY002


def test_random_state_is_restored(tmp_path: Path) -> None:
    (tmp_path / "rng").mkdir()
    random.gauss(0, 1)
    write_rng(capture_rng(CPU), tmp_path, 0)
    first = draw()
    restore_rng(tmp_path, 0, saved_ranks=1, seed=0, device=CPU)
    assert draw() == first


def test_a_rank_saves_and_restores_the_generator_of_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank sees four GPUs, saves on the third, and resumes on the second; GPUs are a table."""
    generators = {torch.device("cuda", index): torch.tensor([index]) for index in range(4)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: generators[device])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: generators.update({device: state})
    )
    (tmp_path / "rng").mkdir()
    write_rng(capture_rng(torch.device("cuda", 2)), tmp_path, 0)
    restore_rng(tmp_path, 0, saved_ranks=1, seed=0, device=torch.device("cuda", 1))
    assert [int(state) for state in generators.values()] == [0, 2, 2, 3]


def test_a_new_rank_seeds_itself(tmp_path: Path) -> None:
    restore_rng(tmp_path, 2, saved_ranks=2, seed=5, device=CPU)
    first = float(torch.rand(1))
    restore_rng(tmp_path, 2, saved_ranks=2, seed=5, device=CPU)
    assert float(torch.rand(1)) == first


def test_a_missing_file_of_a_rank_that_saved_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="rank1.pt: is missing, but 2 ranks saved"):
        restore_rng(tmp_path, 1, saved_ranks=2, seed=0, device=CPU)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"PK\x03\x04"),
        lambda file: torch.save([1, 2], file),
        lambda file: torch.save({"python": 1, "numpy": 2, "torch": 3, "cuda": []}, file),
        lambda file: torch.save({**capture_rng(CPU), "python": [3, ["x"], None]}, file),
        lambda file: torch.save({**capture_rng(CPU), "torch": torch.zeros(3)}, file),
        write_call,
    ],
)
def test_malformed_generators_are_named(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    file = tmp_path / "rng" / "rank0.pt"
    file.parent.mkdir()
    write(file)
    with pytest.raises(CheckpointError) as error:
        restore_rng(tmp_path, 0, saved_ranks=1, seed=0, device=CPU)
    assert str(error.value).startswith(f"{file}: cannot be read (")
    assert not file.with_name("was_run").exists()
