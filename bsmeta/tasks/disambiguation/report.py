"""The report on held-out mentions: tables in the terminal, in Markdown and HTML, and the plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.console import Console

from bsmeta.evaluation.output import (
    WIDTH_OF_A_FILE,
    html_image,
    html_page,
    html_table,
    rich_table,
)
from bsmeta.evaluation.tables import Table, markdown
from bsmeta.tasks.disambiguation.plots import count_plot
from bsmeta.tasks.disambiguation.results import MODEL, POPULAR, Results, Share, SliceResult

PLOT = "accuracy_by_count"


def write_report(results: Results, folder: Path) -> list[Path]:
    """Writes `evaluation.json`, `evaluation.md`, `report.html` and the plot; returns the files.

    Args:
        results: The result.
        folder: Created if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figure = count_plot(results)
    tables, sentences = tables_of(results), summary(results)
    title = f"Disambiguation of {results.source}"
    texts = {
        "evaluation.json": json.dumps(results.as_dict(), indent=1, ensure_ascii=False) + "\n",
        "evaluation.md": "\n\n".join(
            [f"# {title}", *sentences, markdown(tables), f"![{PLOT}]({PLOT}.png)", ""]
        ),
        "report.html": html_page(
            title,
            [
                f'<p class="lead">{escape(" ".join(sentences))}</p>',
                html_image(PLOT, figure),
                *map(html_table, tables),
            ],
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    figure.savefig(folder / f"{PLOT}.png", dpi=130)
    return [folder / name for name in [*texts, f"{PLOT}.png"]]


def print_report(results: Results, files: Sequence[Path]) -> None:
    """Prints the main table, the summary, and the paths of the files."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_A_FILE)
    table = tables_of(results)[0]
    console.print(rich_table(table))
    console.print(f"[dim]{table.note}[/dim]")
    for sentence in summary(results):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    for folder in dict.fromkeys(file.parent for file in files):
        names = ", ".join(file.name for file in files if file.parent == folder)
        console.print(f"written to {folder}: {names}", markup=False, soft_wrap=True)


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
    return sentences


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
