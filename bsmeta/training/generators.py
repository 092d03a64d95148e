"""The states of random number generators in a checkpoint, a file for each rank."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bsmeta.core.errors import CheckpointError
from bsmeta.training.checkpoint import naming_file


def capture_rng(device: torch.device) -> dict[str, Any]:
    """Captures Python's, numpy's and torch's generator states, in plain types.

    Args:
        device: This rank's. The generators of other GPUs that it can see are those of other ranks,
            which save them.
    """
    python = random.getstate()
    kind, state, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [python[0], list(python[1]), python[2]],
        "numpy": [kind, np.asarray(state).tolist(), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device)] if device.type == "cuda" else [],
    }


def write_rng(states: dict[str, Any], folder: Path, rank: int) -> None:
    """Writes the states of one rank to a checkpoint."""
    torch.save(states, _rng_file(folder, rank))


def _rng_file(folder: Path, rank: int) -> Path:
    return folder / "rng" / f"rank{rank}.pt"


def restore_rng(folder: Path, rank: int, saved_ranks: int, seed: int, device: torch.device) -> None:
    """Restores the generators from a checkpoint.

    Args:
        saved_ranks: Number of ranks that saved the checkpoint. A rank beyond them has no saved
            states and seeds its generators with `seed`: its dropout is new, its data is not.
        device: This rank's, which need not have the index that it had when it saved.

    Raises:
        CheckpointError: If the file of a rank that saved the checkpoint is missing, or holds
            something else.
    """
    if rank >= saved_ranks:
        torch.manual_seed(seed)
        return
    file = _rng_file(folder, rank)
    if not file.is_file():
        raise CheckpointError(f"{file}: is missing, but {saved_ranks} ranks saved")
    with naming_file(file):
        states = torch.load(file, map_location="cpu", weights_only=True)
        version, values, gauss = states["python"]
        random.setstate((version, tuple(values), gauss))
        kind, state, *rest = states["numpy"]
        np.random.set_state((kind, np.array(state, dtype=np.uint32), *rest))  # noqa: NPY002
        torch.set_rng_state(states["torch"])
        if states["cuda"] and device.type == "cuda":
            (state_of_device,) = states["cuda"]
            torch.cuda.set_rng_state(state_of_device, device)
