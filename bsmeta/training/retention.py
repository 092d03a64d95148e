"""Which checkpoints stay: the last k, every n-th, the best one, and those that a person marked.

Called on rank 0 after a checkpoint is committed, so that there is always a whole one.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.schema import TrainConfig
from bsmeta.training.checkpoint import STATE, Checkpoint, found

logger = logging.getLogger(__name__)

KEEP = "KEEP"
"""A file of this name in a checkpoint keeps it for good."""


def prune(out_dir: Path, config: TrainConfig) -> None:
    """Deletes the checkpoints that nothing keeps; a deletion that fails is a warning."""
    checkpoints = found(out_dir)
    kept = to_keep(checkpoints, config)
    for old in checkpoints:
        if old in kept:
            continue
        try:
            # Out of the list first: a deletion that is interrupted leaves no damaged checkpoint.
            doomed = old.folder.with_name(f"tmp-{old.folder.name}-deleted")
            old.folder.rename(doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            logger.warning("%s could not be deleted: %s", old.folder, error)


def to_keep(checkpoints: list[Checkpoint], config: TrainConfig) -> set[Checkpoint]:
    """Those of a run's checkpoints (oldest first) that stay; the newest always does."""
    if config.keep_last_checkpoints == 0:
        return set(checkpoints)
    kept = set(checkpoints[-config.keep_last_checkpoints :])
    every = config.keep_every_checkpoint_steps
    kept |= {one for one in checkpoints if every and one.step % every == 0}
    kept |= {one for one in checkpoints if (one.folder / KEEP).exists()}
    if config.keep_best_by is not None:
        measured = [(figure(one, config.keep_best_by), one) for one in checkpoints]
        best = min(measured, key=lambda pair: pair[0], default=None)
        if best is not None and best[0] < math.inf:
            kept.add(best[1])
    return kept


def figure(saved: Checkpoint, name: str) -> float:
    """A figure of the evaluation at a checkpoint's step; infinity where there was none."""
    try:
        evaluation = json.loads((saved.folder / STATE).read_text())["evaluation"]
        value = float(evaluation[name])
    except (OSError, ValueError, KeyError, TypeError):
        return math.inf
    return value if math.isfinite(value) else math.inf


def check_figure(name: str | None, figures: dict[str, float]) -> None:
    """Refuses a `keep_best_by` that the evaluation does not give.

    Raises:
        ConfigurationError: With the names that there are.
    """
    if name is not None and name not in figures:
        raise ConfigurationError(
            f"keep_best_by={name}: the evaluation has no such figure; expected one of "
            f"{', '.join(sorted(figures)) or 'none (there is no held-out file)'}"
        )
