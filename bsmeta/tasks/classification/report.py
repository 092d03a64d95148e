"""The report on a test set: tables in the terminal, in Markdown and HTML, and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bsmeta.report import figures
from bsmeta.report.figures import GOOD, INK, MUTED, ON_GOOD, SERIES, SMALL, Look
from bsmeta.report.inference import Estimate, Interval, rough_intervals, value_of
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
from bsmeta.tasks.classification.predictions import SCORES, Compared
from bsmeta.tasks.classification.results import FIRST_CHUNK, NAMES, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WORDS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "mcc": "MCC",
}
MOST_LABELS = 30
"""Labels in tables and plots; of more, half of these are the most frequent, and half the worst."""
LONGEST_NAME = 28
"""Characters of a label in a plot."""
OTHERS = "all others"
MOST_NUMBERS = 20
"""Labels up to which the cells of the confusion matrix show their counts."""

Epoch = Mapping[str, float | None]


def report(
    results: Results,
    epochs: Sequence[Epoch],
    folder: Path,
    facts: Mapping[str, str],
    files: Sequence[Path] = (),
) -> None:
    """Writes the report, and prints it with the paths of all files.

    Args:
        results: The scores.
        epochs: The training curves; none if the test set is not that of the run.
        folder: Where the report goes.
        facts: What was scored, beside what the results say.
        files: Further files about the test set.
    """
    sentences = summary(results)
    count, unit = results.units
    sections = [
        Section(
            tables=[_systems(results), _differences(results), *_choice(results)],
            plots={"systems": systems_plot(results)},
        ),
        Section(
            "By label",
            tables=_label_tables(results),
            plots={"confusion": confusion_plot(results), "labels": labels_plot(results)},
        ),
    ]
    if epochs:
        curves = {"curves": curves_plot(epochs)}
        sections.append(Section("Training", tables=[_epochs(epochs)], plots=curves))
    page = Page(
        title=f"Classification of {results.source}",
        answers=sentences,
        facts={
            **facts,
            "test set": results.source,
            "texts": f"{results.systems[0].confusion.texts:,} ({results.chunks:,} chunks)",
            "labels": f"{len(results.labels):,}",
            "intervals": f"bootstrap over {count:,} {unit}",
        },
        sections=sections,
        commands=own_command(),
    )
    written = write_report(page, results.as_dict(), folder)
    tables = [table for section in sections[:2] for table in section.tables if table.rows]
    print_report(tables, sentences, [*files, *written])


def summary(results: Results) -> list[str]:
    """The result in sentences: the model beside the linear baseline, and what folding is worth."""
    model, *others = results.systems
    texts = model.confusion.texts
    sentences = [
        f"The model predicts {model.values['accuracy']:.1%} of {texts:,} texts right "
        f"(95% interval {_percent(model.intervals['accuracy'])}, over {results.units[0]:,} "
        f"resampled {results.units[1]})."
    ]
    if results.choice is not None:
        count = len(results.choice.systems)
        sentences.append(
            f"It is the {NAMES[results.choice.chosen]}, the simplest of {count} systems that is "
            f"within one standard error of the best on the validation split."
        )
    sentences += rough_intervals(*results.units)
    for other in others:
        if other.name in NAMES.values():
            sentences.append(
                f"{other.name[0].upper()}{other.name[1:]}: {other.values['accuracy']:.1%} right, "
                f"{_compared(other)}."
            )
        elif other.name == FIRST_CHUNK:
            sentences.append(
                f"{results.folded:,} of {texts:,} texts {'is' if results.folded == 1 else 'are'} "
                "longer than a chunk. Truncated to the first one, "
                f"{other.values['accuracy']:.1%} of all would be right: {_compared(other)}."
            )
    return [*sentences, *(f"{note[0].upper()}{note[1:]}." for note in results.notes)]


def _compared(other: Compared) -> str:
    difference = other.differences["accuracy"]
    return (
        f"{100 * difference.value:+.1f} points compared with the model (95% interval "
        f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}"
        f"{'' if difference.interval.excludes_zero else ': not distinguishable on this test set'})"
    )


def _label_tables(results: Results) -> list[Table]:
    tables = [_per_label(results)]
    if len(results.labels) <= MOST_LABELS:
        tables.append(_confusion(results))
    return [*tables, _distribution(results)]


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
    rows: list[list[Cell]] = [
        [system.name,
         *(Estimate(system.values[name], system.intervals[name]) for name in SCORES)]
        for system in results.systems
    ]  # fmt: skip
    texts, (count, unit) = results.systems[0].confusion.texts, results.units
    note = (
        f"Over {texts:,} source texts ({results.chunks:,} chunks; the logits of a text are the "
        f"mean over its chunks). In brackets: 95% intervals, bootstrap over {count:,} {unit}."
    )
    columns = [Column("system"), *(Column(WORDS[name], "{:.3f}".format) for name in SCORES)]
    return Table(f"Scores on {results.source}", note, columns, rows)


def _differences(results: Results) -> Table:
    rows: list[list[Cell]] = [
        [system.name, *(system.differences[name] for name in SCORES)]
        for system in results.systems[1:]
    ]
    note = "Below 0: worse than the model. Paired: all systems on the same resamples."
    columns = [Column("system"), *(Column(WORDS[name], "{:+.3f}".format) for name in SCORES)]
    table = Table("Difference from the model", note, columns, rows)
    return table.sorted_by(WORDS["accuracy"])


def _choice(results: Results) -> list[Table]:
    """How the model was chosen; empty if there was no choice."""
    choice = results.choice
    if choice is None:
        return []
    rows: list[list[Cell]] = [
        [
            f"{NAMES[system.name]}{' (model)' if system.name == choice.chosen else ''}",
            *(system.values[name] for name in SCORES),
            system.differences.get(choice.metric),
            ", ".join(
                f"{key}={value:g}" for key, value in choice.settings.get(system.name, {}).items()
            ),
        ]
        for system in choice.systems
    ]
    columns = [
        Column("system"), *(Column(WORDS[name], "{:.3f}".format) for name in SCORES),
        Column("minus the best", "{:+.3f}".format),
        Column("settings", str),
    ]  # fmt: skip
    note = (
        "The model is the simplest system within one standard error of the best one by "
        f"{WORDS[choice.metric]}; a 95% interval of the difference is about four errors wide."
    )
    return [Table("Systems on the validation split", note, columns, rows)]


def _per_label(results: Results) -> Table:
    names = ("precision", "recall", "f1", "texts")
    rows: list[list[Cell]] = [
        [label, *(results.per_label[label][name] for name in names)]
        for label in (results.labels[number] for number in shown_labels(results))
    ]
    columns = [
        Column("label"), *(Column(name, "{:.3f}".format) for name in ("precision", "recall", "F1")),
        Column("texts", COUNT),
    ]  # fmt: skip
    note = f"Texts: those with this true label.{_selection(results)}"
    return Table("The model by label", note, columns, rows)


def _confusion(results: Results) -> Table:
    matrix, shares, _ = _shown_matrix(results)
    rows: list[list[Cell]] = [
        [label, *(f"{n:,} ({s:.0%})" for n, s in zip(counts, share, strict=True))]
        for label, counts, share in zip(results.labels, matrix, shares, strict=True)
    ]
    note = "Rows: true labels; columns: predictions of the model; in brackets, shares of the row."
    columns = [Column("true"), *(Column(label, str) for label in results.labels)]
    return Table("Confusion matrix", note, columns, rows)


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
    rows: list[list[Cell]] = [
        [label, *(cell(split, label) for split in splits)] for label in labels
    ]
    rows.append(["all", *(f"{totals[split]:,}" for split in splits)])
    note = f"Source texts, and shares of the split.{_selection(results)}"
    return Table("Labels", note, [Column("label"), *(Column(name, str) for name in splits)], rows)


def _epochs(epochs: Sequence[Epoch]) -> Table:
    columns = {
        "epoch": Column("epoch", "{:g}".format),
        "step": Column("step", COUNT),
        "training_loss": Column("training loss", "{:.4f}".format),
        "training_accuracy": Column("accuracy", "{:.3f}".format),
        "validation_loss": Column("validation loss", "{:.4f}".format),
        **{f"validation_{name}": Column(WORDS[name], "{:.3f}".format) for name in SCORES},
    }
    note = (
        "Training: over chunks, with dropout, while the weights change. Validation: the loss over "
        "chunks, the scores over source texts."
    )
    rows: list[list[Cell]] = [[epoch.get(name) for name in columns] for epoch in epochs]
    return Table("Losses and scores", note, [*columns.values()], rows)


def _percent(interval: Interval) -> str:
    return f"{interval.low:.1%} to {interval.high:.1%}"


@figures.styled
def systems_plot(results: Results) -> Figure:
    """Accuracy and MCC of each system with its 95% interval."""
    figure, panels = figures.canvas(1.2 + 0.45 * len(results.systems), panels=2)
    for axes, name in zip(panels, ("accuracy", "mcc"), strict=True):
        for place, system in enumerate(results.systems):
            estimate = Estimate(system.values[name], system.intervals[name])
            figures.draw_interval(axes, place, estimate, Look(MUTED if place else GOOD))
            axes.annotate(
                f"{estimate.value:.3f}", (estimate.value, place), (0, 6),
                textcoords="offset points", ha="center", fontsize=SMALL,
            )  # fmt: skip
        figures.name_rows(axes, [system.name for system in results.systems])
        axes.set_ylim(len(results.systems) - 0.5, -0.8)
        axes.set_xlabel(f"{WORDS[name]}, 95% interval")
    panels[1].tick_params(labelleft=False)
    return figure


@figures.styled
def confusion_plot(results: Results) -> Figure:
    """Counts, colored by their share of the true label."""
    from matplotlib.patches import Rectangle

    matrix, shares, labels = _shown_matrix(results)
    names = [_short(label) for label in labels]
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
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted (the stronger the color, the larger the share of the true label)")
    axes.set_ylabel("true")
    return figure


@figures.styled
def labels_plot(results: Results) -> Figure:
    """The share of each shown label by split."""
    splits = list(results.distribution)
    labels = [results.labels[number] for number in shown_labels(results)]
    figure, (axes,) = figures.canvas(1.2 + (0.15 + 0.13 * len(splits)) * len(labels))
    height = 0.8 / len(splits)
    for number, split in enumerate(splits):
        counts = [results.distribution[split].get(label, 0) for label in labels]
        total = sum(results.distribution[split].values())
        places = np.arange(len(counts)) + (number - (len(splits) - 1) / 2) * height
        shares = 100 * np.array(counts) / max(total, 1)
        axes.barh(places, shares, height, color=SERIES[number + 1], label=f"{split} ({total:,})")
    figures.name_rows(axes, [_short(label) for label in labels])
    axes.set_xlabel("% of the source texts of a split")
    figure.legend(loc="outside upper left", ncols=len(splits), labelcolor=INK, frameon=False)
    return figure


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_NAME else f"{label[: LONGEST_NAME - 1]}…"


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
