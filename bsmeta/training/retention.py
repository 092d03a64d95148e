"""Which checkpoints are kept: the last k, every n-th, the best, and those marked by the user.

Old ones are deleted after a new one is committed, so that there is always an intact one. Only
intact checkpoints count among the last k; otherwise damaged ones would displace those that a run
can resume from.
"""

from __future__ import annotations

import logging
import math
import shutil
from itertools import islice
from pathlib import Path

from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import CheckpointError, ConfigurationError
from bsmeta.training.checkpoint import Checkpoint, list_checkpoints, list_faults
from bsmeta.training.processes import ALONE
from bsmeta.training.task import Metric

KEEP = "KEEP"
"""A checkpoint that contains a file of this name is never deleted."""

# For each file of a checkpoint: path, size and time of the last modification (ns).
Stamps = list[tuple[str, int, int]]

logger = logging.getLogger(__name__)


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
        """Deletes the checkpoints that no rule keeps, after one was written, which is intact.

        Those of later steps do not belong to this run's past, and are left alone.
        """
        self._verified[written.folder] = (_stamps(written.folder), True)
        past = [saved for saved in list_checkpoints(self._out_dir) if saved.step <= written.step]
        kept = self._to_keep(past)
        for old in past:
            if old not in kept and old.folder.resolve() != self._resumed_from:
                _delete(old)

    def best(self) -> Checkpoint | None:
        return self._best_of(list_checkpoints(self._out_dir))

    def _to_keep(self, checkpoints: list[Checkpoint]) -> set[Checkpoint]:
        """Selects the last intact checkpoints, all that are newer, and those of the other keys.

        As few as possible are verified, which may have to read them.
        """
        count, every = self._config.keep_last_checkpoints, self._config.keep_every_checkpoint_steps
        if count == 0:
            return set(checkpoints)
        last = list(islice(filter(self._is_whole, reversed(checkpoints)), count))
        oldest = last[-1].step if len(last) == count else 0
        kept = {
            saved
            for saved in checkpoints
            if saved.step >= oldest
            or (every and saved.step % every == 0)
            or (saved.folder / KEEP).exists()
        }
        best = self._best_of(checkpoints)
        return kept if best is None else kept | {best}

    def _best_of(self, checkpoints: list[Checkpoint]) -> Checkpoint | None:
        """The first intact checkpoint with the best finite value of the metric."""
        name = self._config.keep_best_by
        costs = [(cost, saved) for saved in checkpoints for cost in _costs(saved, name)]
        ranked = sorted(costs, key=lambda pair: pair[0])
        return next((saved for _, saved in ranked if self._is_whole(saved)), None)

    def _is_whole(self, saved: Checkpoint) -> bool:
        try:
            stamps = _stamps(saved.folder)
            known = self._verified.get(saved.folder)
            if known is not None and known[0] == stamps:
                return known[1]
            faults = list_faults(saved, ALONE)
        except OSError as error:  # it is being deleted or changed concurrently
            logger.warning("%s could not be verified: %s", saved.folder, error)
            return False
        if faults:
            logger.warning(
                "%s is damaged and does not count among keep_last_checkpoints:\n  %s",
                saved.folder, "\n  ".join(faults),
            )  # fmt: skip
        self._verified[saved.folder] = (stamps, not faults)
        return not faults


def _stamps(folder: Path) -> Stamps:
    files = [(path, path.lstat()) for path in folder.rglob("*")]
    return sorted((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in files)


def _delete(saved: Checkpoint) -> None:
    try:
        # Renamed first, so that an interrupted deletion leaves no damaged checkpoint in the list.
        doomed = saved.folder.with_name(f"tmp-{saved.folder.name}-deleted")
        saved.folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        logger.warning("%s could not be deleted: %s", saved.folder, error)


def _costs(saved: Checkpoint, name: str | None) -> list[float]:
    """The finite costs of a metric (`Metric.cost`) in the evaluation at a checkpoint's step."""
    try:
        metrics = saved.state()["evaluation"]
        costs = [Metric(**metric).cost for metric in metrics if metric["name"] == name]
        return [cost for cost in costs if math.isfinite(cost)]
    except (CheckpointError, KeyError, TypeError):
        return []


def check_metric(name: str | None, metrics: list[Metric]) -> None:
    """Refuses a `keep_best_by` that the evaluation does not have, or that has no direction."""
    names = sorted(metric.name for metric in metrics if metric.better is not None)
    if name is not None and name not in names:
        raise ConfigurationError(
            f"keep_best_by={name}: the evaluation has no such metric; expected one of "
            f"{', '.join(names) or 'none (there is no held-out file)'}"
        )
