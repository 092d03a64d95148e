"""Tensors on disk, in torch's distributed checkpoint: each rank writes its part of every tensor.

A folder has files `__{rank}_{n}.distcp` of each rank, and `.metadata`, the position of each part
(`shard_metadata`). Any number of processes can read them; each reads the parts that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from bsmeta.core.errors import CheckpointError
from bsmeta.core.progress import report_opaque_work
from bsmeta.training.checkpoints.checkpoint import name_damaged_file
from bsmeta.training.checkpoints.fragments import FragmentLoadPlanner, FragmentSavePlanner
from bsmeta.training.checkpoints.shard_metadata import list_tensor_entries, read_metadata
from bsmeta.training.ranks.processes import ALONE, Processes


def write_shards(state: dict[str, Any], folder: Path, processes: Processes) -> None:
    """Writes this rank's shard of each tensor into a new folder; all ranks call it together.

    Args:
        state: DTensors and fragments, of which each rank has a part, and plain tensors, equal on
            all ranks.

    Raises:
        Exception: On every rank, the error of the first rank that failed.
    """
    processes.on_main(folder.mkdir)  # torch would also create the folders above it
    processes.run_on_all(lambda: folder.mkdir(exist_ok=True))  # not all ranks may share it
    with _raise_first_error(folder):
        dcp.save(
            state,
            storage_writer=_Writer(folder),
            planner=FragmentSavePlanner(),
            process_group=processes.group,
            no_dist=processes.size == 1,
        )


def read_shards(state: dict[str, Any], folder: Path, processes: Processes) -> None:
    """Fills tensors in place from a folder that `write_shards` wrote with any number of ranks.

    All ranks call it together; each reads its own shards.

    Args:
        state: DTensors, fragments and plain tensors by name; values are converted to their types.

    Raises:
        CheckpointError: If the folder holds other tensors.
    """
    with name_damaged_file(folder), _raise_first_error(folder):
        dcp.load(
            state,
            storage_reader=_Reader(folder),
            planner=FragmentLoadPlanner(),
            process_group=processes.group,
            no_dist=processes.size == 1,
        )


def read_full_tensors(
    folder: Path, prefix: str, dtypes: Mapping[str, torch.dtype] | None = None
) -> dict[str, torch.Tensor]:
    """Reads the full tensors whose names begin with `prefix`.

    This rank reads them by itself, into main memory.

    Args:
        dtypes: Types to which tensors are converted, by name; others are as stored.
    """
    dtypes = dtypes or {}
    tensors = {
        name: torch.empty(size, dtype=dtypes.get(name, dtype))
        for name, (size, dtype) in read_tensor_shapes(folder).items()
        if name.startswith(prefix)
    }
    read_shards(tensors, folder, ALONE)
    return tensors


def read_tensor_shapes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Returns the full shape and the type of each tensor in a folder, without reading the tensors.

    Raises:
        CheckpointError: If the folder describes anything but tensors.
    """
    entries = list_tensor_entries(read_metadata(folder))
    return {name: (entry.size, entry.properties.dtype) for name, entry in entries.items()}


class _Writer(dcp.FileSystemWriter):
    """Counts the writes of this rank as progress, but not its wait for other ranks."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        with report_opaque_work():
            try:
                return super().write_data(plan, planner)
            except RuntimeError as error:
                # If a write fails, torch.save raises an error about its position in the file. The
                # error of the write is the context, which is lost on the way to other ranks.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise


class _Reader(dcp.FileSystemReader):
    """Counts the reads of this rank as progress, but not its wait for other ranks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metadata = read_metadata(folder)

    def read_metadata(self) -> Metadata:
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        with report_opaque_work():
            return super().read_data(plan, planner)


@contextmanager
def _raise_first_error(folder: Path) -> Iterator[None]:
    """Context that raises the error of the first rank that failed, not torch's set of errors."""
    try:
        yield
    except CheckpointException as error:  # not an Exception
        rank, (cause, _) = min(error.failures.items())
        if isinstance(cause, OSError):
            raise cause from None
        reason = _extract_reason(cause)
        raise CheckpointError(
            f"{folder}: {type(cause).__name__}: {reason} (rank {rank})"
        ) from cause


def _extract_reason(error: BaseException) -> str:
    """Extracts why torch refused a file, without torch's advice on how to load it anyway."""
    lines = str(error).splitlines()
    for mark in ("GLOBAL", "WeightsUnpickler"):
        for line in lines:
            if mark in line:
                return line.strip()
    return str(error)
