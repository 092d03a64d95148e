"""The metrics of the line."""

from __future__ import annotations

from bsmeta.config.metric_table import MetricDefinition

METRICS = {
    "nearness": MetricDefinition[float](
        label="nearness", better="max", compute=lambda error: -abs(error)
    ),
    "numbers": MetricDefinition[float](label="numbers", better=None, compute=lambda _: 1),
}
