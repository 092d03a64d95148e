"""The report on held-out mentions: tables in the terminal, in Markdown and HTML, and the plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bsmeta.evaluation.statistics import rough_intervals
from bsmeta.evaluation.tables import Table
from bsmeta.tasks.disambiguation.results import MODEL, POPULAR, Results, Share, SliceResult
from bsmeta.tasks.reports import print_report, write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT = "accuracy_by_count"


def report(results: Results, folder: Path) -> None:
    """Writes the report to a folder, and prints it."""
    title = f"Disambiguation of {results.source}"
    tables, sentences = tables_of(results), summary(results)
    figures = {PLOT: count_plot(results)}
    files = write_report(title, results.as_dict(), sentences, tables, figures, folder)
    print_report(tables[:1], sentences, files)


def summary(results: Results) -> list[str]:
    """The result in sentences: the model beside each other system, over all mentions."""
    everything = results.slices[0]
    model = everything.accuracy[MODEL]
    sentences = [
        f"The model is right about {model.value:.1%} of {everything.metrics['mentions']:,.0f} "
        f"mentions (95% interval {model.interval.low:.1%} to {model.interval.high:.1%}, over "
        f"{results.documents:,} resampled documents)."
    ]
    for name, difference in everything.difference.items():
        low, high = difference.interval.low, difference.interval.high
        distinct = "" if low > 0 or high < 0 else ": not distinguishable on these documents"
        sentences.append(
            f"The {name} is right about {everything.accuracy[name].value:.1%}; the model gains "
            f"{100 * difference.value:+.1f} points (95% interval {100 * low:+.1f} to "
            f"{100 * high:+.1f}{distinct})."
        )
    return [*sentences, *rough_intervals(results.documents, "documents")]


def tables_of(results: Results) -> list[Table]:
    """All tables of a report."""
    return [
        _accuracy("Accuracy by slice", "slice", results.systems, results.slices),
        _in_candidates(results.slices),
        _accuracy("Accuracy by training count", "count", results.systems, results.by_count),
    ]


def _accuracy(
    title: str, head: str, systems: Sequence[str], slices: Sequence[SliceResult]
) -> Table:
    rows = [
        [
            one.name,
            f"{one.metrics['mentions']:,.0f}",
            *(_percent(one.accuracy[system]) for system in systems),
            *(_percent(one.difference[system], "+") for system in systems[1:]),
            f"{100 * one.metrics['top5']:.1f}",
        ]
        for one in slices
    ]
    note = (
        "In percent of the mentions; in brackets: 95% intervals, bootstrap over documents. Gain: "
        "the accuracy of the model minus that of the other system, on the same resamples. Top 5: "
        "the entity is among the five best candidates of the model."
    )
    gains = [f"gain over {system}" for system in systems[1:]]
    return Table(title, note, [head, "mentions", *systems, *gains, "top 5"], rows)


def _in_candidates(slices: Sequence[SliceResult]) -> Table:
    names = ("mentions", "accuracy", "top5", "popular_accuracy")
    rows = []
    for one in slices:
        count, *shares = (one.metrics[f"{name}_in_candidates"] for name in names)
        rows.append([one.name, f"{count:,.0f}", *(f"{100 * share:.1f}" for share in shares)])
    return Table(
        "Mentions whose entity is a candidate",
        "In percent of these mentions.",
        ["slice", "mentions", MODEL, "top 5", POPULAR],
        rows,
    )


def _percent(share: Share, sign: str = "") -> str:
    value, low, high = (100 * one for one in (share.value, share.interval.low, share.interval.high))
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


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
