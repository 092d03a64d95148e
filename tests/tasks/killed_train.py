"""`train.py`, but rank processes kill themselves before the step that KILL_AT names."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def kill_before_step(number: int) -> None:
    """Makes this process kill itself when the trainer reaches a step."""
    from bsmeta.training import trainer

    train_step = trainer.StepRunner.train_step

    def dying(self: Any, step: int) -> Any:
        if step == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return train_step(self, step)

    trainer.StepRunner.train_step = dying  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta import train
    from bsmeta.config.entry_point import run_entry_point
    from bsmeta.tasks import TASKS

    kill_before_step(int(os.environ["KILL_AT"]))
    schemas = [entry.schema for entry in TASKS.values()]
    run_entry_point(train.main, schemas, "classification", takes_composition=True)
