"""The plot of accuracy by how often the training data has the entity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bsmeta.tasks.disambiguation.results import MODEL, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def count_plot(results: Results) -> Figure:
    """Accuracy of each system by training count, with 95% intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(results.by_count))
    for number, system in enumerate(results.systems):
        shares = [one.accuracy[system] for one in results.by_count]
        values = np.array([share.value for share in shares])
        low = np.array([share.interval.low for share in shares])
        high = np.array([share.interval.high for share in shares])
        axes.errorbar(
            places + 0.08 * (number - (len(results.systems) - 1) / 2),
            100 * values,
            yerr=100 * np.array([np.maximum(values - low, 0), np.maximum(high - values, 0)]),
            marker="o",
            markersize=4,
            linewidth=2 if system == MODEL else 1,
            capsize=2,
            label=system,
        )
    names = [f"{one.name}\n({one.metrics['mentions']:,.0f})" for one in results.by_count]
    axes.set_xticks(places, names, fontsize=8)
    axes.set_xlabel("mentions of the entity in the training data (held-out mentions)")
    axes.set_ylabel("accuracy, %")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return figure
