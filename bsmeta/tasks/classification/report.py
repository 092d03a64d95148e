"""The report on a test set: tables in the terminal, in Markdown and HTML, and plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bsmeta.evaluation.plots import GRID
from bsmeta.evaluation.statistics import Interval, rough_intervals
from bsmeta.evaluation.tables import Table
from bsmeta.tasks.classification.results import FIRST_CHUNK, LINEAR, Results
from bsmeta.tasks.classification.scoring import SCORES, Compared
from bsmeta.tasks.reports import print_report, write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WORDS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "mcc": "MCC",
}
MOST_LABELS = 30
"""Of more labels, tables and plots show half as many of the most frequent and of the worst ones."""
LONGEST_NAME = 40
"""Characters of a label in a plot."""
OTHERS = "all others"
COLORS = ("#1b7837", "#762a83", "#b35806", "#6b6b6b")
MOST_NUMBERS = 20
"""Labels up to which the cells of the confusion matrix show their counts."""

Epoch = Mapping[str, float | None]


def report(results: Results, epochs: Sequence[Epoch], folder: Path, files: Sequence[Path]) -> None:
    """Writes the report, and prints it with the paths of all files.

    Args:
        results: The scores.
        epochs: The training curves; none if the test set is not that of the run.
        folder: Where the report goes.
        files: Further files about the test set.
    """
    title, sentences = f"Classification of {results.source}", summary(results)
    figures, tables = figures_of(results, epochs), tables_of(results, epochs)
    written = write_report(title, results.as_dict(), sentences, tables, figures, folder)
    print_report(tables_of(results, []), sentences, [*files, *written])


def summary(results: Results) -> list[str]:
    """The result in sentences: the model beside the linear baseline, and what folding is worth."""
    model, *others = results.systems
    texts = model.confusion.texts
    sentences = [
        f"The model predicts {model.values['accuracy']:.1%} of {texts:,} texts right "
        f"(95% interval {_percent(model.intervals['accuracy'])}, over {results.units[0]:,} "
        f"resampled {results.units[1]})."
    ]
    sentences += rough_intervals(*results.units)
    for other in others:
        if other.name == LINEAR:
            sentences.append(
                f"The {LINEAR} predicts {other.values['accuracy']:.1%} right: {_compared(other)}."
            )
        elif other.name == FIRST_CHUNK:
            sentences.append(
                f"{results.folded:,} of {texts:,} texts {'is' if results.folded == 1 else 'are'} "
                "longer than a chunk. Truncated to the first one, "
                f"{other.values['accuracy']:.1%} of all would be right: {_compared(other)}."
            )
    return [*sentences, *(f"{note[0].upper()}{note[1:]}." for note in results.notes)]


def _compared(other: Compared) -> str:
    difference, interval = other.differences["accuracy"]
    distinct = interval.low > 0 or interval.high < 0
    return (
        f"{100 * difference:+.1f} points compared with the model (95% interval "
        f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
        f"{'' if distinct else ': not distinguishable on this test set'})"
    )


def tables_of(results: Results, epochs: Sequence[Epoch]) -> list[Table]:
    """All tables of a report."""
    tables = [_systems(results), _differences(results), _per_label(results)]
    if len(results.labels) <= MOST_LABELS:
        tables.append(_confusion(results))
    tables.append(_distribution(results))
    if epochs:
        tables.append(_epochs(epochs))
    return [table for table in tables if table.rows]


def shown_labels(results: Results) -> list[int]:
    """The labels of tables and plots: all, or the most frequent and the worst by F1, in order."""
    every = range(len(results.labels))
    if len(every) <= MOST_LABELS:
        return [*every]
    values = [results.per_label[label] for label in results.labels]
    half = MOST_LABELS // 2
    frequent = sorted(every, key=lambda label: -values[label]["texts"])[:half]
    rest = {*every} - {*frequent}
    tested = [label for label in sorted(rest) if values[label]["texts"]]
    worst = sorted(tested, key=lambda label: (values[label]["f1"], -values[label]["texts"]))[:half]
    return sorted([*frequent, *worst])


def _selection(results: Results) -> str:
    """Which labels a table shows, as a part of its note."""
    if len(results.labels) <= MOST_LABELS:
        return ""
    half = MOST_LABELS // 2
    return (
        f" The {half} most frequent of {len(results.labels):,} labels, and the {half} with the "
        "lowest F1 among the others; evaluation.json has all."
    )


def _systems(results: Results) -> Table:
    rows = [
        [system.name, *(_cell(system.values[name], system.intervals[name]) for name in SCORES)]
        for system in results.systems
    ]
    texts, (count, unit) = results.systems[0].confusion.texts, results.units
    note = (
        f"Over {texts:,} source texts ({results.chunks:,} chunks; the logits of a text are the "
        f"mean over its chunks). In brackets: 95% intervals, bootstrap over {count:,} {unit}."
    )
    return Table(f"Scores on {results.source}", note, ["system", *WORDS.values()], rows)


def _differences(results: Results) -> Table:
    rows = [
        [system.name, *(_cell(*system.differences[name], sign="+") for name in SCORES)]
        for system in results.systems[1:]
    ]
    note = "Below 0: worse than the model. Paired: all systems on the same resamples."
    return Table("Difference from the model", note, ["system", *WORDS.values()], rows)


def _cell(value: float, interval: Interval, sign: str = "") -> str:
    return f"{value:{sign}.3f} ({interval.low:{sign}.3f} to {interval.high:{sign}.3f})"


def _per_label(results: Results) -> Table:
    rows = [
        [
            label,
            *(f"{values[name]:.3f}" for name in ("precision", "recall", "f1")),
            f"{values['texts']:,.0f}",
        ]
        for label in (results.labels[number] for number in shown_labels(results))
        for values in [results.per_label[label]]
    ]
    heads = ["label", "precision", "recall", "F1", "texts"]
    note = f"Texts: those with this true label.{_selection(results)}"
    return Table("The model by label", note, heads, rows)


def _confusion(results: Results) -> Table:
    matrix, shares, _ = _shown_matrix(results)
    rows = [
        [label, *(f"{n:,} ({s:.0%})" for n, s in zip(counts, share, strict=True))]
        for label, counts, share in zip(results.labels, matrix, shares, strict=True)
    ]
    note = "Rows: true labels; columns: predictions of the model; in brackets, shares of the row."
    return Table("Confusion matrix", note, ["true", *results.labels], rows)


def _shown_matrix(results: Results) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The confusion matrix of the shown labels (and all others), shares of its rows, its labels."""
    shown = shown_labels(results)
    matrix = results.systems[0].confusion.matrix(shown)
    names = [results.labels[number] for number in shown]
    if len(shown) == len(results.labels):
        matrix = matrix[:-1, :-1]
    else:
        names.append(OTHERS)
    return matrix, matrix / np.maximum(matrix.sum(1, keepdims=True), 1), names


def _distribution(results: Results) -> Table:
    splits = list(results.distribution)
    totals = {split: sum(results.distribution[split].values()) for split in splits}

    def cell(split: str, label: str) -> str:
        count = results.distribution[split].get(label, 0)
        return f"{count:,} ({count / max(totals[split], 1):.1%})"

    labels = [results.labels[number] for number in shown_labels(results)]
    rows = [[label, *(cell(split, label) for split in splits)] for label in labels]
    rows.append(["all", *(f"{totals[split]:,}" for split in splits)])
    note = f"Source texts, and shares of the split.{_selection(results)}"
    return Table("Labels", note, ["label", *splits], rows)


def _epochs(epochs: Sequence[Epoch]) -> Table:
    columns: dict[str, tuple[str, Callable[[float], str]]] = {
        "epoch": ("epoch", "{:g}".format),
        "step": ("step", "{:,.0f}".format),
        "training_loss": ("training loss", "{:.4f}".format),
        "training_accuracy": ("accuracy", "{:.3f}".format),
        "validation_loss": ("validation loss", "{:.4f}".format),
        **{f"validation_{name}": (WORDS[name], "{:.3f}".format) for name in SCORES},
    }
    rows = [
        ["–" if (value := epoch.get(name)) is None else show(value)
         for name, (_, show) in columns.items()]
        for epoch in epochs
    ]  # fmt: skip
    note = (
        "Training: over chunks, with dropout, while the weights change. Validation: the loss over "
        "chunks, the scores over source texts."
    )
    return Table("Training", note, [head for head, _ in columns.values()], rows)


def _percent(interval: Interval) -> str:
    return f"{interval.low:.1%} to {interval.high:.1%}"


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
    matrix, shares, labels = _shown_matrix(results)
    names = [_short(label) for label in labels]
    size = max(3.2, 0.45 * len(names) + 1.8)
    figure, (axes,) = _canvas(size + 0.8, size)
    image = axes.imshow(shares, cmap="Greens", vmin=0, vmax=1)
    if len(names) <= MOST_NUMBERS:
        for row, column in np.ndindex(*matrix.shape):
            share = shares[row, column]
            axes.text(
                column, row, f"{matrix[row, column]:,}\n{share:.0%}", ha="center", va="center",
                fontsize=8, color="white" if share > 0.6 else "black",
            )  # fmt: skip
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    figure.colorbar(image, ax=axes, label="share of the true label")
    axes.set_title(results.source, fontsize=10)
    return figure


def labels_plot(results: Results) -> Figure:
    """The share of each shown label by split."""
    splits = list(results.distribution)
    labels = [results.labels[number] for number in shown_labels(results)]
    figure, (axes,) = _canvas(max(5.5, 0.7 * len(labels) + 3.5), 3.4)
    width = 0.8 / len(splits)
    for number, split in enumerate(splits):
        counts = [results.distribution[split].get(label, 0) for label in labels]
        total = sum(results.distribution[split].values())
        places = np.arange(len(counts)) + (number - (len(splits) - 1) / 2) * width
        shares = np.array(counts) / max(total, 1)
        axes.bar(places, shares, width, color=COLORS[number], label=f"{split} ({total:,})")
    axes.set_xticks(range(len(labels)), map(_short, labels), rotation=45, ha="right")
    axes.set_ylabel("share of the source texts")
    axes.grid(axis="y", color=GRID)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_NAME else f"{label[: LONGEST_NAME - 1]}…"


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
