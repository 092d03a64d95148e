"""The metrics of disambiguation, for each slice of mentions.

A metric is named `NAME` for all mentions, `SLICE_NAME` for a slice, and `…_in_candidates` for those
of the mentions whose entity is a candidate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bsmeta.config.metric_table import MetricDefinition, select_report_rows

TOP_COUNT = 5
IN_CANDIDATES = "_in_candidates"
"""Suffix of the name of a metric over the mentions whose entity is a candidate."""


class RankedMentions(NamedTuple):
    """The ranks and losses of mentions, [mentions] each; see `report.Scored`."""

    rank: np.ndarray  # int, number of candidates above the right answer; -1 if there is none
    popular_is_right: np.ndarray  # bool, whether the most popular candidate is right
    loss: np.ndarray  # float, NaN if the gold entity is not a candidate


def compute_mean(values: np.ndarray) -> float:
    """Computes a mean over mentions; NaN if there are none."""
    return float(values.mean()) if len(values) else math.nan


def format_percent(share: float) -> str:
    """Formats a share in percent, with one decimal."""
    return f"{100 * share:.1f}"


def format_points(share: float) -> str:
    """Formats a difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.1f}"


METRICS = {
    "loss": MetricDefinition[RankedMentions](
        label="loss",
        better="min",
        format="{:.4f}".format,
        compute=lambda ranked: float(np.nanmean(ranked.loss)),
        in_report=False,
    ),
    "mentions": MetricDefinition[RankedMentions](
        label="mentions",
        better=None,
        format="{:,.0f}".format,
        format_difference="{:+,.0f}".format,
        compute=lambda ranked: float(len(ranked.rank)),
    ),
    "accuracy": MetricDefinition[RankedMentions](
        label="model",
        better="max",
        format=format_percent,
        format_difference=format_points,
        compute=lambda ranked: compute_mean(ranked.rank == 0),
    ),
    "top5": MetricDefinition[RankedMentions](
        label="top 5",
        better="max",
        format=format_percent,
        format_difference=format_points,
        compute=lambda ranked: compute_mean((ranked.rank >= 0) & (ranked.rank < TOP_COUNT)),
    ),
    "popular_accuracy": MetricDefinition[RankedMentions](
        label="most popular candidate",
        better="max",
        format=format_percent,
        format_difference=format_points,
        compute=lambda ranked: compute_mean(ranked.popular_is_right),
    ),
}
"""The metrics by name."""

SLICE_METRICS = select_report_rows(METRICS)
"""The metrics of each slice; the others are only computed for all mentions."""


def list_slice_metrics(slice_prefix: str) -> list[str]:
    """Lists the metrics of a slice by which the best checkpoint may be selected.

    Args:
        slice_prefix: `SLICE_`, or "" for all mentions.
    """
    names: list[str] = []
    for name, metric in SLICE_METRICS.items():
        if metric.better is not None:
            names += [f"{slice_prefix}{name}", f"{slice_prefix}{name}{IN_CANDIDATES}"]
    return names
