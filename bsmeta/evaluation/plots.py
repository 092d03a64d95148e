"""The plots of a report: figures that `output` saves as PNG and puts into the page."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.evaluation.arms import PROMPT, SHUFFLED, WRONG
from bsmeta.evaluation.results import ModelReport, Report, Row
from bsmeta.evaluation.tables import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HELPS, HURTS, UNSURE, GRID = "#1b7837", "#b2182b", "#6b6b6b", "#d9d9d9"
VARIANTS = {SHUFFLED: "v", WRONG: "X", PROMPT: "s"}
"""Markers of the comparisons that vary another one."""
WORDS = {SHUFFLED: "shuffled values", WRONG: "wrong values", PROMPT: "plain English"}
CURVED = ("all", "each", "chosen")
"""Groups of comparisons that the position curve shows."""


def figures_of_report(report: Report, metrics: Path | None) -> dict[str, Figure]:
    """All plots by file name (without its ending).

    Args:
        report: The report.
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
    """The difference of each comparison with its interval; its variants in the same line."""
    lines: dict[str, list[Row]] = {}
    for row in model.rows:
        if row.compares:
            lines.setdefault(_line_of(row), []).append(row)
    figure, axes = _canvas(7.5, 1.5 + 0.4 * len(lines))
    for place, rows in enumerate(lines.values()):
        for number, row in enumerate(rows):
            _interval(axes, place + 0.18 * (number - (len(rows) - 1) / 2), row)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(lines)), list(lines))
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel("difference in bits per byte (left of 0: metadata helps)")
    axes.set_title(f"What metadata changes, with 95% intervals\n{model.checkpoint}", fontsize=10)
    axes.grid(axis="x", color=GRID)
    used = {row.comparison.group for rows in lines.values() for row in rows} & set(VARIANTS)
    for group in (name for name in VARIANTS if name in used):
        axes.plot([], [], color=UNSURE, marker=VARIANTS[group], linestyle="", label=WORDS[group])
    if used:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _line_of(row: Row) -> str:
    """The line of the plot: a variant stands in the line of the comparison that it varies."""
    if row.comparison.group not in VARIANTS:
        return label(row)
    name = row.comparison.name.partition("/")[2]
    return "all together" if name == "all" else name.replace("+", " + ")


def _interval(axes: Axes, height: float, row: Row) -> None:
    figures = row.figures
    assert figures is not None
    low, high = figures.difference_low, figures.difference_high
    colour = HELPS if high < 0 else HURTS if low > 0 else UNSURE
    marker = VARIANTS.get(row.comparison.group, "o")
    own = row.comparison.group not in VARIANTS
    axes.plot([low, high], [height, height], color=colour, linewidth=2.5 if own else 1.2)
    axes.plot(figures.difference, height, marker, color=colour, markersize=6 if own else 4.5)


def position_plot(model: ModelReport) -> Figure:
    """The difference along the document; the first comparison with its intervals."""
    compared = [row for row in model.rows if row.compares and row.comparison.group in CURVED]
    compared = compared or [row for row in model.rows if row.compares]
    edges = sorted({one.first_byte for row in compared for one in row.positions})
    figure, axes = _canvas(7.5, 4.2)
    for number, row in enumerate(compared):
        found = {one.first_byte: one.figures for one in row.positions}
        places = [place for place, edge in enumerate(edges) if edge in found]
        values = [found[edges[place]] for place in places]
        strong = number == 0
        axes.plot(
            places,
            [one.difference for one in values],
            "o-" if strong else ".-",
            color="black" if strong else f"C{(number - 1) % 10}",
            linewidth=2.2 if strong else 1.2,
            label=label(row),
        )
        if strong:
            low, high = (
                [one.difference_low for one in values],
                [one.difference_high for one in values],
            )
            axes.fill_between(places, low, high, color="black", alpha=0.12, linewidth=0)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(edges)), [f"{edge:,}" for edge in edges])
    axes.set_xlabel("text from this byte of the document on (to the next mark)")
    axes.set_ylabel("bits per byte, with minus without")
    axes.set_title(f"Where in the document metadata helps\n{model.checkpoint}", fontsize=10)
    axes.grid(color=GRID)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def loss_plot(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> Figure:
    """The loss of a run's updates, and its evaluations."""
    figure, axes = _canvas(7.5, 4.2)
    colour = "#2166ac"
    at, losses = [one["step"] for one in steps], [one["loss"] for one in steps]
    axes.plot(at, losses, color=colour, alpha=0.3, linewidth=1)
    axes.plot(at, _smooth(losses), color=colour)
    axes.set_xlabel("update")
    axes.set_ylabel("training loss (nats per token)", color=colour)
    axes.grid(color=GRID)
    axes.set_title("The training run", fontsize=10)
    names = {"bits_per_byte_without": "without metadata", "bits_per_byte_with": "with metadata"}
    known = [one for one in evaluations if all(name in one for name in names)]
    if known:
        right = axes.twinx()
        for (name, words), shade in zip(names.items(), (UNSURE, HELPS), strict=True):
            at = [one["step"] for one in known]
            right.plot(
                at, [one[name] for one in known], "o-", color=shade, label=words, markersize=4
            )
        right.set_ylabel("held-out bits per byte")
        right.legend(loc="upper right", frameon=False)
    return figure


def exposure_plot(steps: Sequence[dict[str, Any]]) -> Figure:
    """How many of the documents trained on carried each type."""
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
    """The steps and the evaluations in a `metrics.jsonl`; a cut last line is passed over."""
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
    """The mean of each value and those before it, over a fiftieth of them."""
    width = max(len(values) // 50, 1)
    sums = list(itertools.accumulate(values, initial=0.0))
    starts = [max(end - width, 0) for end in range(1, len(values) + 1)]
    return [(sums[i + 1] - sums[start]) / (i + 1 - start) for i, start in enumerate(starts)]


def _exposure(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Share of the documents that carried each type, from the counts that the trainer logs."""
    totals: dict[str, float] = {}
    for one in steps:
        for name, count in one.get("counts", {}).items():
            totals[name] = totals.get(name, 0.0) + count
    documents = totals.get("documents", 0.0)
    return {
        name.partition("/")[2]: count / documents
        for name, count in totals.items()
        if name.startswith("documents/") and documents
    }


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes
