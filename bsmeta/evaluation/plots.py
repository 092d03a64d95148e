"""The plots of a report, which `output` saves as PNG and embeds into the page."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bsmeta.evaluation.arms import AGAINST, FORM, PROMPT, SEPARATOR, TEXT
from bsmeta.evaluation.results import ModelReport, PositionBin, Report, Row
from bsmeta.evaluation.tables import CONTROL_WORDS, label
from bsmeta.metadata.sampling import MATCHED, SHUFFLED, WRONG

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HELPS, HURTS, UNSURE, GRID = "#1b7837", "#b2182b", "#6b6b6b", "#d9d9d9"
VARIANTS = {SHUFFLED: "v", WRONG: "X", MATCHED: "^", FORM: "D", SEPARATOR: "|", PROMPT: "s"}
"""Plot markers of the variants (controls, prompt style) of other comparisons."""
WORDS = CONTROL_WORDS | {PROMPT: "plain English"}
CURVED = ("all", "each", "chosen")
"""Groups of comparisons that the position plot shows."""


def figures_of_report(report: Report, metrics: Path | None) -> dict[str, Figure]:
    """All plots by file name (without the extension).

    Args:
        metrics: `metrics.jsonl` of the (first) run, for its curves.
    """
    made: dict[str, Figure] = {}
    for number, model in enumerate(report.models, start=1):
        ending = f"-{number}" if len(report.models) > 1 else ""
        if any(row.compares for row in model.rows):
            made[f"differences{ending}"] = difference_plot(model)
            made[f"positions{ending}"] = position_plot(model)
    steps, evaluations = read_metrics(metrics) if metrics else ([], [])
    if steps:
        made["loss"] = loss_plot(steps, evaluations)
    if any(_exposure(steps).values()):
        made["exposure"] = exposure_plot(steps)
    return made


def difference_plot(model: ModelReport) -> Figure:
    """The difference of each comparison with its interval; its variants share its line."""
    lines: dict[str, list[Row]] = {}
    for row in model.rows:
        if row.compares and not row.comparison.group.startswith(AGAINST):
            lines.setdefault(_line_of(row), []).append(row)
    figure, axes = _canvas(8.5, 1.7 + 0.5 * len(lines))
    for place, rows in enumerate(lines.values()):
        for number, row in enumerate(rows):
            _interval(axes, place + 0.22 * (number - (len(rows) - 1) / 2), row)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(lines)), list(lines))
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel("difference in bits per byte (left of 0: metadata helps)")
    axes.set_title(
        f"What metadata changes: 95% intervals (thick), and all at once (thin)\n{model.checkpoint}",
        fontsize=10,
    )
    axes.grid(axis="x", color=GRID)
    _relative_axis(axes, model)
    used = {row.comparison.group for rows in lines.values() for row in rows} & set(VARIANTS)
    axes.plot([], [], color=UNSURE, marker="o", linestyle="", label="own values")
    for group in (name for name in VARIANTS if name in used):
        axes.plot([], [], color=UNSURE, marker=VARIANTS[group], linestyle="", label=WORDS[group])
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _relative_axis(axes: Axes, model: ModelReport) -> None:
    """Add an axis with the differences as a percentage of the bits of the text alone."""
    text = model.row(TEXT)
    if text is None or text.metrics is None or not text.metrics.bits_per_byte_without:
        return
    percent = 100 / text.metrics.bits_per_byte_without
    above = axes.secondary_xaxis(
        "top",
        functions=(
            lambda bits: np.multiply(bits, percent),
            lambda share: np.divide(share, percent),
        ),
    )
    above.set_xlabel("in % of the text alone", fontsize=8)
    above.tick_params(labelsize=8)


def _line_of(row: Row) -> str:
    """The label of a row's line in the plot; a variant shares the line of its comparison."""
    if row.comparison.group not in VARIANTS:
        return label(row)
    name = row.comparison.name.partition("/")[2]
    return "all together" if name == "all" else name.replace("+", " + ")


def _interval(axes: Axes, height: float, row: Row) -> None:
    """Draw a difference and its two intervals; the color shows if the wide one excludes 0."""
    metrics = row.metrics
    assert metrics is not None
    marker = VARIANTS.get(row.comparison.group, "o")
    own = row.comparison.group not in VARIANTS
    colour = UNSURE
    low, high = metrics.simultaneous_low, metrics.simultaneous_high
    if low is not None and high is not None:
        colour = HELPS if high < 0 else HURTS if low > 0 else UNSURE
        axes.hlines(height, low, high, color=colour, linewidth=0.8)
    low, high = metrics.difference_low, metrics.difference_high
    if low is not None and high is not None:
        axes.hlines(height, low, high, color=colour, linewidth=3 if own else 1.8)
    axes.plot(metrics.difference, height, marker, color=colour, markersize=7 if own else 5)


def position_plot(model: ModelReport) -> Figure:
    """The difference by position and by preceding text, with controls of the first comparison."""
    compared = [row for row in model.rows if row.compares and row.comparison.group in CURVED]
    compared = compared or [row for row in model.rows if row.compares]
    rest = compared[0].comparison.name.partition("/")[2] or compared[0].comparison.name
    named = [f"{control}/{rest}" for control in CONTROL_WORDS]
    controls = [row for row in model.rows if row.compares and row.comparison.name in named]
    figure, (left, right) = _canvas(11.5, 4.4, columns=2)
    _curves(left, [(row, row.positions) for row in compared], "-")
    _curves(right, [(row, row.contexts) for row in compared], "-")
    _curves(left, [(row, row.positions) for row in controls], "--")
    _curves(right, [(row, row.contexts) for row in controls], "--")
    _name_bins(left, compared[0].positions, "bytes into the document, and its documents")
    _name_bins(right, compared[0].contexts, "bytes of text seen before, and its documents")
    left.set_ylabel("bits per byte, with minus without")
    figure.suptitle(f"Where metadata helps\n{model.checkpoint}", fontsize=10)
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _curves(axes: Axes, rows: Sequence[tuple[Row, Sequence[PositionBin]]], line: str) -> None:
    """Draw one curve per row; the first solid curve is black and has its intervals."""
    for number, (row, bins) in enumerate(rows):
        places = [bin_.first_byte for bin_ in bins]
        values = [bin_.metrics.difference for bin_ in bins]
        strong = number == 0 and line == "-"
        colour = "black" if strong else f"C{(number - 1) % 10}" if line == "-" else UNSURE
        marker = "o" if strong else "." if line == "-" else VARIANTS[row.comparison.group]
        at = [str(place) for place in places]  # strings, so that the bins are equally spaced
        axes.plot(
            at,
            values,
            linestyle=line,
            marker=marker,
            color=colour,
            linewidth=2.2 if strong else 1.2,
            label=label(row),
        )
        ends = [(bin_.metrics.difference_low, bin_.metrics.difference_high) for bin_ in bins]
        if strong and all(low is not None for low, _ in ends):
            lows, highs = zip(*ends, strict=True)
            axes.fill_between(at, lows, highs, color="black", alpha=0.12, linewidth=0)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.grid(color=GRID)


def _name_bins(axes: Axes, bins: Sequence[PositionBin], words: str) -> None:
    names = [f"from {bin_.first_byte:,}\n{bin_.metrics.documents:,} docs" for bin_ in bins]
    axes.set_xticks([str(bin_.first_byte) for bin_ in bins], names, fontsize=8)
    axes.set_xlabel(words, fontsize=9)


def loss_plot(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> Figure:
    """The training loss by step, and the evaluations of the run."""
    figure, axes = _canvas(7.5, 4.2)
    colour = "#2166ac"
    at, losses = [step["step"] for step in steps], [step["loss"] for step in steps]
    axes.plot(at, losses, color=colour, alpha=0.3, linewidth=1)
    axes.plot(at, _smooth(losses), color=colour)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss (nats per token)", color=colour)
    axes.grid(color=GRID)
    axes.set_title("The training run", fontsize=10)
    names = {"bits_per_byte_without": "without metadata", "bits_per_byte_with": "with metadata"}
    known = [evaluation for evaluation in evaluations if all(name in evaluation for name in names)]
    if known:
        right = axes.twinx()
        for (name, words), shade in zip(names.items(), (UNSURE, HELPS), strict=True):
            at = [event["step"] for event in known]
            right.plot(
                at, [event[name] for event in known], "o-", color=shade, label=words, markersize=4
            )
        right.set_ylabel("held-out bits per byte")
        right.legend(loc="upper right", frameon=False)
    return figure


def exposure_plot(steps: Sequence[dict[str, Any]]) -> Figure:
    """The share of the training documents that had each type."""
    shares = _exposure(steps)
    figure, axes = _canvas(7.5, 1.2 + 0.36 * len(shares))
    places = range(len(shares))
    axes.barh(places, [100 * share for share in shares.values()], color="#2166ac", height=0.6)
    axes.set_yticks(places, list(shares))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the documents trained on")
    axes.set_title("Exposure to each type of metadata", fontsize=10)
    axes.grid(axis="x", color=GRID)
    return figure


def read_metrics(metrics: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The steps and the evaluations in a `metrics.jsonl`; skips a truncated last line."""
    steps, evaluations = [], []
    for line in metrics.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("event") == "step" and "loss" in entry:
            steps.append(entry)
        elif entry.get("event") == "eval":
            evaluations.append(entry)
    return steps, evaluations


def _smooth(values: Sequence[float]) -> list[float]:
    """Moving average over the preceding values; the window is a fiftieth of their number."""
    width = max(len(values) // 50, 1)
    sums = list(itertools.accumulate(values, initial=0.0))
    starts = [max(end - width, 0) for end in range(1, len(values) + 1)]
    return [(sums[i + 1] - sums[start]) / (i + 1 - start) for i, start in enumerate(starts)]


def _exposure(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Share of the documents that had each type, from the counts that the trainer logs."""
    totals: dict[str, float] = {}
    for step in steps:
        for name, count in step.get("counts", {}).items():
            totals[name] = totals.get(name, 0.0) + count
    documents = totals.get("documents", 0.0)
    return {
        name.partition("/")[2]: count / documents
        for name, count in totals.items()
        if name.startswith("documents/") and documents
    }


def _canvas(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """A figure and its axes; several columns are an array of axes with a shared y-axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(ncols=columns, sharey=True, squeeze=False)[0]
    for axis in axes:
        axis.spines[["right"] if columns == 1 else ["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    return figure, axes[0] if columns == 1 else axes
