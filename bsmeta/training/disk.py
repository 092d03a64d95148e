"""Disk space: the check before a save, and the error message for a full disk."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from bsmeta.config.errors import CheckpointError
from bsmeta.training.checkpoint import Checkpoint, list_checkpoints, manifest_of, newest_whole
from bsmeta.training.distributed import ALONE

# Allows for logs, file system overhead, and a model that has grown by a token.
MARGIN = 1.1

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_TEXTS = (
    "no space left",
    "quota exceeded",
    "file too large",
    "iostream error",
    "writing file",
)


def check_room(out_dir: Path, like: Checkpoint | None = None) -> None:
    """Refuses a save that would not fit, estimated from the size of another checkpoint.

    Args:
        out_dir: Where the checkpoint would be written.
        like: The other checkpoint; by default the last one in `out_dir`.

    Raises:
        CheckpointError: With the free space, the space needed, and what to do.
    """
    size = _last_size([like] if like else list_checkpoints(out_dir))
    if size is None:
        return
    needed = int(size * MARGIN)
    free = shutil.disk_usage(out_dir).free
    if free < needed:
        raise CheckpointError(
            f"no checkpoint was written: {out_dir} has {gigabytes(free)} free, and one needs "
            f"{gigabytes(needed)} ({MARGIN} times the last one). {remedy(out_dir)}"
        )


def _last_size(checkpoints: list[Checkpoint]) -> int | None:
    """Size in bytes of the newest checkpoint whose manifest is readable."""
    for checkpoint in reversed(checkpoints):
        try:
            return sum(entry.bytes for entry in manifest_of(checkpoint).files.values())
        except CheckpointError:
            continue
    return None


def explained(error: Exception, out_dir: Path) -> Exception:
    """Returns the error itself, or for a full disk a CheckpointError that explains what to do."""
    if not is_full(error):
        return error
    free = gigabytes(shutil.disk_usage(out_dir).free)
    return CheckpointError(
        f"the disk of {out_dir} is full or its quota used up ({error}; {free} free): the "
        f"checkpoint was not completed and its parts were removed. {remedy(out_dir)}"
    )


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or any error in its cause chain, means that the disk is full."""
    seen: set[int] = set()  # a chain of causes may be cyclic
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        # Torch's and safetensors' writers keep only the message, not the errno.
        if any(text in str(error).lower() for text in _FULL_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def remedy(out_dir: Path) -> str:
    """Describes what the user can do about a full disk."""
    saved, _ = newest_whole(list_checkpoints(out_dir), ALONE)
    last = f"{saved.folder.name} is whole" if saved else "There is no whole checkpoint yet"
    return (
        f"{last}. Free some space (or lower keep_last_checkpoints), then resume with "
        "resume_from_checkpoint_dir=latest"
    )


def gigabytes(count: int) -> str:
    """Formats a number of bytes for display."""
    return f"{count / 1e9:.2f} GB" if count >= 10**7 else f"{count / 1e3:.0f} kB"
