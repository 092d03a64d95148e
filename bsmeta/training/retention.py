"""Decides which checkpoints are kept: the last k, every n-th, the best, and marked ones.

Old ones are deleted after a new one is committed, so that there is always an intact one. Only
intact checkpoints count among the last k; otherwise damaged ones would displace those that a run
can resume from.
"""

from __future__ import annotations

import logging
import math
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from bsmeta.core.errors import CheckpointError, ConfigurationError
from bsmeta.training.checkpoints.checkpoint import (
    KEEP_FILE,
    Checkpoint,
    list_checkpoints,
    list_faults,
)
from bsmeta.training.ranks.processes import ALONE
from bsmeta.training.run_folder.store import RunStore
from bsmeta.training.task import Metric

logger = logging.getLogger(__name__)


class _FileStamp(NamedTuple):
    """Size and modification time of a file, which change with its content."""

    path: str
    size: int
    mtime_ns: int


class _Verification(NamedTuple):
    """Result of verifying a checkpoint whose files had these stamps."""

    stamps: list[_FileStamp]
    is_intact: bool


class _RankedCheckpoint(NamedTuple):
    """A checkpoint with its cost (`Metric.cost`)."""

    cost: float
    saved: Checkpoint


class Retention:
    """Deletes the old checkpoints of a run (rank 0).

    A checkpoint that this process did not write is read and verified once; after that, only the
    sizes and modification times of its files are compared.

    Args:
        keep_last: Number of most recent checkpoints to keep; 0: all.
        keep_every: Steps whose multiples are kept; 0: none.
        keep_best_by: Evaluation metric whose best checkpoint is kept; None: none.
        store: Deletes checkpoints wherever they are published.
    """

    def __init__(
        self,
        out_dir: Path,
        *,
        keep_last: int,
        keep_every: int,
        keep_best_by: str | None,
        store: RunStore | None = None,
    ) -> None:
        self._out_dir = out_dir
        self._store = store or RunStore(out_dir)
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._keep_best_by = keep_best_by
        self._verified: dict[Path, _Verification] = {}
        self._resumed_from: Path | None = None

    def protect(self, resumed_from: Checkpoint) -> None:
        """Keeps the checkpoint that the run resumed from, for as long as this process runs."""
        self._resumed_from = resumed_from.folder.resolve()

    def prune(self, written: Checkpoint) -> None:
        """Deletes the checkpoints that no rule keeps, after the checkpoint `written` was saved.

        Checkpoints of later steps are left alone, because this run has not written them.
        """
        self._verified[written.folder] = _Verification(_read_stamps(written.folder), is_intact=True)
        candidates = [
            saved for saved in list_checkpoints(self._out_dir) if saved.step <= written.step
        ]
        retained = self._select_retained(candidates)
        for candidate in candidates:
            if candidate not in retained and candidate.folder.resolve() != self._resumed_from:
                self._store.delete(candidate)

    def find_best(self) -> Checkpoint | None:
        """Returns the intact checkpoint with the best value of `keep_best_by`, if any."""
        return self._find_best(list_checkpoints(self._out_dir))

    def _select_retained(self, checkpoints: list[Checkpoint]) -> set[Checkpoint]:
        """Selects the checkpoints to keep; `checkpoints` are sorted oldest first.

        As few checkpoints as possible are verified, because their files may have to be read.
        """
        if self._keep_last == 0:
            return set(checkpoints)

        intact = (saved for saved in reversed(checkpoints) if self._is_intact(saved))
        last_intact = list(islice(intact, self._keep_last))
        oldest_step = last_intact[-1].step if len(last_intact) == self._keep_last else 0

        retained = set()
        for saved in checkpoints:
            is_recent = saved.step >= oldest_step
            is_regular = self._keep_every > 0 and saved.step % self._keep_every == 0
            if is_recent or is_regular or (saved.folder / KEEP_FILE).exists():
                retained.add(saved)

        best = self._find_best(checkpoints)
        if best is not None:
            retained.add(best)
        return retained

    def _find_best(self, checkpoints: list[Checkpoint]) -> Checkpoint | None:
        """Finds the first intact checkpoint with the best finite value of the metric."""
        ranked = []
        for saved in checkpoints:
            for cost in _read_costs(saved, self._keep_best_by):
                ranked.append(_RankedCheckpoint(cost, saved))
        ranked.sort(key=lambda entry: entry.cost)

        return next((entry.saved for entry in ranked if self._is_intact(entry.saved)), None)

    def _is_intact(self, saved: Checkpoint) -> bool:
        """Whether a checkpoint is intact; reads it unless its files are as last verified."""
        if self._store.holds(saved):
            return True
        try:
            stamps = _read_stamps(saved.folder)
            verification = self._verified.get(saved.folder)
            if verification is not None and verification.stamps == stamps:
                return verification.is_intact
            faults = list_faults(saved, ALONE)
        except OSError as error:  # it is being deleted or changed concurrently
            logger.warning("%s could not be verified: %s", saved.folder, error)
            return False

        if faults:
            logger.warning(
                "%s is damaged and does not count among keep_last_checkpoints:\n  %s",
                saved.folder,
                "\n  ".join(faults),
            )
        self._verified[saved.folder] = _Verification(stamps, not faults)
        return not faults


def _read_stamps(folder: Path) -> list[_FileStamp]:
    """Reads the stamps of all files and folders in a checkpoint, sorted by path."""
    stamps = []
    for path in folder.rglob("*"):
        status = path.lstat()
        stamps.append(_FileStamp(str(path), status.st_size, status.st_mtime_ns))
    return sorted(stamps)


def _read_costs(saved: Checkpoint, name: str | None) -> list[float]:
    """Reads the finite costs of a metric (`Metric.cost`) in the evaluation of a checkpoint."""
    try:
        metrics = saved.read_state()["evaluation"]
        costs = [Metric(**metric).cost for metric in metrics if metric["name"] == name]
        return [cost for cost in costs if math.isfinite(cost)]
    except (CheckpointError, KeyError, TypeError):
        return []


def check_metric(name: str | None, metrics: list[Metric]) -> None:
    """Refuses a `keep_best_by` that is not a metric of the evaluation, or a count."""
    names = sorted(metric.name for metric in metrics if metric.better is not None)
    if name is not None and name not in names:
        raise ConfigurationError(
            f"keep_best_by={name}: the evaluation has no such metric; expected one of "
            f"{', '.join(names) or 'none (there is no held-out file)'}"
        )
