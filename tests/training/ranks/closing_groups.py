"""A toy run whose processes have a second group, like the one of GPUs, that cannot be closed.

When it begins to close that group, a process copies `status.json` of the run in the folder RUN to
the folder CLOSED, under its rank.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.training.ranks import processes
from tests.training import toy_task

processes.CLOSE_TIMEOUT_S = 0.5


class StuckGroup(dist.ProcessGroup):
    def shutdown(self) -> None:
        status = Path(os.environ["RUN"], "status.json").read_text()
        Path(os.environ["CLOSED"], str(dist.get_rank())).write_text(status)
        threading.Event().wait()


def make_group(store: Any, rank: int, size: int, timeout: timedelta) -> StuckGroup:
    return StuckGroup(rank, size)


class TaskWithGroup(toy_task.ToyTask):
    def build_model(self) -> Any:
        dist.Backend.register_backend("stuck", make_group, devices=["cpu"])
        dist.new_group(backend="stuck")
        return super().build_model()


def main(config: CausalLMConfig) -> int:
    toy_task.ToyTask = TaskWithGroup  # type: ignore[misc]
    return toy_task.main(config)


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta.config.entry_point import run_entry_point

    run_entry_point(main, CausalLMConfig, "causal_lm_config")
