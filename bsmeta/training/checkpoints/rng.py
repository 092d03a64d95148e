"""States of the random number generators: captured, set, and in a checkpoint a file per rank."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bsmeta.core.errors import CheckpointError
from bsmeta.training.checkpoints.checkpoint import name_damaged_file


def capture_rng(device: torch.device) -> dict[str, Any]:
    """Returns the states of the generators of Python, numpy and torch, in plain types.

    Args:
        device: The device of this rank. Other visible GPUs belong to other ranks, which save their
            generators.
    """
    version, values, python_gauss = random.getstate()
    kind, state, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [version, list(values), python_gauss],
        "numpy": [kind, np.asarray(state).tolist(), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device)] if device.type == "cuda" else [],
    }


def set_rng(states: dict[str, Any], device: torch.device) -> None:
    """Sets the generators to the states that `capture_rng` returned."""
    version, values, python_gauss = states["python"]
    random.setstate((version, tuple(values), python_gauss))

    kind, state, position, has_gauss, gauss = states["numpy"]
    array = np.array(state, dtype=np.uint32)
    np.random.set_state((kind, array, position, has_gauss, gauss))  # noqa: NPY002

    torch.set_rng_state(states["torch"])
    if states["cuda"] and device.type == "cuda":
        (state_of_device,) = states["cuda"]
        torch.cuda.set_rng_state(state_of_device, device)


def write_rng(states: dict[str, Any], folder: Path, rank: int) -> None:
    """Writes the states of one rank to a checkpoint."""
    torch.save(states, _locate_rng_file(folder, rank))


def _locate_rng_file(folder: Path, rank: int) -> Path:
    return folder / "rng" / f"rank{rank}.pt"


def restore_rng(folder: Path, rank: int, saved_ranks: int, seed: int, device: torch.device) -> None:
    """Restores the generators from a checkpoint.

    Args:
        saved_ranks: Number of ranks that saved the checkpoint. A higher rank has no saved states
            and seeds its generators with `seed`, which affects dropout but not the data.
        device: The device of this rank. Its index may differ from the saving run.

    Raises:
        CheckpointError: If the file of a rank that saved the checkpoint is missing or damaged.
    """
    if rank >= saved_ranks:
        torch.manual_seed(seed)
        return

    file = _locate_rng_file(folder, rank)
    if not file.is_file():
        raise CheckpointError(f"{file}: is missing, but {saved_ranks} ranks saved")

    with name_damaged_file(file):
        set_rng(torch.load(file, map_location="cpu", weights_only=True), device)
