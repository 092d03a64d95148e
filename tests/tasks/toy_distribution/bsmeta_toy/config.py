"""The schema of `task=toy_line`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bsmeta.config.schema import RunConfig
from bsmeta.core.keys import inherit_key, key


@dataclass(frozen=True, kw_only=True)
class ToyLineConfig(RunConfig):
    """A run that fits a line to numbers."""

    training_data_key: ClassVar[str] = "task"
    metrics: ClassVar[str | None] = "bsmeta_toy.metrics:METRICS"

    task: str = inherit_key(RunConfig, "task", "toy_line")
    rows: int = key(4, at_least=1)
    """numbers of a step"""
