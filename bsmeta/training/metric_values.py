"""Makes the metrics of an evaluation from their values and the task's table of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bsmeta.config.metric_table import MetricTable
from bsmeta.training.task import Metric


def make_metrics(
    table: MetricTable[Any], values: Mapping[str, float], split: str = "validation"
) -> list[Metric]:
    """Returns a `Metric` for each named value, with the direction that the table gives it."""
    return [Metric(name, value, table[name].better, split) for name, value in values.items()]
