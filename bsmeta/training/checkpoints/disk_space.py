"""Disk space: checks that a checkpoint fits, and explains a full disk."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from bsmeta.core.errors import CheckpointError, DataError, UserError
from bsmeta.core.files import (
    MIN_FREE_BYTES,
    SHARED_MEMORY,
    format_bytes,
    is_full_disk_error,
    iterate_causes,
    measure_free_bytes,
)
from bsmeta.training.checkpoints.checkpoint import (
    Checkpoint,
    find_newest_intact,
    list_checkpoints,
    read_checked_manifest,
)
from bsmeta.training.ranks.processes import ALONE

MARGIN = 1.1
"""Free space that a save needs, relative to the last checkpoint.

It leaves room for logs, file system overhead, and added tokens."""


def check_room(out_dir: Path, *, with_model: bool = False, export_dtype: str | None = None) -> None:
    """Refuses a save that would not fit on the disk.

    Args:
        with_model: Whether the checkpoint will contain `model/`.
        export_dtype: Name of the dtype of the weights in `model/`; None: as trained.

    Raises:
        DataError: If there is not enough space.
    """
    saved_bytes = _measure_last_checkpoint(
        list_checkpoints(out_dir), export_dtype, with_model=with_model
    )
    required = int(saved_bytes * MARGIN)
    free = measure_free_bytes(out_dir)
    if free < required:
        raise DataError(
            f"no checkpoint was written: {out_dir} has {format_bytes(free)} free, and one needs "
            f"{format_bytes(required)} ({MARGIN} times the last one). {_describe_remedy(out_dir)}"
        )


def _measure_last_checkpoint(
    checkpoints: list[Checkpoint], export_dtype: str | None, *, with_model: bool
) -> int:
    """Returns the bytes of the newest readable checkpoint, with or without `model/`; 0 without any.

    The size of a missing `model/` is estimated from the number of weights, in float32 without
    `export_dtype`. A run that resumes with a wider one needs more than the last `model/` has.
    """
    weight_bytes = 4 if export_dtype is None else getattr(torch, export_dtype).itemsize
    for saved in reversed(checkpoints):
        try:
            files = read_checked_manifest(saved).files
        except CheckpointError:
            continue

        total_bytes = sum(entry.bytes for entry in files.values())
        model_bytes = sum(entry.bytes for file, entry in files.items() if file.startswith("model/"))
        state_bytes = total_bytes - model_bytes
        if not with_model:
            return state_bytes
        estimated_bytes = weight_bytes * _count_weights(saved)
        if model_bytes and export_dtype is None:
            return state_bytes + model_bytes
        return state_bytes + max(model_bytes, estimated_bytes)
    return 0


def measure_checkpoint(saved: Checkpoint) -> int:
    """Returns the size of the files that a checkpoint's manifest lists, in bytes."""
    return sum(entry.bytes for entry in read_checked_manifest(saved).files.values())


def _count_weights(saved: Checkpoint) -> int:
    """Returns the number of weights of a checkpoint's model; 0 if it cannot be read."""
    try:
        shapes = saved.read_state()["parameters"]
    except (CheckpointError, KeyError):
        return 0
    return sum(math.prod(shape) for shape in shapes.values())


def explain_full_disk(error: Exception, out_dir: Path) -> Exception:
    """Returns the error itself, or for a full disk a DataError with remedies.

    A `UserError` is returned unchanged, even if a full disk is its cause.
    """
    if isinstance(error, UserError) or not is_full_disk_error(error):
        return error

    other_full_disk = _describe_other_full_disk(error, out_dir)
    if other_full_disk is not None:
        return DataError(f"{other_full_disk}. {_describe_remedy(out_dir)}")

    free = format_bytes(measure_free_bytes(out_dir))
    return DataError(
        f"the disk of {out_dir} is full or its quota used up ({error}; {free} free): the "
        f"checkpoint was not completed and its parts were removed. {_describe_remedy(out_dir)}"
    )


def _describe_other_full_disk(error: Exception, out_dir: Path) -> str | None:
    """Describes another full file system than the run folder's; None if there is none."""
    if measure_free_bytes(out_dir) < MIN_FREE_BYTES:
        return None
    if measure_free_bytes(SHARED_MEMORY) < MIN_FREE_BYTES:
        return (
            f"{SHARED_MEMORY} is full ({error}): loader processes pass batches through it. Give "
            "the container more (docker run --shm-size=1g), or set data_config.num_workers=0"
        )

    for path in (*_find_files(error), Path(tempfile.gettempdir())):
        if measure_free_bytes(path) < MIN_FREE_BYTES:
            return f"the disk of {path} is full ({error})"
    return None


def _find_files(error: Exception) -> Iterator[Path]:
    """Yields the files that an error and its causes name."""
    for cause in iterate_causes(error):
        name = getattr(cause, "filename", None)
        if isinstance(name, (str, bytes)):
            yield Path(os.fsdecode(name))


def _describe_remedy(out_dir: Path) -> str:
    """Describes the last intact checkpoint, and how to continue from it."""
    saved, _ = find_newest_intact(out_dir, ALONE)
    state = f"{saved.folder.name} is intact" if saved else "There is no intact checkpoint yet"
    return (
        f"{state}. Free some space (or lower keep_last_checkpoints), then resume with "
        "resume_from_checkpoint_dir=latest"
    )
