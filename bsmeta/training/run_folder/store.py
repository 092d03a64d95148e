"""Where the files of a run are kept: `RunStore` is the interface, and its folder on a disk.

All parts of a run write to a local run folder, which the store publishes. A folder on a disk is its
own publication; `BucketStore` uploads it to a prefix of a bucket.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from bsmeta.training.checkpoints.checkpoint import Checkpoint

if TYPE_CHECKING:  # imports torch, which is slow; a run that is refused should fail fast
    from bsmeta.training.ranks.processes import Processes

logger = logging.getLogger(__name__)


class RunStore:
    """A run folder that is its own publication; most methods have nothing to do.

    All ranks together call methods that take the processes. Rank 0 calls `open` and `delete`, and
    the leader of each run folder the others.

    Attributes:
        folder: The local run folder.
        uploads: Whether `publish` takes time, and is therefore called in a thread.
    """

    uploads = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, *, resume: bool, overwrite: bool) -> None:
        """Claims the store for this run, and makes the locked local folder agree with it."""

    def stage(self, *, resume: bool) -> None:
        """Makes a locked local folder agree with a store that rank 0 has claimed."""

    def join(self, processes: Processes) -> None:
        """Shares the claim of rank 0 with the leaders of all run folders."""

    def delete_later(self, step: int) -> None:
        """Deletes the published checkpoints after the step that a run continues from."""

    def begin(self) -> None:
        """Publishes the local logs, which now end at the step that the run continues from."""

    def check_room(self, checkpoint_bytes: int) -> None:
        """Refuses a run whose checkpoints do not fit into the local folder."""

    def fetch(self, saved: Checkpoint, processes: Processes, part: str = "") -> None:
        """Completes the local copies of a checkpoint, or of one folder in it."""

    def fetch_newest(self, processes: Processes, last_step: int | None = None) -> None:
        """Completes the local copies of the newest intact checkpoint up to a step."""

    def exchange(self, rehearsed: Checkpoint, processes: Processes) -> None:
        """Completes the local copies of a checkpoint that will not be published."""

    def holds(self, saved: Checkpoint) -> bool:
        """Whether an intact copy of a checkpoint exists elsewhere than in the local folder."""
        return False

    def publish(self, saved: Checkpoint, processes: Processes) -> None:
        """Publishes a checkpoint that was committed locally, and all other files."""

    def publish_files(self) -> None:
        """Publishes the files that belong to no checkpoint, as far as they have changed."""

    def delete(self, saved: Checkpoint) -> None:
        """Deletes a checkpoint; logs a warning if that fails."""
        try:
            # Renamed first, so that an interrupted deletion leaves no damaged checkpoint.
            deleted_folder = saved.folder.with_name(f"tmp-{saved.folder.name}-deleted")
            saved.folder.rename(deleted_folder)
            shutil.rmtree(deleted_folder)
        except OSError as error:
            logger.warning("%s could not be deleted: %s", saved.folder, error)

    def close(self) -> None:
        """Publishes all files at the end of the run, and releases the store."""
