"""Ends a run that fails at the same step in every start, under a launcher that restarts it."""

from __future__ import annotations

from pathlib import Path

from bsmeta.config.launch import Launch
from bsmeta.core.errors import TrainingError
from bsmeta.training.run_folder.events import read_environments
from bsmeta.training.run_folder.status import find_status


def check_failed_starts(out_dir: Path, launch: Launch, limit: int) -> None:
    """Refuses another start by a launcher if the last ones have all failed after the same step.

    Every rank calls it before it connects to the others. A start without a launcher that restarts
    is never refused, because its user may have removed the cause.

    Args:
        limit: Number of failed starts from one step after which the run ends.

    Raises:
        TrainingError: With the message of the last failure.
    """
    starts = read_environments(out_dir)
    if not launch.restarts or not starts:
        return

    step = starts[-1]["step"]
    failed_starts = 0
    for start in reversed(starts):
        if start["ended"] is not None or start["step"] != step:
            break
        failed_starts += 1
    if failed_starts < limit:
        return

    status = find_status(out_dir) or {}
    message = status.get("message") or "unknown"
    raise TrainingError(
        f"max_failed_starts={limit}: the last {failed_starts} starts of {out_dir} resumed from "
        f"step {step} and failed before the next checkpoint, so it is not tried again. Remove the "
        f"cause, and start the run without --max-restarts once. The last failure: {message}"
    )
