"""`train.py`, whose ranks wait before a step until the file PACE allows it, or until a signal."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 0.01


def pace_steps(file: Path) -> None:
    """Makes each step wait until `file` holds its number or a larger one."""
    from bsmeta.training import trainer

    train_step = trainer.StepRunner.train_step

    def wait_and_train(self: Any, step: int) -> Any:
        while int(file.read_text() or 0) < step and self._stop.name is None:
            time.sleep(POLL_S)
        return train_step(self, step)

    trainer.StepRunner.train_step = wait_and_train  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta import train
    from bsmeta.config.entry_point import run_entry_point
    from bsmeta.tasks import TASKS

    pace_steps(Path(os.environ["PACE"]))
    schemas = [entry.schema for entry in TASKS.values()]
    run_entry_point(train.main, schemas, "demo", takes_composition=True)
