"""A run between its checks and its start: the programs pass it on as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import TaskEntry


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """A run that has passed all checks: its configuration, its task, and its launch.

    Attributes:
        entry: The task's checks, rows of the start-up table, and constructor.
        deepspeed_config: Without `"auto"`, and without the optimizer and the scheduler, which the
            trainer builds itself; None without DeepSpeed.
    """

    config: RunConfig
    entry: TaskEntry
    launch: Launch
    deepspeed_config: dict[str, Any] | None
