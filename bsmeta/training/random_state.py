"""The random number generators of a process: captured for a checkpoint and restored from one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bsmeta.config.errors import CheckpointError


def capture() -> dict[str, Any]:
    """Captures Python's, numpy's and torch's generator states (CPU and GPUs), in plain types."""
    python = random.getstate()
    kind, state, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [python[0], list(python[1]), python[2]],
        "numpy": [kind, np.asarray(state).tolist(), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def write(states: dict[str, Any], folder: Path, rank: int) -> None:
    """Writes the states of one rank to a checkpoint."""
    torch.save(states, _file(folder, rank))


def restore(folder: Path, rank: int, saved_ranks: int, seed: int) -> None:
    """Restores the generators from a checkpoint.

    Args:
        folder: The checkpoint.
        rank: The rank of this process.
        saved_ranks: Number of ranks that saved the checkpoint. A rank beyond them has no saved
            states and seeds its generators: its dropout is new, its data is not.
        seed: The seed for such a rank.

    Raises:
        CheckpointError: If the file of a rank that saved the checkpoint is missing.
    """
    if rank >= saved_ranks:
        torch.manual_seed(seed)
        return
    if not _file(folder, rank).is_file():
        raise CheckpointError(f"{_file(folder, rank)}: is missing, but {saved_ranks} ranks saved")
    states = torch.load(_file(folder, rank), map_location="cpu", weights_only=True)
    version, values, gauss = states["python"]
    random.setstate((version, tuple(values), gauss))
    kind, state, *rest = states["numpy"]
    np.random.set_state((kind, np.array(state, dtype=np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])


def _file(folder: Path, rank: int) -> Path:
    return folder / "rng" / f"rank{rank}.pt"
