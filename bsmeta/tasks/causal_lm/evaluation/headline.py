"""The result of an evaluation in sentences, which name the strongest control.

A difference from the text alone does not show whether a model uses the content of metadata or only
the form of a prefix. Every statement of the difference therefore names its strongest control, the
one that leaves the smallest part of the difference to the content (`docs/controls.md`).
"""

from __future__ import annotations

from dataclasses import dataclass

from bsmeta.report.inference import Interval, warn_of_few_clusters, warn_of_rough_intervals
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport, PairedMetrics, Row
from bsmeta.tasks.causal_lm.evaluation.tables import (
    CONTROL_WORDS,
    find_interval,
    find_main_row,
    label_row,
    list_controls,
)

NOTHING_TO_COMPARE = "No document has metadata to compare with."
NO_CONTROL = (
    "No control was evaluated, so this does not tell content from form "
    "(controls=[matched, form, separator])."
)


@dataclass(frozen=True, slots=True)
class Control:
    """A control of a comparison.

    Attributes:
        label: Its name for readers.
        effect: Bits per byte with the control's prefix minus bits per byte of the text alone.
        content: The comparison of the document's own metadata with the control, over the same
            bytes: below 0, the own metadata needs fewer bits.
    """

    label: str
    effect: float
    content: PairedMetrics


def make_headline(model: ModelReport) -> str:
    """Describes the main comparison of a model and its strongest control."""
    row = find_main_row(model)
    if row is None or row.metrics is None:
        return NOTHING_TO_COMPARE

    control = find_strongest_control(model, row)
    sentences = [
        _describe_difference(row, row.metrics),
        NO_CONTROL if control is None else _describe_control(control, row.metrics),
    ]

    hosts = row.metrics.hosts
    if hosts is not None:
        sentences += warn_of_few_clusters(hosts, "hosts")
    elif find_interval(row.metrics) is not None:
        sentences += warn_of_rough_intervals(row.metrics.documents, "documents")

    sentences += describe_over_hosts(model, row)
    return " ".join(sentences)


def describe_over_hosts(model: ModelReport, row: Row) -> list[str]:
    """Describes the interval over hosts, beside the interval over documents; [] without one."""
    over_hosts = model.over_hosts.get(row.comparison.name)
    interval = None if over_hosts is None else find_interval(over_hosts)
    if over_hosts is None or over_hosts.hosts is None or interval is None:
        return []

    sentence = f"Over the {over_hosts.hosts:,} hosts of these documents: {_format_ends(interval)}"
    if not interval.excludes_zero:
        sentence += ", which includes no difference"
    return [f"{sentence} (cluster=host).", *warn_of_few_clusters(over_hosts.hosts, "hosts")]


def find_strongest_control(model: ModelReport, row: Row) -> Control | None:
    """Returns the control that leaves the smallest effect to the content; None without controls."""
    controls = []
    for rows in list_controls(model):
        control = rows.control_row.metrics
        content = rows.against_row.metrics
        if rows.row is row and control is not None and content is not None:
            controls.append(Control(CONTROL_WORDS[rows.control], control.difference, content))
    return max(controls, key=lambda control: control.content.difference, default=None)


def _describe_difference(row: Row, metrics: PairedMetrics) -> str:
    """Describes the difference that metadata makes, with its interval."""
    interval = find_interval(metrics)
    if interval is None:
        certainty = "over one document, so there is no interval"
    else:
        hosts = "" if metrics.hosts is None else f" of {metrics.hosts:,} hosts (jackknife)"
        certainty = (
            f"95% interval of the difference: {_format_ends(interval)}, "
            f"over {metrics.documents:,} documents{hosts}"
        )
        if not interval.excludes_zero:
            certainty += ", which includes no difference"

    return (
        f"With metadata ({label_row(row)}) the model needs {metrics.bits_per_byte_with:.4f} bits "
        f"per byte of text, without it {metrics.bits_per_byte_without:.4f}: "
        f"{_format_amount(metrics.difference, metrics.relative)} ({certainty})."
    )


def _describe_control(control: Control, metrics: PairedMetrics) -> str:
    """Describes how much of the difference in `metrics` the control leaves to the content."""
    effect = (
        f"Its strongest control ({control.label}) changes the bits per byte by "
        f"{control.effect:+.4f}"
    )
    content = find_interval(control.content)
    if content is None:
        return f"{effect}; one document does not tell content from form."

    difference = f"{control.content.difference:+.4f}, {_format_ends(content)}"
    if content.high < 0:
        return f"{effect}; compared with it, the content of the metadata saves bits ({difference})."
    if content.low > 0:
        return f"{effect}, which is better than the metadata itself ({difference}): not content."
    if _has_effect(metrics):
        return f"{effect}, no different from the metadata itself ({difference}): form, not content."
    return f"{effect}; compared with it, no effect of the content shows ({difference})."


def _has_effect(metrics: PairedMetrics) -> bool:
    """Whether the interval of the difference excludes 0."""
    interval = find_interval(metrics)
    return interval is not None and interval.excludes_zero


def _format_amount(difference: float, relative: float) -> str:
    direction = "fewer" if difference < 0 else "more"
    return f"{abs(difference):.4f} ({abs(relative):.2%}) {direction}"


def _format_ends(interval: Interval) -> str:
    return f"{interval.low:+.4f} to {interval.high:+.4f}"
