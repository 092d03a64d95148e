"""The metrics of disambiguation, on the mentions of each slice.

A metric of a slice is named `SLICE_NAME`, one of all mentions `NAME`; `NAME_in_candidates` is the
same over the mentions whose entity is a candidate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bsmeta.config.metric_table import MetricDefinition, report_rows

TOP = 5
IN_CANDIDATES = "_in_candidates"
"""Ends the name of a metric over the mentions whose entity is a candidate."""


class Ranked(NamedTuple):
    """The ranks and losses of the gold entities of some mentions, [mentions] each.

    See `bsmeta.tasks.disambiguation.report.Scored`.
    """

    rank: np.ndarray  # int, candidates with a higher score; -1 if there is no right answer
    popular_is_right: np.ndarray  # bool, whether the most popular candidate is right
    loss: np.ndarray  # float, NaN where the gold entity is no candidate


def compute_mean(values: np.ndarray) -> float:
    """Computes a mean over mentions; NaN without a mention."""
    return float(values.mean()) if len(values) else math.nan


def format_percent(share: float) -> str:
    """Formats a share in percent, with one decimal."""
    return f"{100 * share:.1f}"


def format_points(share: float) -> str:
    """Formats a difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.1f}"


METRICS = {
    "loss": MetricDefinition[Ranked](
        label="loss",
        better="min",
        format="{:.4f}".format,
        compute=lambda ranked: float(np.nanmean(ranked.loss)),
        in_report=False,
    ),
    "mentions": MetricDefinition[Ranked](
        label="mentions",
        better=None,
        format="{:,.0f}".format,
        format_difference="{:+,.0f}".format,
        compute=lambda ranked: float(len(ranked.rank)),
    ),
    "accuracy": MetricDefinition[Ranked](
        label="model",
        better="max",
        format=format_percent,
        format_difference=format_points,
        compute=lambda ranked: compute_mean(ranked.rank == 0),
    ),
    "top5": MetricDefinition[Ranked](
        label="top 5",
        better="max",
        format=format_percent,
        format_difference=format_points,
        compute=lambda ranked: compute_mean((ranked.rank >= 0) & (ranked.rank < TOP)),
    ),
    "popular_accuracy": MetricDefinition[Ranked](
        label="most popular candidate",
        better="max",
        format=format_percent,
        format_difference=format_points,
        compute=lambda ranked: compute_mean(ranked.popular_is_right),
    ),
}
"""The metrics by name."""

SLICE_METRICS = report_rows(METRICS)
"""The metrics of each slice; the others are metrics of all mentions only."""


def list_slice_metrics(slice_prefix: str) -> list[str]:
    """Lists the metrics of a slice that may select the best checkpoint."""
    names: list[str] = []
    for name, metric in SLICE_METRICS.items():
        if metric.better is not None:
            names += [f"{slice_prefix}{name}", f"{slice_prefix}{name}{IN_CANDIDATES}"]
    return names
