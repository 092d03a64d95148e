"""Computes the metrics of an evaluation from the table of its task."""

from __future__ import annotations

from bsmeta.config.metric_table import Measured, MetricTable
from bsmeta.training.task import Metric


def compute_values(
    table: MetricTable[Measured], measured: Measured, split: str = "validation"
) -> list[Metric]:
    """Computes every metric of a table that the evaluation has, in the order of the table."""
    values: list[Metric] = []
    for name, definition in table.items():
        value = definition.compute(measured)
        if value is not None:
            values.append(Metric(name, value, definition.better, split))
    return values


def list_training_rows(table: MetricTable[Measured]) -> MetricTable[Measured]:
    """Returns the rows of the metrics that evaluations during training report."""
    return {name: row for name, row in table.items() if row.in_training}


def list_report_rows(table: MetricTable[Measured]) -> MetricTable[Measured]:
    """Returns the rows of the metrics that the tables of a report show."""
    return {name: row for name, row in table.items() if row.in_report}
