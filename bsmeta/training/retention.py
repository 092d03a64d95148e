"""The disk: room for a checkpoint before it is saved, and which checkpoints are kept after it.

The last k, every n-th, the best, and those marked by the user are kept. Called on rank 0 after a
checkpoint is committed, so that there is always an intact one. Only intact checkpoints count among
the last k; otherwise damaged ones would displace those that a run can resume from.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import CheckpointError, ConfigurationError, DataError
from bsmeta.core.files import free_bytes, gigabytes, is_full
from bsmeta.training.checkpoint import (
    STATE,
    Checkpoint,
    list_checkpoints,
    manifest_of,
    newest_whole,
    problems,
)
from bsmeta.training.distributed import ALONE
from bsmeta.training.task import Metric

# Allows for logs, file system overhead, and a model that has grown by a token.
MARGIN = 1.1


def check_room(out_dir: Path, like: Checkpoint | None = None, *, with_model: bool = False) -> None:
    """Refuses a save that would not fit, estimated from the size of another checkpoint.

    Args:
        like: The other checkpoint; by default the last one in `out_dir`.
        with_model: Whether `model/` is also to be written.
    """
    size = _last_size([like] if like else list_checkpoints(out_dir), with_model=with_model)
    if size is None:
        return
    needed = int(size * MARGIN)
    free = free_bytes(out_dir)
    if free < needed:
        raise DataError(
            f"no checkpoint was written: {out_dir} has {gigabytes(free)} free, and one needs "
            f"{gigabytes(needed)} ({MARGIN} times the last one). {remedy(out_dir)}"
        )


def _last_size(checkpoints: list[Checkpoint], *, with_model: bool) -> int | None:
    """Size in bytes of the newest readable checkpoint, with or without `model/`.

    If it has no `model/`, that is estimated as float32 weights.
    """
    for checkpoint in reversed(checkpoints):
        try:
            files = manifest_of(checkpoint).files
        except CheckpointError:
            continue
        model = sum(own.bytes for file, own in files.items() if file.startswith("model/"))
        rest = sum(own.bytes for own in files.values()) - model
        return rest + (model or 4 * _weights(checkpoint)) if with_model else rest
    return None


def _weights(checkpoint: Checkpoint) -> int:
    """The number of weights of a checkpoint's model; 0 if it cannot be read."""
    try:
        shapes = json.loads((checkpoint.folder / STATE).read_text())["parameters"]
    except (OSError, ValueError, KeyError):
        return 0
    return sum(math.prod(shape) for shape in shapes.values())


def explain_full_disk(error: Exception, out_dir: Path) -> Exception:
    """Returns the error itself, or for a full disk a DataError that explains what to do."""
    if not is_full(error):
        return error
    free = gigabytes(free_bytes(out_dir))
    return DataError(
        f"the disk of {out_dir} is full or its quota used up ({error}; {free} free): the "
        f"checkpoint was not completed and its parts were removed. {remedy(out_dir)}"
    )


def remedy(out_dir: Path) -> str:
    """Describes what the user can do about a full disk."""
    saved, _ = newest_whole(list_checkpoints(out_dir), ALONE)
    last = f"{saved.folder.name} is intact" if saved else "There is no intact checkpoint yet"
    return (
        f"{last}. Free some space (or lower keep_last_checkpoints), then resume with "
        "resume_from_checkpoint_dir=latest"
    )


logger = logging.getLogger(__name__)

KEEP = "KEEP"
"""A checkpoint that contains a file of this name is never deleted."""

# For each file of a checkpoint: path, size and time of the last modification (ns).
Stamps = list[tuple[str, int, int]]


class Retention:
    """Deletes the old checkpoints of a run (rank 0).

    A checkpoint that this process did not write is read and verified once; after that, only the
    sizes and modification times of its files are compared.
    """

    def __init__(self, out_dir: Path, config: RunConfig) -> None:
        self._out_dir = out_dir
        self._config = config
        self._verified: dict[Path, tuple[Stamps, bool]] = {}
        self._resumed_from: Path | None = None

    def protect(self, resumed_from: Checkpoint) -> None:
        """Keeps the checkpoint that the run resumed from, for as long as this process runs."""
        self._resumed_from = resumed_from.folder.resolve()

    def prune(self, written: Checkpoint) -> None:
        """Deletes the checkpoints that no rule keeps; a failed deletion only logs a warning.

        Args:
            written: The checkpoint that was just committed, and so is intact. Those of later steps
                do not belong to this run's past, and are left alone.
        """
        self._verified[written.folder] = (_stamps(written.folder), True)
        past = [
            checkpoint
            for checkpoint in list_checkpoints(self._out_dir)
            if checkpoint.step <= written.step
        ]
        kept = to_keep(past, self._config, self._is_whole)
        for old in past:
            if old not in kept and old.folder.resolve() != self._resumed_from:
                _delete(old)

    def best(self) -> Checkpoint | None:
        """The best intact checkpoint by `keep_best_by`, if there is one."""
        return best_of(list_checkpoints(self._out_dir), self._config.keep_best_by, self._is_whole)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        try:
            stamps = _stamps(checkpoint.folder)
            known = self._verified.get(checkpoint.folder)
            if known is not None and known[0] == stamps:
                return known[1]
            faults = problems(checkpoint, ALONE)
        except OSError as error:  # it is being deleted or changed concurrently
            logger.warning("%s could not be verified: %s", checkpoint.folder, error)
            return False
        if faults:
            logger.warning(
                "%s is damaged and does not count among keep_last_checkpoints:\n  %s",
                checkpoint.folder,
                "\n  ".join(faults),
            )
        self._verified[checkpoint.folder] = (stamps, not faults)
        return not faults


def _stamps(folder: Path) -> Stamps:
    files = [(path, path.lstat()) for path in folder.rglob("*")]
    return sorted((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in files)


def _delete(checkpoint: Checkpoint) -> None:
    folder = checkpoint.folder
    try:
        # Renamed first, so that an interrupted deletion leaves no damaged checkpoint in the list.
        doomed = folder.with_name(f"tmp-{folder.name}-deleted")
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        logger.warning("%s could not be deleted: %s", folder, error)


def to_keep(
    checkpoints: list[Checkpoint], config: RunConfig, is_whole: Callable[[Checkpoint], bool]
) -> set[Checkpoint]:
    """Selects the checkpoints of a run that are kept.

    Args:
        checkpoints: Oldest first.
        is_whole: Whether a checkpoint is intact; called for as few as possible, because it may
            have to read them.

    Returns:
        The last intact checkpoints, all that are newer, and those that the other keys keep.
    """
    if config.keep_last_checkpoints == 0:
        return set(checkpoints)
    whole = filter(is_whole, reversed(checkpoints))
    last = list(islice(whole, config.keep_last_checkpoints))
    oldest = last[-1].step if len(last) == config.keep_last_checkpoints else 0
    kept = {checkpoint for checkpoint in checkpoints if checkpoint.step >= oldest}
    every = config.keep_every_checkpoint_steps
    kept |= {checkpoint for checkpoint in checkpoints if every and checkpoint.step % every == 0}
    kept |= {checkpoint for checkpoint in checkpoints if (checkpoint.folder / KEEP).exists()}
    best = best_of(checkpoints, config.keep_best_by, is_whole)
    return kept if best is None else kept | {best}


def best_of(
    checkpoints: list[Checkpoint], name: str | None, is_whole: Callable[[Checkpoint], bool]
) -> Checkpoint | None:
    """Finds the intact checkpoint with the best value of a metric; on a tie, the first.

    Returns None if no checkpoint has a finite value of it.
    """
    measured = [(value, saved) for saved in checkpoints for value in _cost(saved, name)]
    ranked = sorted(measured, key=lambda pair: pair[0])
    return next((saved for _, saved in ranked if is_whole(saved)), None)


def _cost(saved: Checkpoint, name: str | None) -> list[float]:
    """A metric of the evaluation at a checkpoint's step, negated if higher values are better."""
    try:
        metrics = json.loads((saved.folder / STATE).read_text())["evaluation"]
        values = [
            -float(metric["value"]) if metric["better"] == "max" else float(metric["value"])
            for metric in metrics
            if metric["name"] == name
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [value for value in values if math.isfinite(value)]


def check_metric(name: str | None, metrics: list[Metric]) -> None:
    """Refuses a `keep_best_by` that the evaluation does not have, or that has no direction."""
    names = sorted(metric.name for metric in metrics if metric.better is not None)
    if name is not None and name not in names:
        raise ConfigurationError(
            f"keep_best_by={name}: the evaluation has no such metric; expected one of "
            f"{', '.join(names) or 'none (there is no held-out file)'}"
        )
