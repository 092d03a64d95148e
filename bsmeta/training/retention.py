"""Which checkpoints stay: the last k, every n-th, the best one, and those that a person marked.

Called on rank 0 after a checkpoint is committed, so that there is always a whole one. Only whole
checkpoints count among the last k, or damaged ones would push out those that a run can resume from.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.schema import RunConfig
from bsmeta.tasks.base import Metric
from bsmeta.training.checkpoint import STATE, Checkpoint, list_checkpoints, problems
from bsmeta.training.distributed import ALONE

logger = logging.getLogger(__name__)

KEEP = "KEEP"
"""A file of this name in a checkpoint keeps it for good."""

# Of each file of a checkpoint: path, size and time of the last change (ns).
Stamps = list[tuple[str, int, int]]


class Retention:
    """Deletes the old checkpoints of a run (rank 0).

    A checkpoint that this process has not written is read and verified once; later only sizes and
    times of its files are compared.
    """

    def __init__(self, out_dir: Path, config: RunConfig) -> None:
        self._out_dir = out_dir
        self._config = config
        self._verified: dict[Path, tuple[Stamps, bool]] = {}
        self._resumed_from: Path | None = None

    def protect(self, resumed_from: Checkpoint) -> None:
        """Keeps the checkpoint that the run resumed from, as long as this process runs."""
        self._resumed_from = resumed_from.folder.resolve()

    def prune(self, written: Checkpoint) -> None:
        """Deletes the checkpoints that nothing keeps; a deletion that fails is a warning.

        Args:
            written: The checkpoint that was committed just now, and so is whole. Those of later
                steps are not of this run's past, and stay as they are.
        """
        self._verified[written.folder] = (_stamps(written.folder), True)
        past = [one for one in list_checkpoints(self._out_dir) if one.step <= written.step]
        kept = to_keep(past, self._config, self._is_whole)
        for old in past:
            if old not in kept and old.folder.resolve() != self._resumed_from:
                _delete(old)

    def best(self) -> Checkpoint | None:
        """The best whole checkpoint by `keep_best_by`, where there is one."""
        return best_of(list_checkpoints(self._out_dir), self._config.keep_best_by, self._is_whole)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        try:
            stamps = _stamps(checkpoint.folder)
            known = self._verified.get(checkpoint.folder)
            if known is not None and known[0] == stamps:
                return known[1]
            faults = problems(checkpoint, ALONE)
        except OSError as error:  # it is being deleted or changed right now
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
        # Out of the list first: a deletion that is interrupted leaves no damaged checkpoint.
        doomed = folder.with_name(f"tmp-{folder.name}-deleted")
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        logger.warning("%s could not be deleted: %s", folder, error)


def to_keep(
    checkpoints: list[Checkpoint], config: RunConfig, is_whole: Callable[[Checkpoint], bool]
) -> set[Checkpoint]:
    """Those of a run's checkpoints that stay.

    Args:
        checkpoints: Oldest first.
        config: The run.
        is_whole: Whether a checkpoint is whole; asked of as few as possible, because it may have
            to read them.

    Returns:
        The last whole ones with all that is newer than they are, and what the other keys keep.
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
    """The whole checkpoint whose evaluation has the best value of a metric; the first of equals.

    None where no checkpoint has a finite value of it.
    """
    measured = [(value, saved) for saved in checkpoints for value in _cost(saved, name)]
    ranked = sorted(measured, key=lambda pair: pair[0])
    return next((saved for _, saved in ranked if is_whole(saved)), None)


def _cost(saved: Checkpoint, name: str | None) -> list[float]:
    """A metric of the evaluation at a checkpoint's step, with the sign that makes less better."""
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
    """Refuses a `keep_best_by` that the evaluation does not have, or that has no direction.

    Raises:
        ConfigurationError: With the names that there are.
    """
    names = sorted(metric.name for metric in metrics if metric.better is not None)
    if name is not None and name not in names:
        raise ConfigurationError(
            f"keep_best_by={name}: the evaluation has no such metric; expected one of "
            f"{', '.join(names) or 'none (there is no held-out file)'}"
        )
