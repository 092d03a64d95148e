"""The plots of a report: systems, confusion matrix, labels, training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bsmeta.evaluation.plots import GRID
from bsmeta.tasks.classification.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#1b7837", "#762a83", "#b35806", "#6b6b6b")
MOST_NUMBERS = 20
"""Labels up to which the cells of the confusion matrix show their counts."""


def figures_of(results: Results, epochs: Sequence[Mapping[str, float | None]]) -> dict[str, Figure]:
    """All plots by file name (without the extension)."""
    made = {
        "systems": systems_plot(results),
        "confusion": confusion_plot(results),
        "labels": labels_plot(results),
    }
    if epochs:
        made["curves"] = curves_plot(epochs)
    return made


def _canvas(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(ncols=columns, squeeze=False)[0])
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    return figure, axes


def systems_plot(results: Results) -> Figure:
    """Accuracy and MCC of each system with its 95% interval."""
    figure, panels = _canvas(8.5, 1.1 + 0.45 * len(results.systems), columns=2)
    for axes, name, title in zip(panels, ("accuracy", "mcc"), ("accuracy", "MCC"), strict=True):
        for place, system in enumerate(results.systems):
            value, interval = system.values[name], system.intervals[name]
            color = COLORS[0] if place == 0 else COLORS[3]
            axes.plot([interval.low, interval.high], [place, place], color=color, linewidth=2)
            axes.plot([value], [place], "o", color=color)
            axes.annotate(
                f"{value:.3f}", (value, place), (0, 6), textcoords="offset points",
                ha="center", fontsize=8,
            )  # fmt: skip
        axes.set_ylim(len(results.systems) - 0.5, -0.7)
        axes.set_xlabel(f"{title}, 95% interval")
        axes.grid(axis="x", color=GRID)
    panels[0].set_yticks(range(len(results.systems)), [system.name for system in results.systems])
    panels[1].set_yticks([])
    figure.suptitle(results.source, fontsize=10)
    return figure


def confusion_plot(results: Results) -> Figure:
    """Counts, colored by their share of the true label."""
    matrix = results.systems[0].matrix
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    size = max(3.2, 0.45 * len(results.labels) + 1.8)
    figure, (axes,) = _canvas(size + 0.8, size)
    image = axes.imshow(shares, cmap="Greens", vmin=0, vmax=1)
    if len(results.labels) <= MOST_NUMBERS:
        for row, column in np.ndindex(*matrix.shape):
            share = shares[row, column]
            axes.text(
                column, row, f"{matrix[row, column]:,}\n{share:.0%}", ha="center", va="center",
                fontsize=8, color="white" if share > 0.6 else "black",
            )  # fmt: skip
    places = range(len(results.labels))
    axes.set_xticks(places, results.labels, rotation=45, ha="right")
    axes.set_yticks(places, results.labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    figure.colorbar(image, ax=axes, label="share of the true label")
    axes.set_title(results.source, fontsize=10)
    return figure


def labels_plot(results: Results) -> Figure:
    """The share of each label by split."""
    splits = list(results.distribution)
    figure, (axes,) = _canvas(max(5.5, 0.7 * len(results.labels) + 3.5), 3.4)
    width = 0.8 / len(splits)
    for number, split in enumerate(splits):
        counts = [results.distribution[split].get(label, 0) for label in results.labels]
        total = sum(counts)
        places = np.arange(len(counts)) + (number - (len(splits) - 1) / 2) * width
        shares = np.array(counts) / max(total, 1)
        axes.bar(places, shares, width, color=COLORS[number], label=f"{split} ({total:,})")
    axes.set_xticks(range(len(results.labels)), results.labels, rotation=45, ha="right")
    axes.set_ylabel("share of the source texts")
    axes.grid(axis="y", color=GRID)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def curves_plot(epochs: Sequence[Mapping[str, float | None]]) -> Figure:
    """Loss and accuracy in training and validation."""
    figure, panels = _canvas(8.5, 3.2, columns=2)
    at = [epoch["epoch"] for epoch in epochs]
    for axes, name in zip(panels, ("loss", "accuracy"), strict=True):
        for split, color in zip(("training", "validation"), COLORS, strict=False):
            values = [epoch.get(f"{split}_{name}", np.nan) for epoch in epochs]
            axes.plot(at, values, "o-", color=color, label=split)
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.grid(color=GRID)
    panels[0].legend(frameon=False, fontsize=8)
    return figure
