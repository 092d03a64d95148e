"""The plots of a report, as PNG files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.evaluation.results import Row
from bsmeta.evaluation.tables import is_comparison, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HELPS, HURTS, UNSURE, GRID = "#1b7837", "#b2182b", "#6b6b6b", "#d9d9d9"


def difference_plot(rows: Sequence[Row], path: Path) -> None:
    """The difference of each comparison with its interval."""
    compared = [row for row in rows if is_comparison(row)]
    figure, axes = _canvas(7.5, 1.4 + 0.42 * len(compared))
    for height, row in enumerate(reversed(compared)):
        figures = row.figures
        assert figures is not None
        low, high = figures.difference_low, figures.difference_high
        colour = HELPS if high < 0 else HURTS if low > 0 else UNSURE
        axes.plot([low, high], [height, height], color=colour, linewidth=2.5)
        axes.plot(figures.difference, height, "o", color=colour, markersize=6)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(compared)), [label(row) for row in reversed(compared)])
    axes.set_ylim(-0.7, len(compared) - 0.3)
    axes.set_xlabel("bits per byte, with minus without metadata (left of 0: metadata helps)")
    axes.set_title("What metadata changes, with 95% intervals", fontsize=11)
    axes.grid(axis="x", color=GRID)
    _save(figure, path)


def loss_plot(metrics: Path, path: Path) -> bool:
    """The loss of a run's updates, and its evaluations; False if nothing was logged yet."""
    steps, evaluations = read_metrics(metrics)
    if not steps:
        return False
    figure, axes = _canvas(7.5, 4.2)
    axes.plot([one["step"] for one in steps], [one["loss"] for one in steps], color="#2166ac")
    axes.set_xlabel("update")
    axes.set_ylabel("training loss (nats per token)", color="#2166ac")
    axes.grid(color=GRID)
    _evaluation_curves(axes, evaluations)
    axes.set_title("The training run", fontsize=11)
    _save(figure, path)
    return True


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


def _evaluation_curves(axes: Axes, evaluations: Sequence[dict[str, Any]]) -> None:
    names = {"bits_per_byte_without": "without metadata", "bits_per_byte_with": "with metadata"}
    known = [one for one in evaluations if all(name in one for name in names)]
    if not known:
        return
    right = axes.twinx()
    for (name, words), colour in zip(names.items(), (UNSURE, HELPS), strict=True):
        at = [one["step"] for one in known]
        right.plot(at, [one[name] for one in known], "o-", color=colour, label=words, markersize=4)
    right.set_ylabel("held-out bits per byte")
    right.legend(loc="upper right", frameon=False)


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=130)
