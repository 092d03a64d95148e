"""The report on held-out mentions: tables in the terminal, in Markdown and HTML, and the plot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bsmeta.evaluation.statistics import rough_intervals
from bsmeta.evaluation.tables import Table
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.results import (
    MODEL,
    POPULAR,
    Results,
    Scored,
    Share,
    SliceResult,
)
from bsmeta.tasks.reports import print_report, write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT = "accuracy_by_count"
MENTIONS = "mentions.jsonl"


def report(results: Results, mentions: Iterable[dict[str, Any]], folder: Path) -> None:
    """Writes the report and the mentions to a folder, and prints it."""
    title = f"Disambiguation of {results.source}"
    tables, sentences = tables_of(results), summary(results)
    figures = {PLOT: count_plot(results)}
    files = write_report(title, results.as_dict(), sentences, tables, figures, folder)
    with open(folder / MENTIONS, "wb") as file:
        file.writelines(msgspec.json.encode(mention) + b"\n" for mention in mentions)
    print_report(tables[:1], sentences, [*files, folder / MENTIONS])


def mention_records(
    scored: Scored, table: EntityTable, others: Mapping[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Yields each mention with what the model answers, and whether it and others are right.

    Args:
        scored: The mentions.
        table: The entities.
        others: Whether other systems are right, bool [mentions], by their names.
    """
    answers = scored.answers
    is_right = {MODEL: scored.is_right, POPULAR: scored.popular_is_right, **others}
    for number, (alias, entity) in enumerate(zip(answers.aliases, answers.entities, strict=True)):
        popular = table.candidates(int(alias))[0][:1].tolist()
        yield {
            "sent_idx_unq": int(answers.sentences[number]),
            "mention": int(answers.positions[number]),
            "alias": table.alias(int(alias)),
            "gold": [table.entity_id(one) for one in answers.gold[number].tolist() if one >= 0],
            "answer": None if entity < 0 else table.entity_id(int(entity)),
            "score": None if entity < 0 else round(float(answers.shares[number]), 4),
            "gold_rank": int(scored.rank[number]),
            "most_popular": table.entity_id(popular[0]) if popular else None,
            "training_count": int(scored.counts[number]),
            "right": {name: bool(right[number]) for name, right in is_right.items()},
        }


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
