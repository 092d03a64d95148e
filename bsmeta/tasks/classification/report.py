"""The report on a test set: tables in the terminal, in Markdown and HTML, and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bsmeta.report import figures
from bsmeta.report.figures import GOOD, INK, MUTED, ON_GOOD, SERIES, SMALL, Look, short_name
from bsmeta.report.inference import rough_intervals, value_of
from bsmeta.report.page import (
    COUNT,
    Cell,
    Column,
    Page,
    Section,
    Table,
    own_command,
    print_report,
    write_report,
)
from bsmeta.tasks.classification.config import COMBINED, FINE_TUNE, FROZEN, LINEAR
from bsmeta.tasks.classification.results import FIRST_CHUNK, SCORES, Choice, Compared, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    LINEAR: "TF-IDF + linear SVM",
    FROZEN: "frozen vectors + logistic regression",
    COMBINED: "TF-IDF and frozen vectors + linear SVM",
    FINE_TUNE: "fine-tuned encoder",
}
"""What reports call each method."""
SCORE_NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "mcc": "MCC",
}
MOST_LABELS = 30
"""Labels in tables and plots; of more, half of these are the most frequent, and half the worst."""
LONGEST_NAME = 28  # characters of a label in a plot
OTHERS = "all others"
MOST_NUMBERS = 20  # labels up to which the cells of the confusion matrix show their counts

Epoch = Mapping[str, float | None]


def report(
    results: Results, epochs: Sequence[Epoch], folder: Path, facts: Mapping[str, str],
    files: Sequence[Path] = (),
) -> None:  # fmt: skip
    """Writes the report, and prints it with the paths of all files.

    Args:
        epochs: The training curves; none if the test set is not that of the run.
        facts: What was scored, beside what the results say.
        files: Further files about the test set.
    """
    sentences, test = summary(results), results.test
    count, unit = results.units
    tables = [_systems(results), _differences(results)]
    tables += [] if results.choice is None else [_choice(results.choice)]
    by_label = [_per_label(results), _distribution(results)]
    if len(test.labels) <= MOST_LABELS:
        by_label.insert(1, _confusion(results))
    plots = {"confusion": partial(confusion_plot, results), "labels": partial(labels_plot, results)}
    sections = [
        Section(tables=tables, plots={"systems": partial(systems_plot, results)}),
        Section("By label", tables=by_label, plots=plots),
    ]
    if epochs:
        curves = {"curves": partial(curves_plot, epochs)}
        sections.append(Section("Training", tables=[_epochs(epochs)], plots=curves))
    page = Page(
        title=f"Classification of {test.source}",
        answers=sentences,
        facts={
            **facts,
            "test set": test.source,
            "texts": f"{results.texts:,} ({len(test.chunks):,} chunks)",
            "labels": f"{len(test.labels):,}",
            "intervals": f"bootstrap over {count:,} {unit}",
        },
        sections=sections,
        commands=own_command(),
    )
    written = write_report(page, results.as_dict(), folder)
    print_report([t for t in (*tables, *by_label) if t.rows], sentences, [*files, *written])


def summary(results: Results) -> list[str]:
    """The result in sentences: the model beside the linear baseline, and what folding is worth."""
    model, *others = results.systems
    texts, (count, unit) = results.texts, results.units
    right = model.scores["accuracy"]
    sentences = [
        f"The model predicts {right.value:.1%} of {texts:,} texts right (95% interval "
        f"{right.low:.1%} to {right.high:.1%}, over {count:,} resampled {unit})."
    ]
    if results.choice is not None:
        sentences.append(
            f"It is the {NAMES[results.choice.chosen]}, the simplest of "
            f"{len(results.choice.systems)} systems that is within one standard error of the best "
            "on the validation split."
        )
    sentences += rough_intervals(count, unit)
    for other in others:
        share = f"{other.scores['accuracy'].value:.1%}"
        if other.name in NAMES.values():
            name = f"{other.name[0].upper()}{other.name[1:]}"
            sentences.append(f"{name}: {share} right, {_compared(other)}.")
        elif other.name == FIRST_CHUNK:
            sentences.append(
                f"{results.folded:,} of {texts:,} texts {'is' if results.folded == 1 else 'are'} "
                f"longer than a chunk. Truncated to the first one, {share} of all would be right: "
                f"{_compared(other)}."
            )
    return [*sentences, *(f"{note[0].upper()}{note[1:]}." for note in results.test.notes)]


def _compared(other: Compared) -> str:
    difference = other.differences["accuracy"]
    return (
        f"{100 * difference.value:+.1f} points compared with the model (95% interval "
        f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
        f"{'' if difference.interval.excludes_zero else ': not distinguishable on this test set'})"
    )


def shown_labels(results: Results) -> list[int]:
    """The labels of tables and plots: all, or the most frequent and the worst by F1, in order."""
    every = range(len(results.test.labels))
    if len(every) <= MOST_LABELS:
        return [*every]
    values = [*results.per_label.values()]
    half = MOST_LABELS // 2
    frequent = sorted(every, key=lambda label: -values[label]["texts"])[:half]
    tested = [label for label in every if label not in frequent and values[label]["texts"]]
    worst = sorted(tested, key=lambda label: (values[label]["f1"], -values[label]["texts"]))[:half]
    return sorted([*frequent, *worst])


def _selection(results: Results) -> str:
    """Which labels a table shows, as a part of its note."""
    labels, half = results.test.labels, MOST_LABELS // 2
    if len(labels) <= MOST_LABELS:
        return ""
    return (
        f" The {half} most frequent of {len(labels):,} labels, and the {half} with the "
        "lowest F1 among the others; evaluation.json has all."
    )


def _score_columns(form: str) -> list[Column]:
    return [Column("system"), *(Column(SCORE_NAMES[name], form.format) for name in SCORES)]


def _systems(results: Results) -> Table:
    count, unit = results.units
    note = (
        f"Over {results.texts:,} source texts ({len(results.test.chunks):,} chunks; the logits of "
        "a text are the mean over its chunks). In brackets: 95% intervals, bootstrap over "
        f"{count:,} {unit}."
    )
    rows: list[list[Cell]] = [[system.name, *system.scores.values()] for system in results.systems]
    return Table(f"Scores on {results.test.source}", note, _score_columns("{:.3f}"), rows)


def _differences(results: Results) -> Table:
    rows: list[list[Cell]] = [
        [system.name, *system.differences.values()] for system in results.systems[1:]
    ]
    note = "Below 0: worse than the model. Paired: all systems on the same resamples."
    table = Table("Difference from the model", note, _score_columns("{:+.3f}"), rows)
    return table.sorted_by(SCORE_NAMES["accuracy"])


def _choice(choice: Choice) -> Table:
    rows: list[list[Cell]] = [
        [
            f"{NAMES[system.name]}{' (model)' if system.name == choice.chosen else ''}",
            *(score.value for score in system.scores.values()),
            system.differences.get(choice.metric),
            ", ".join(f"{k}={v:g}" for k, v in choice.settings.get(system.name, {}).items()),
        ]
        for system in choice.systems
    ]
    columns = [
        *_score_columns("{:.3f}"), Column("minus the best", "{:+.3f}".format),
        Column("settings", str),
    ]  # fmt: skip
    note = (
        "The model is the simplest system within one standard error of the best one by "
        f"{SCORE_NAMES[choice.metric]}; a 95% interval of the difference is about four errors wide."
    )
    return Table("Systems on the validation split", note, columns, rows)


def _per_label(results: Results) -> Table:
    every = [*results.per_label.items()]
    rows: list[list[Cell]] = [
        [label, *values.values()]
        for label, values in (every[number] for number in shown_labels(results))
    ]
    columns = [
        Column("label"), *(Column(name, "{:.3f}".format) for name in ("precision", "recall", "F1")),
        Column("texts", COUNT),
    ]  # fmt: skip
    note = f"Texts: those with this true label.{_selection(results)}"
    return Table("The model by label", note, columns, rows)


def _confusion(results: Results) -> Table:
    matrix, shares, labels = _shown_matrix(results)
    rows: list[list[Cell]] = [
        [label, *(f"{n:,} ({s:.0%})" for n, s in zip(counts, share, strict=True))]
        for label, counts, share in zip(labels, matrix, shares, strict=True)
    ]
    note = "Rows: true labels; columns: predictions of the model; in brackets, shares of the row."
    columns = [Column("true"), *(Column(label, str) for label in labels)]
    return Table("Confusion matrix", note, columns, rows)


def _shown_matrix(results: Results) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The confusion matrix of the shown labels (and all others), shares of its rows, its labels."""
    shown = shown_labels(results)
    matrix = results.systems[0].confusion.matrix(shown)
    names = [results.test.labels[number] for number in shown]
    if len(shown) == len(results.test.labels):
        matrix = matrix[:-1, :-1]
    else:
        names.append(OTHERS)
    return matrix, matrix / np.maximum(matrix.sum(1, keepdims=True), 1), names


def _distribution(results: Results) -> Table:
    splits = results.test.distribution
    totals = {split: sum(counts.values()) for split, counts in splits.items()}

    def cell(split: str, label: str) -> str:
        count = splits[split].get(label, 0)
        return f"{count:,} ({count / max(totals[split], 1):.1%})"

    labels = [results.test.labels[number] for number in shown_labels(results)]
    rows: list[list[Cell]] = [
        [label, *(cell(split, label) for split in splits)] for label in labels
    ]
    rows.append(["all", *(f"{total:,}" for total in totals.values())])
    note = f"Source texts, and shares of the split.{_selection(results)}"
    return Table("Labels", note, [Column("label"), *(Column(name, str) for name in splits)], rows)


def _epochs(epochs: Sequence[Epoch]) -> Table:
    columns = {
        "epoch": Column("epoch", "{:g}".format),
        "step": Column("step", COUNT),
        "training_loss": Column("training loss", "{:.4f}".format),
        "training_accuracy": Column("accuracy", "{:.3f}".format),
        "validation_loss": Column("validation loss", "{:.4f}".format),
        **{f"validation_{name}": Column(SCORE_NAMES[name], "{:.3f}".format) for name in SCORES},
    }
    note = (
        "Training: over chunks, with dropout, while the weights change. Validation: the loss over "
        "chunks, the scores over source texts."
    )
    rows: list[list[Cell]] = [[epoch.get(name) for name in columns] for epoch in epochs]
    return Table("Losses and scores", note, [*columns.values()], rows)


@figures.styled
def systems_plot(results: Results) -> Figure:
    """Accuracy and MCC of each system with its 95% interval."""
    figure, panels = figures.canvas(1.2 + 0.45 * len(results.systems), panels=2)
    for axes, name in zip(panels, ("accuracy", "mcc"), strict=True):
        for place, system in enumerate(results.systems):
            score = system.scores[name]
            figures.draw_interval(axes, place, score, Look(MUTED if place else GOOD))
            axes.annotate(
                f"{score.value:.3f}", (score.value, place), (0, 6),
                textcoords="offset points", ha="center", fontsize=SMALL,
            )  # fmt: skip
        figures.name_rows(axes, [system.name for system in results.systems])
        axes.set_ylim(len(results.systems) - 0.5, -0.8)
        axes.set_xlabel(f"{SCORE_NAMES[name]}, 95% interval")
    panels[1].tick_params(labelleft=False)
    return figure


@figures.styled
def confusion_plot(results: Results) -> Figure:
    """Counts, colored by their share of the true label."""
    from matplotlib.patches import Rectangle

    matrix, shares, labels = _shown_matrix(results)
    names = [short_name(label, LONGEST_NAME) for label in labels]
    size = max(3.2, 0.48 * len(names) + 1.8)
    figure, (axes,) = figures.canvas(size, width=size + 1.2)
    for row, column in np.ndindex(*matrix.shape):
        share = shares[row, column]
        axes.add_patch(
            Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=GOOD, alpha=share, linewidth=0)
        )
        if len(names) <= MOST_NUMBERS:
            axes.text(
                column, row, f"{matrix[row, column]:,}\n{share:.0%}", ha="center", va="center",
                fontsize=SMALL, color=ON_GOOD if share > 0.6 else INK,
            )  # fmt: skip
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_aspect("equal")
    figures.name_columns(axes, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted (the stronger the color, the larger the share of the true label)")
    axes.set_ylabel("true")
    return figure


@figures.styled
def labels_plot(results: Results) -> Figure:
    """The share of each shown label by split."""
    splits = results.test.distribution
    labels = [results.test.labels[number] for number in shown_labels(results)]
    figure, (axes,) = figures.canvas(1.2 + (0.15 + 0.13 * len(splits)) * len(labels))
    height = 0.8 / len(splits)
    entries: dict[str, Any] = {}
    for number, (split, counts) in enumerate(splits.items()):
        total = sum(counts.values())
        places = np.arange(len(labels)) + (number - (len(splits) - 1) / 2) * height
        shares = [100 * counts.get(label, 0) / max(total, 1) for label in labels]
        name = f"{short_name(split)} ({total:,})"
        entries[name] = axes.barh(places, shares, height, color=SERIES[number + 1])
    figures.name_rows(axes, [short_name(label, LONGEST_NAME) for label in labels])
    axes.set_xlabel("% of the source texts of a split")
    figure.legend(
        [*entries.values()], [*entries], loc="outside upper left", ncols=len(splits),
        labelcolor=INK, frameon=False,
    )  # fmt: skip
    return figure


@figures.styled
def curves_plot(epochs: Sequence[Epoch]) -> Figure:
    """Loss and accuracy in training and validation."""
    figure, panels = figures.canvas(3.4, panels=2, shares_y=False)
    at = [value_of(epoch["epoch"]) for epoch in epochs]
    looks = {"training": Look(SERIES[1], "o", "--"), "validation": Look(SERIES[2], "s", "-")}
    for axes, name in zip(panels, ("loss", "accuracy"), strict=True):
        for split, style in looks.items():
            values = [value_of(epoch.get(f"{split}_{name}")) for epoch in epochs]
            axes.plot(
                at, values, linestyle=style.line, marker=style.marker, color=style.color,
                markersize=4.5, label=split,
            )  # fmt: skip
        axes.set_xlabel("epoch")
        axes.set_title(name, loc="left")
        axes.grid()
    panels[0].legend(labelcolor=INK)
    return figure
