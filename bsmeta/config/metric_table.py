"""Tables of the metrics of tasks: how each metric is computed, compared and shown.

Each task has one table, `METRICS` in its `metrics.py`. Evaluations, the checks of `keep_best_by`,
model cards, reports and sweeps read this table, so a new metric is only a row in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Generic, Literal, TypeVar

from bsmeta.config.schema import RunConfig

Measured = TypeVar("Measured")
Direction = Literal["min", "max"] | None
"""Whether lower or higher values are better; None: neither, such as for a count."""


@dataclass(frozen=True, kw_only=True)
class MetricDefinition(Generic[Measured]):
    """A metric: a row of a task's table, whose key is the metric's name in `metrics.jsonl`.

    Attributes:
        label: The heading of the metric in tables, and its name in figures.
        compute: Computes the value from the measurements of an evaluation; NaN if it is undefined,
            None if the evaluation does not have the metric.
        better: Whether lower or higher is better. Only a metric with a direction may select the
            best checkpoint (`keep_best_by`).
        format: Formats a value for tables.
        format_difference: Formats the difference between two values for tables.
        description: A longer name, for the model card of a task that writes its own card.
        in_training: Whether evaluations during training report it.
        in_report: Whether the tables of a report show it.
        in_card: Whether the model card shows it, if evaluations during training report it.
    """

    label: str
    compute: Callable[[Measured], Any]
    better: Direction
    format: Callable[[Any], str] = "{:.3f}".format
    format_difference: Callable[[Any], str] = "{:+.3f}".format
    description: str = ""
    in_training: bool = True
    in_report: bool = True
    in_card: bool = True


MetricTable = Mapping[str, MetricDefinition[Measured]]


def compute_values(table: MetricTable[Measured], measured: Measured) -> dict[str, Any]:
    """Computes the metrics that an evaluation has, by name, in the order of the table."""
    values = {name: definition.compute(measured) for name, definition in table.items()}
    return {name: value for name, value in values.items() if value is not None}


def select_training_rows(table: MetricTable[Measured]) -> MetricTable[Measured]:
    """Returns the metrics that evaluations during training report."""
    return {name: row for name, row in table.items() if row.in_training}


def select_report_rows(table: MetricTable[Measured]) -> MetricTable[Measured]:
    """Returns the metrics that the tables of a report show."""
    return {name: row for name, row in table.items() if row.in_report}


def load_metric_table(config: RunConfig | type[RunConfig]) -> MetricTable[Any] | None:
    """Imports the table that a schema names (`RunConfig.metrics`); None if it names none."""
    if config.metrics is None:
        return None
    table: MetricTable[Any] = resolve_name(config.metrics)
    return table


def list_card_metrics(config: RunConfig) -> list[str]:
    """Lists the metrics that the model card of a run shows; none if its task has no table."""
    rows = select_training_rows(load_metric_table(config) or {})
    return [name for name, row in rows.items() if row.in_card]


def list_best_metrics(config: RunConfig) -> list[str] | None:
    """Lists the metrics that may select the best checkpoint.

    Returns:
        Their names; None if the task has no table: its metrics are known only after an evaluation.
    """
    table = load_metric_table(config)
    if table is None:
        return None
    return [name for name, row in select_training_rows(table).items() if row.better is not None]
