"""The report on a test set: tables in the terminal, in Markdown and HTML, and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bsmeta.config.metric_table import MetricTable
from bsmeta.report import figures
from bsmeta.report.cells import Cell
from bsmeta.report.figures import SMALL_TEXT_SIZE, SeriesStyle, shorten_name
from bsmeta.report.inference import read_value, warn_of_rough_intervals
from bsmeta.report.page import (
    COUNT,
    Column,
    Page,
    Section,
    Table,
    describe_command,
    print_report,
    write_report,
)
from bsmeta.report.palette import GOOD, INK, MUTED, SERIES
from bsmeta.tasks.classification.config import COMBINED, FINE_TUNE, FROZEN, LINEAR
from bsmeta.tasks.classification.metrics import METRICS, Classified, choose_scores
from bsmeta.tasks.classification.results import (
    FIRST_CHUNK,
    Choice,
    Compared,
    Confusion,
    Results,
    estimate_standard_error,
)
from bsmeta.tasks.classification.store import list_first

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Names of constant baselines
MAJORITY = "most frequent label"
MAJORITY_SET = "most frequent set of labels"
MAJORITY_LABELS = "most frequent labels"

METHOD_NAMES = {
    LINEAR: "TF-IDF + linear SVM",
    FROZEN: "frozen vectors + logistic regression",
    COMBINED: "TF-IDF and frozen vectors + linear SVM",
    FINE_TUNE: "fine-tuned encoder",
}
"""Names of the methods in reports, the simplest method first."""

BASELINES = (MAJORITY_SET, MAJORITY_LABELS, METHOD_NAMES[LINEAR])
"""Names of the baselines of a model of several labels."""

MAX_SHOWN_LABELS = 30
"""Maximum number of labels in tables and plots; see `select_labels`."""
MAX_NAME_CHARS = 28
"""Maximum characters of a label in a plot."""
MAX_LISTED_LABELS = 5
"""Maximum number of labels in a sentence."""
OTHERS_LABEL = "all others"
MAX_NUMBERED_LABELS = 20
"""Maximum number of labels for which the plot of the confusion matrix shows counts."""
MAX_OPACITY = 0.5
"""Opacity of a cell of the confusion matrix with all texts of its label: text stays readable."""

MAIN_SCORES = ("subset_accuracy", "micro_f1", "macro_f1", "sample_f1")
"""Scores of texts with several labels in the first tables; precision and recall have their own."""

Epoch = Mapping[str, float | None]


def report_results(
    results: Results,
    epochs: Sequence[Epoch],
    folder: Path,
    facts: Mapping[str, str],
    files: Sequence[Path] = (),
    training_command: str | None = None,
) -> None:
    """Writes the report, and prints it with the paths of all files.

    Args:
        epochs: The training curves, see `evaluate.read_epochs`; none for another test set than
            the run's own.
        facts: Facts about the scored model for the page.
        files: Further files about the test set, whose paths are printed.
        training_command: Shown instead of the command of a training process.
    """
    test = results.test
    sentences = summarize_results(results)
    systems = _make_systems_section(results)
    labels = _make_labels_section(results)
    sections = [systems, labels]
    if epochs:
        curves = {"curves": partial(draw_curves_plot, epochs, _choose_main_accuracy(results))}
        epochs_table = make_epochs_table(results, epochs)
        sections.append(Section("Training", tables=[epochs_table], plots=curves))

    unit_count, unit = results.units
    page = Page(
        title=f"Classification of {test.source}",
        answers=sentences,
        facts={
            **facts,
            "test set": test.source,
            "texts": f"{results.texts:,} ({len(test.chunks):,} chunks)",
            "labels": f"{len(test.labels):,}",
            "intervals": f"bootstrap over {unit_count:,} {unit}",
        },
        sections=sections,
        commands=describe_command(training_command),
    )
    written = write_report(page, results.as_dict(), folder)
    printed_tables = [table for table in (*systems.tables, *labels.tables) if table.rows]
    print_report(printed_tables, sentences, [*files, *written])


def _make_systems_section(results: Results) -> Section:
    """Makes the tables and the plot that compare systems."""
    tables = [_make_systems_table(results), _make_differences_table(results)]
    if results.test.has_several:
        tables.append(_make_precision_table(results))
    if results.choice is not None:
        tables.append(_make_choice_table(results, results.choice))
    return Section(tables=tables, plots={"systems": partial(draw_systems_plot, results)})


def _make_labels_section(results: Results) -> Section:
    """Makes the tables and plots of the model's scores by label, and of the labels by split."""
    test = results.test
    tables = [_make_label_table(results)]
    if len(test.labels) <= MAX_SHOWN_LABELS and not test.has_several:
        tables.append(make_confusion_table(results))
    tables.append(_make_distribution_table(results))

    plots = {"labels": partial(draw_labels_plot, results)}
    if not test.has_several:
        plots = {"confusion": partial(draw_confusion_plot, results), **plots}
    return Section("By label", tables=tables, plots=plots)


def summarize_results(results: Results) -> list[str]:
    """Describes the results in sentences: the model, the other systems, the effect of folding."""
    unit_count, unit = results.units
    units = f"over {unit_count:,} resampled {unit}"
    strongest = _find_strongest_baseline(results) if results.test.has_several else None
    if results.test.has_several:
        sentences = _summarize_sets(results, strongest, units)
    else:
        accuracy = results.systems[0].scores["accuracy"]
        sentences = [
            f"The model predicts {accuracy.value:.1%} of {results.texts:,} texts right (95% "
            f"interval {accuracy.low:.1%} to {accuracy.high:.1%}, {units})."
        ]
    if results.choice is not None:
        sentences.append(describe_choice(results.choice))
    sentences += warn_of_rough_intervals(unit_count, unit)
    sentences += _summarize_other_systems(results, strongest)
    sentences += describe_unpredicted_labels(results)

    notes = [f"{_capitalize(note)}." for note in results.test.notes]
    return [*sentences, *notes]


def describe_unpredicted_labels(results: Results) -> list[str]:
    """Names the labels of test texts that the model never predicts, in a sentence; [] if none."""
    totals = results.systems[0].confusion.totals()
    unpredicted = np.flatnonzero((totals.true > 0) & (totals.predicted == 0))
    if not len(unpredicted):
        return []

    most_frequent_first = unpredicted[np.argsort(-totals.true[unpredicted], kind="stable")]
    names = [repr(results.test.labels[label]) for label in most_frequent_first.tolist()]
    verb = "label is" if len(names) == 1 else "labels are"
    return [
        f"{len(names):,} {verb} never predicted: {list_first(names, MAX_LISTED_LABELS)}. With "
        "class_weights=balanced, the texts of rare labels weigh more."
    ]


def describe_choice(choice: Choice) -> str:
    """Describes in a sentence which system `method=auto` chose, and why."""
    best = choice.systems[0]
    chosen = next(system for system in choice.systems if system.name == choice.chosen)
    score = METRICS[choice.metric]
    name = METHOD_NAMES[chosen.name]
    value = f"{score.label} {score.format(chosen.scores[choice.metric].value)}"
    if len(choice.systems) == 1:
        return f"It is the {name}, the only system of this run ({value} on the validation split)."
    if chosen is not best:
        return (
            f"It is the {name} ({value} on the validation split), which is simpler than the best "
            f"of {len(choice.systems)} systems, the {METHOD_NAMES[best.name]}, and within one "
            f"standard error of it: {_describe_gap(choice, chosen)}."
        )

    sentence = (
        f"It is the {name}, the best of {len(choice.systems)} systems on the validation split "
        f"({value})"
    )
    simpler = [system for system in choice.systems[1:] if is_simpler(system.name, best.name)]
    if not simpler:
        return f"{sentence}; there is no simpler one."
    closest = max(simpler, key=lambda system: system.scores[choice.metric].value)
    return (
        f"{sentence}; the best simpler one, the {METHOD_NAMES[closest.name]}, is more than a "
        f"standard error below it: {_describe_gap(choice, closest)}."
    )


def _describe_gap(choice: Choice, system: Compared) -> str:
    """Describes the difference of a system from the best one, and its standard error."""
    difference = system.differences[choice.metric]
    error = estimate_standard_error(difference)
    return f"difference {difference.value:+.3f}, standard error {error:.3f}"


def is_simpler(method: str, other: str) -> bool:
    """Returns whether a method is simpler than another; `METHOD_NAMES` begins with the simplest."""
    methods = [*METHOD_NAMES]
    return methods.index(method) < methods.index(other)


def _summarize_other_systems(results: Results, strongest: Compared | None) -> list[str]:
    """Compares other systems, and the model on truncated texts, with the model.

    Args:
        strongest: A baseline that is described already.
    """
    sentences = []
    score = _choose_main_score(results)
    for other in results.systems[1:]:
        value = f"{other.scores[score].value:.1%}"
        difference = _describe_difference(other, score)
        if other.name in METHOD_NAMES.values() and other is not strongest:
            labeled_value = f"{value} right" if score == "accuracy" else f"micro F1 {value}"
            sentences.append(f"{_capitalize(other.name)}: {labeled_value}, {difference}.")
        elif other.name == FIRST_CHUNK:
            verb = "is" if results.folded == 1 else "are"
            effect = f"{value} of all would be right"
            if results.test.has_several:
                effect = f"they would be labeled with a micro F1 of {value}"
            sentences.append(
                f"{results.folded:,} of {results.texts:,} texts {verb} longer than a chunk. "
                f"Truncated to the first one, {effect}: {difference}."
            )
    return sentences


def _find_strongest_baseline(results: Results) -> Compared | None:
    """Returns the baseline with the highest micro F1; None if there are no baselines."""
    baselines = [system for system in results.systems[1:] if system.name in BASELINES]
    return max(baselines, key=lambda system: system.scores["micro_f1"].value, default=None)


def _summarize_sets(results: Results, strongest: Compared | None, units: str) -> list[str]:
    """Describes a model of several labels, and its strongest baseline.

    Args:
        strongest: The strongest baseline; None if there are no baselines.
        units: Description of the resampled units, such as "over 100 resampled distinct texts".
    """
    model = results.systems[0]
    exact = model.scores["subset_accuracy"]
    f1 = model.scores["micro_f1"]
    sentences = [
        f"The model labels {results.texts:,} texts with a micro F1 of {f1.value:.1%} (95% interval "
        f"{f1.low:.1%} to {f1.high:.1%}, {units}); for {exact.value:.1%} of them, it predicts "
        "exactly their labels."
    ]
    if strongest is not None:
        sentences.append(
            f"The strongest baseline is {strongest.name!r}, with a micro F1 of "
            f"{strongest.scores['micro_f1'].value:.1%}: "
            f"{_describe_difference(strongest, 'micro_f1')}."
        )
    return sentences


def _choose_main_score(results: Results) -> str:
    """Returns the score by which sentences compare systems."""
    return "micro_f1" if results.test.has_several else "accuracy"


def _choose_main_accuracy(results: Results) -> str:
    """Returns the name of the accuracy that training logs."""
    return "subset_accuracy" if results.test.has_several else "accuracy"


def list_scores(results: Results) -> MetricTable[Classified]:
    """Returns the scores of the first tables: all, or with several labels `MAIN_SCORES`."""
    has_several = results.test.has_several
    table = choose_scores(has_several=has_several)
    return {name: table[name] for name in MAIN_SCORES} if has_several else table


def _capitalize(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _describe_difference(other: Compared, score: str) -> str:
    """Describes the difference of a system's score from the model's, with its interval."""
    difference = other.differences[score]
    caveat = ""
    if not difference.interval.excludes_zero:
        caveat = ": not distinguishable on this test set"
    return (
        f"{100 * difference.value:+.1f} points compared with the model (95% interval "
        f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}{caveat})"
    )


def select_labels(results: Results) -> list[int]:
    """Selects the labels of tables and plots: all, or the most frequent and the worst by F1.

    With more than `MAX_SHOWN_LABELS`, half of the selected labels are the most frequent ones, and
    half those with the lowest F1 among the others.

    Returns:
        Indexes of labels, ascending.
    """
    every = range(len(results.test.labels))
    if len(every) <= MAX_SHOWN_LABELS:
        return [*every]

    metrics = [*results.per_label.values()]
    half = MAX_SHOWN_LABELS // 2
    frequent = sorted(every, key=lambda label: -metrics[label]["texts"])[:half]
    others = [label for label in every if label not in frequent and metrics[label]["texts"]]
    worst = sorted(others, key=lambda label: (metrics[label]["f1"], -metrics[label]["texts"]))
    return sorted([*frequent, *worst[:half]])


def describe_selection(results: Results, json_name: str = "evaluation.json") -> str:
    """Describes how the labels of a table were selected; "" if it has all labels.

    Args:
        json_name: The file of the report that has all labels.
    """
    label_count = len(results.test.labels)
    if label_count <= MAX_SHOWN_LABELS:
        return ""

    half = MAX_SHOWN_LABELS // 2
    return (
        f" The {half} most frequent of {label_count:,} labels, and the {half} with the "
        f"lowest F1 among the others; {json_name} has all."
    )


def make_score_columns(table: MetricTable[Classified]) -> list[Column]:
    """Makes the columns of a table of scores, after one of names."""
    return [Column("system"), *(Column(score.label, score.format) for score in table.values())]


def make_difference_columns(table: MetricTable[Classified]) -> list[Column]:
    """Makes the columns of a table of differences of scores, after one of names."""
    columns = [Column(score.label, score.format_difference) for score in table.values()]
    return [Column("system"), *columns]


def _make_systems_table(results: Results) -> Table:
    count, unit = results.units
    note = (
        f"Over {results.texts:,} source texts ({len(results.test.chunks):,} chunks; the logits of "
        "a text are the mean over its chunks). In brackets: 95% intervals, bootstrap over "
        f"{count:,} {unit}."
    )
    if results.test.has_several:
        note += (
            " A text without labels that is predicted to have none counts as 1 in sample F1; micro "
            "F1 counts pairs of a text and a label, macro F1 is the mean over the labels."
        )
    table = list_scores(results)
    rows = _make_score_rows(results, table)
    return Table(f"Scores on {results.test.source}", note, make_score_columns(table), rows)


def _make_score_rows(results: Results, table: MetricTable[Classified]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for system in results.systems:
        rows.append([system.name, *(system.scores[name] for name in table)])
    return rows


def _make_precision_table(results: Results) -> Table:
    """Makes the table of scores of several labels that are not in `MAIN_SCORES`."""
    every = choose_scores(has_several=True)
    table = {name: score for name, score in every.items() if name not in MAIN_SCORES}
    return Table(
        "Precision and recall", "", make_score_columns(table), _make_score_rows(results, table)
    )


def _make_differences_table(results: Results) -> Table:
    scores = list_scores(results)
    rows: list[list[Cell]] = [
        [system.name, *(system.differences[name] for name in scores)]
        for system in results.systems[1:]
    ]
    note = "Below 0: worse than the model. Paired: all systems on the same resamples."
    table = Table("Difference from the model", note, make_difference_columns(scores), rows)
    return table.sort_by(scores[_choose_main_score(results)].label)


def _make_choice_table(results: Results, choice: Choice) -> Table:
    shown_scores = list_scores(results)
    every_score = choose_scores(has_several=results.test.has_several)
    rows: list[list[Cell]] = []
    for system in choice.systems:
        mark = " (model)" if system.name == choice.chosen else ""
        scores = [system.scores[name].value for name in shown_scores]
        settings = choice.settings.get(system.name, {})
        rows.append(
            [
                f"{METHOD_NAMES[system.name]}{mark}",
                *scores,
                system.differences.get(choice.metric),
                ", ".join(f"{key}={value:g}" for key, value in settings.items()),
            ]
        )

    columns = [
        *make_score_columns(shown_scores),
        Column("minus the best", "{:+.3f}".format),
        Column("settings", str),
    ]
    note = (
        "The model is the simplest system within one standard error of the best one by "
        f"{every_score[choice.metric].label} that scores higher than all simpler ones; a 95% "
        "interval of the difference is about four errors wide."
    )
    if results.test.has_several:
        note += " The labels of each fold are predicted with thresholds chosen on the other folds."
    return Table("Systems on the validation split", note, columns, rows)


def _make_label_table(results: Results) -> Table:
    every = [*results.per_label.items()]
    rows: list[list[Cell]] = []
    for number in select_labels(results):
        label, metrics = every[number]
        rows.append([label, *metrics.values()])

    columns = [
        Column("label"),
        Column("precision", "{:.3f}".format),
        Column("recall", "{:.3f}".format),
        Column("F1", "{:.3f}".format),
        Column("texts", COUNT),
    ]
    note = f"Texts: those with this true label.{describe_selection(results)}"
    if results.test.has_several:
        columns.append(Column("threshold", "{:.3f}".format))
        note = f"Threshold: the probability from which a text has the label. {note}"
    return Table("The model by label", note, columns, rows)


def make_confusion_table(results: Results, title: str = "Confusion matrix") -> Table:
    """Makes the table of the first system's confusion matrix."""
    confusion = _select_confusion(results)
    rows: list[list[Cell]] = []
    for label, counts, shares in zip(
        confusion.labels, confusion.counts, confusion.shares, strict=True
    ):
        cells = [f"{count:,} ({share:.0%})" for count, share in zip(counts, shares, strict=True)]
        rows.append([label, *cells])

    note = "Rows: true labels; columns: predictions of the model; in brackets, shares of the row."
    columns = [Column("true"), *(Column(label, str) for label in confusion.labels)]
    return Table(title, note, columns, rows)


class _ShownConfusion(NamedTuple):
    """The confusion matrix of the selected labels; a last row and column are for all others."""

    counts: np.ndarray  # int64 [labels, labels], by true and then by predicted label
    shares: np.ndarray  # float64 [labels, labels], of the texts with the true label
    labels: list[str]


def _select_confusion(results: Results) -> _ShownConfusion:
    numbers = select_labels(results)
    confusion = results.systems[0].confusion
    assert isinstance(confusion, Confusion)
    counts = confusion.matrix(numbers)
    labels = [results.test.labels[number] for number in numbers]
    if len(labels) == len(results.test.labels):
        counts = counts[:-1, :-1]
    else:
        labels.append(OTHERS_LABEL)
    return _ShownConfusion(counts, counts / np.maximum(counts.sum(1, keepdims=True), 1), labels)


def _make_distribution_table(results: Results) -> Table:
    splits = results.test.distribution
    totals = {split: results.test.count_split_texts(split) for split in splits}

    rows: list[list[Cell]] = []
    for number in select_labels(results):
        label = results.test.labels[number]
        row: list[Cell] = [label]
        for split, counts in splits.items():
            count = counts.get(label, 0)
            row.append(f"{count:,} ({count / max(totals[split], 1):.1%})")
        rows.append(row)
    rows.append(["all", *(f"{total:,}" for total in totals.values())])

    note = f"Source texts, and shares of the split.{describe_selection(results)}"
    return Table("Labels", note, [Column("label"), *(Column(name, str) for name in splits)], rows)


def make_epochs_table(results: Results, epochs: Sequence[Epoch]) -> Table:
    """Makes the table of the training curves."""
    accuracy = _choose_main_accuracy(results)
    scores = list_scores(results)
    columns = {
        "epoch": Column("epoch", "{:g}".format),
        "step": Column("step", COUNT),
        "training_loss": Column("training loss", "{:.4f}".format),
        f"training_{accuracy}": Column(scores[accuracy].label, "{:.3f}".format),
        "validation_loss": Column("validation loss", "{:.4f}".format),
        **{
            f"validation_{name}": Column(score.label, score.format)
            for name, score in scores.items()
        },
    }
    rows: list[list[Cell]] = []
    for epoch in epochs:
        rows.append([epoch.get(name) for name in columns])

    note = (
        "Training: over chunks, with dropout, while the weights change. Validation: the loss over "
        "chunks, the scores over source texts."
    )
    if results.test.has_several:
        note += (
            " In training, a chunk has each label that is more likely than not; in validation, the "
            "thresholds for each fold are chosen on the other folds."
        )
    return Table("Losses and scores", note, [*columns.values()], rows)


@figures.style_figure
def draw_systems_plot(results: Results) -> Figure:
    """Draws accuracy and MCC, or micro and macro F1, of each system with 95% intervals."""
    has_several = results.test.has_several
    names = ("micro_f1", "macro_f1") if has_several else ("accuracy", "mcc")
    table = choose_scores(has_several=has_several)
    figure, panels = figures.create_figure(1.2 + 0.45 * len(results.systems), panels=2)
    for axes, name in zip(panels, names, strict=True):
        for row, system in enumerate(results.systems):
            score = system.scores[name]
            figures.draw_interval(axes, row, score, SeriesStyle(GOOD if row == 0 else MUTED))
            axes.annotate(
                f"{score.value:.3f}",
                (score.value, row),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=SMALL_TEXT_SIZE,
            )

        figures.name_rows(axes, [system.name for system in results.systems])
        axes.set_ylim(len(results.systems) - 0.5, -0.8)
        axes.set_xlabel(f"{table[name].label}, 95% interval")

    panels[1].tick_params(labelleft=False)
    return figure


@figures.style_figure
def draw_confusion_plot(results: Results) -> Figure:
    """Draws the confusion matrix; colors are shares of the texts with the true label."""
    from matplotlib.patches import Rectangle

    confusion = _select_confusion(results)
    names = [shorten_name(label, MAX_NAME_CHARS) for label in confusion.labels]
    size = max(3.2, 0.48 * len(names) + 1.8)
    figure, (axes,) = figures.create_figure(size, width=size + 1.2)

    for row, column in np.ndindex(*confusion.counts.shape):
        share = confusion.shares[row, column]
        if share > 0:
            corner = (column - 0.5, row - 0.5)
            opacity = MAX_OPACITY * share
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=GOOD, alpha=opacity, linewidth=0))
        if len(names) <= MAX_NUMBERED_LABELS:
            axes.text(
                column,
                row,
                f"{confusion.counts[row, column]:,}\n{share:.0%}",
                ha="center",
                va="center",
                fontsize=SMALL_TEXT_SIZE,
            )

    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_aspect("equal")
    figures.name_columns(axes, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted (the stronger the color, the larger the share of the true label)")
    axes.set_ylabel("true")
    return figure


@figures.style_figure
def draw_labels_plot(results: Results) -> Figure:
    """Draws the share of each selected label in each split."""
    splits = results.test.distribution
    labels = [results.test.labels[number] for number in select_labels(results)]
    figure, (axes,) = figures.create_figure(1.2 + (0.15 + 0.13 * len(splits)) * len(labels))

    # The bars of a label are centered on its row.
    bar_height = 0.8 / len(splits)
    bars: dict[str, Any] = {}
    for number, (split, counts) in enumerate(splits.items()):
        total = results.test.count_split_texts(split)
        shares = [100 * counts.get(label, 0) / max(total, 1) for label in labels]
        rows = np.arange(len(labels)) + (number - (len(splits) - 1) / 2) * bar_height
        name = f"{shorten_name(split)} ({total:,})"
        with figures.draw_series(axes, name):
            bars[name] = axes.barh(rows, shares, bar_height, color=SERIES[number + 1])

    figures.name_rows(axes, [shorten_name(label, MAX_NAME_CHARS) for label in labels])
    axes.set_xlabel("% of the source texts of a split")
    legend = figure.legend(
        [*bars.values()],
        [*bars],
        loc="outside upper left",
        ncols=len(splits),
        labelcolor=INK,
        frameon=False,
    )
    figures.link_legend(legend, [*bars])
    return figure


@figures.style_figure
def draw_curves_plot(epochs: Sequence[Epoch], accuracy: str = "accuracy") -> Figure:
    """Draws the loss and the accuracy in training and validation, by epoch.

    Args:
        accuracy: Name of the accuracy that training logs.
    """
    figure, panels = figures.create_figure(3.4, panels=2, shares_y=False)
    looks = {
        "training": SeriesStyle(SERIES[1], "o", "--"),
        "validation": SeriesStyle(SERIES[2], "s", "-"),
    }
    epoch_numbers = [read_value(epoch["epoch"]) for epoch in epochs]
    for axes, name in zip(panels, ("loss", accuracy), strict=True):
        for split, look in looks.items():
            values = [read_value(epoch.get(f"{split}_{name}")) for epoch in epochs]
            with figures.draw_series(axes, split):
                axes.plot(
                    epoch_numbers,
                    values,
                    linestyle=look.line,
                    marker=look.marker,
                    color=look.color,
                    markersize=4.5,
                    label=split,
                )

        axes.set_xlabel("epoch")
        axes.set_title(name.replace("_", " "), loc="left")
        axes.grid()

    figures.link_legend(panels[0].legend(labelcolor=INK), [*looks])
    return figure
