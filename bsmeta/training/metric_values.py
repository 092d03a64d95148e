"""Turns the values of an evaluation into metrics, whose directions the task's table knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bsmeta.config.metric_table import MetricTable
from bsmeta.training.task import Metric


def make_metrics(
    table: MetricTable[Any], values: Mapping[str, float], split: str = "validation"
) -> list[Metric]:
    """Returns a metric for each value, by its name in the table."""
    return [Metric(name, value, table[name].better, split) for name, value in values.items()]
