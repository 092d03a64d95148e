"""The report on a test set: tables in the terminal, in Markdown and HTML, and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from rich.console import Console

from bsmeta.evaluation.output import WIDTH_OF_A_FILE, html_image, html_page, html_table, rich_table
from bsmeta.evaluation.statistics import Interval
from bsmeta.evaluation.tables import Table, markdown
from bsmeta.tasks.classification.plots import figures_of
from bsmeta.tasks.classification.results import FIRST_CHUNK, LINEAR, Results
from bsmeta.tasks.classification.scores import SCORES, Compared

WORDS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "mcc": "MCC",
}
FEW_UNITS = 20
"""Resampled units below which the intervals are called rough."""
MOST_LABELS = 30
"""A confusion matrix of more labels is in `evaluation.json` and its plot only."""

Epoch = Mapping[str, float | None]


def write_report(results: Results, epochs: Sequence[Epoch], folder: Path) -> list[Path]:
    """Writes `evaluation.json`, `evaluation.md`, `report.html` and plots; returns the files.

    Args:
        results: The scores.
        epochs: The training curves; none if the test set is not that of the run.
        folder: Created if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures = figures_of(results, epochs)
    tables = tables_of(results, epochs)
    title = f"Classification of {results.source}"
    images = [f"![{name}]({name}.png)" for name in figures]
    sentences = summary(results)
    texts = {
        "evaluation.json": json.dumps(results.as_dict(), indent=1, ensure_ascii=False) + "\n",
        "evaluation.md": "\n\n".join([f"# {title}", *sentences, markdown(tables), *images, ""]),
        "report.html": html_page(
            title,
            [f'<p class="lead">{escape(" ".join(sentences))}</p>']
            + [html_image(name, figure) for name, figure in figures.items()]
            + [html_table(table) for table in tables],
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=130)
    return [folder / name for name in [*texts, *(f"{name}.png" for name in figures)]]


def print_report(results: Results, files: Sequence[Path]) -> None:
    """Prints the main tables, the summary, and the paths of the files."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_A_FILE)
    for table in tables_of(results, []):
        console.print(rich_table(table))
        console.print(f"[dim]{table.note}[/dim]")
    for sentence in summary(results):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    for folder in dict.fromkeys(file.parent for file in files):
        names = ", ".join(file.name for file in files if file.parent == folder)
        console.print(f"written to {folder}: {names}", markup=False, soft_wrap=True)


def summary(results: Results) -> list[str]:
    """The result in sentences: the model beside the linear baseline, and what folding is worth."""
    model, *others = results.systems
    texts = int(model.matrix.sum())
    sentences = [
        f"The model predicts {model.values['accuracy']:.1%} of {texts:,} texts right "
        f"(95% interval {_percent(model.intervals['accuracy'])}, over {results.units[0]:,} "
        f"resampled {results.units[1]})."
    ]
    if results.units[0] < FEW_UNITS:
        sentences.append(
            f"{results.units[0]:,} {results.units[1]} are few to resample: the intervals are rough."
        )
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
    return sentences


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


def _systems(results: Results) -> Table:
    rows = [
        [system.name, *(_cell(system.values[name], system.intervals[name]) for name in SCORES)]
        for system in results.systems
    ]
    texts, (count, unit) = int(results.systems[0].matrix.sum()), results.units
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
        for label, values in results.per_label.items()
    ]
    heads = ["label", "precision", "recall", "F1", "texts"]
    return Table("The model by label", "Texts: those with this true label.", heads, rows)


def _confusion(results: Results) -> Table:
    matrix = results.systems[0].matrix
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    rows = [
        [label, *(f"{n:,} ({s:.0%})" for n, s in zip(counts, share, strict=True))]
        for label, counts, share in zip(results.labels, matrix, shares, strict=True)
    ]
    note = "Rows: true labels; columns: predictions of the model; in brackets, shares of the row."
    return Table("Confusion matrix", note, ["true", *results.labels], rows)


def _distribution(results: Results) -> Table:
    splits = list(results.distribution)
    totals = {split: sum(results.distribution[split].values()) for split in splits}

    def cell(split: str, label: str) -> str:
        count = results.distribution[split].get(label, 0)
        return f"{count:,} ({count / max(totals[split], 1):.1%})"

    rows = [[label, *(cell(split, label) for split in splits)] for label in results.labels]
    rows.append(["all", *(f"{totals[split]:,}" for split in splits)])
    return Table("Labels", "Source texts, and shares of the split.", ["label", *splits], rows)


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
