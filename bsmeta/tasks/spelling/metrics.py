"""The metrics of the tasks on spelling: detection of errors, and their correction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bsmeta.config.metric_table import MetricDefinition

if TYPE_CHECKING:
    from bsmeta.tasks.spelling.corrections import Counts


class Judged(NamedTuple):
    """The decisions of a system on the samples or the test set of an evaluation."""

    counts: Counts  # on the text with errors
    false_alarms: float | None  # share of the correct text that is flagged or changed, if known
    loss: float | None = None  # mean over the samples; None on a test set


def format_share(value: float, sign: str = "") -> str:
    """Formats a share with three decimals, without the leading zero (`.951`).

    Args:
        sign: The sign option of a format specification, such as "+".
    """
    number = f"{value:{sign}.3f}"
    return number.replace("0.", ".", 1) if abs(value) < 1 else number


_LOSS = MetricDefinition[Judged](
    label="loss", better="min", compute=lambda judged: judged.loss, in_report=False
)
_FALSE_ALARMS = MetricDefinition[Judged](
    label="false alarms",
    better="min",
    format="{:.2%}".format,
    compute=lambda judged: judged.false_alarms,
)

DETECTION_METRICS = {
    "loss": _LOSS,
    "f1": MetricDefinition[Judged](
        label="F1", better="max", format=format_share, compute=lambda judged: judged.counts.f1
    ),
    "precision": MetricDefinition[Judged](
        label="precision",
        better="max",
        format=format_share,
        compute=lambda judged: judged.counts.precision,
    ),
    "recall": MetricDefinition[Judged](
        label="recall",
        better="max",
        format=format_share,
        compute=lambda judged: judged.counts.recall,
    ),
    "accuracy": MetricDefinition[Judged](
        label="accuracy",
        better="max",
        format=format_share,
        compute=lambda judged: judged.counts.accuracy,
    ),
    "false_alarms": _FALSE_ALARMS,
}
"""The metrics of `sed_words` and `sed_sequence`, by name."""

CORRECTION_METRICS = {
    "loss": _LOSS,
    "correction_f1": MetricDefinition[Judged](
        label="F1", better="max", compute=lambda judged: judged.counts.f1, in_report=False
    ),
    "f1": MetricDefinition[Judged](
        label="F1",
        better="max",
        format=format_share,
        compute=lambda judged: judged.counts.f1,
        in_training=False,
    ),
    "precision": MetricDefinition[Judged](
        label="precision",
        better="max",
        format=format_share,
        compute=lambda judged: judged.counts.precision,
        in_training=False,
    ),
    "recall": MetricDefinition[Judged](
        label="recall",
        better="max",
        format=format_share,
        compute=lambda judged: judged.counts.recall,
        in_training=False,
    ),
    "sequence_f1": MetricDefinition[Judged](
        label="F1 per line",
        better="max",
        format=format_share,
        compute=lambda judged: judged.counts.sequence_f1,
        in_training=False,
    ),
    "edit_distance": MetricDefinition[Judged](
        label="edit distance",
        better="min",
        format="{:.4f}".format,
        compute=lambda judged: judged.counts.mean_distance,
    ),
    "false_alarms": _FALSE_ALARMS,
}
"""The metrics of `sec`, by name. On a test set, F1 is `f1`, as in detection."""

METRICS = {
    "sed_words": DETECTION_METRICS,
    "sed_sequence": DETECTION_METRICS,
    "sec": CORRECTION_METRICS,
}
"""The metrics of each spelling task, by its name."""
