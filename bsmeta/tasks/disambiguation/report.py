"""The report on held-out mentions: tables in the terminal, in Markdown and HTML, and the plot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bsmeta.report import figures
from bsmeta.report.figures import INK, SERIES, Look, look
from bsmeta.report.inference import rough_intervals
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
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.results import (
    MODEL,
    POPULAR,
    Results,
    Scored,
    SliceResult,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT = "accuracy_by_count"
MENTIONS = "mentions.jsonl"


def report(
    results: Results, mentions: Iterable[dict[str, Any]], folder: Path, facts: Mapping[str, str]
) -> None:
    """Writes the report and the mentions to a folder, and prints it.

    Args:
        results: The result.
        mentions: Those of `mention_records`.
        folder: Created if it does not exist.
        facts: What was scored, beside what the results say.
    """
    tables, sentences = tables_of(results), summary(results)
    everything = results.slices[0].metrics
    page = Page(
        title=f"Disambiguation of {results.source}",
        answers=sentences,
        facts={
            **facts,
            "sentences": results.source,
            "mentions": f"{everything['mentions']:,.0f} in {results.documents:,} documents",
        },
        sections=[Section(tables=tables, plots={PLOT: count_plot(results)})],
        commands=own_command(),
    )
    files = write_report(page, results.as_dict(), folder, further=[MENTIONS])
    with open(folder / MENTIONS, "wb") as file:
        file.writelines(msgspec.json.encode(mention) + b"\n" for mention in mentions)
    print_report(tables[:1], sentences, files)


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
        low, high = difference.low, difference.high
        distinct = (
            "" if difference.interval.excludes_zero else ": not distinguishable on these documents"
        )
        subject = f"The {name}" if name == POPULAR else name
        sentences.append(
            f"{subject} is right about {everything.accuracy[name].value:.1%}; the model gains "
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
    rows: list[list[Cell]] = [
        [
            one.name,
            one.metrics["mentions"],
            *(one.accuracy[system] for system in systems),
            *(one.difference[system] for system in systems[1:]),
            one.metrics["top5"],
        ]
        for one in slices
    ]
    note = (
        "In percent of the mentions; in brackets: 95% intervals, bootstrap over documents. Gain: "
        "the accuracy of the model minus that of the other system, on the same resamples. Top 5: "
        "the entity is among the five best candidates of the model."
    )
    columns = [
        Column(head), Column("mentions", COUNT),
        *(Column(system, _percent) for system in systems),
        *(Column(f"gain over {system}", _points) for system in systems[1:]),
        Column("top 5", _percent),
    ]  # fmt: skip
    return Table(title, note, columns, rows)


def _in_candidates(slices: Sequence[SliceResult]) -> Table:
    names = ("mentions", "accuracy", "top5", "popular_accuracy")
    rows: list[list[Cell]] = [
        [one.name, *(one.metrics[f"{name}_in_candidates"] for name in names)] for one in slices
    ]
    columns = [
        Column("slice"), Column("mentions", COUNT),
        *(Column(head, _percent) for head in (MODEL, "top 5", POPULAR)),
    ]  # fmt: skip
    note = "In percent of these mentions."
    return Table("Mentions whose entity is a candidate", note, columns, rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


@figures.styled
def count_plot(results: Results) -> Figure:
    """Accuracy of each system by training count, with 95% intervals."""
    figure, (axes,) = figures.canvas(4.4)
    places = np.arange(len(results.by_count))
    looks = [
        Look(SERIES[1], "o"),
        *(look(number + 2) for number in range(len(results.systems) - 1)),
    ]
    for number, (system, style) in enumerate(zip(results.systems, looks, strict=True)):
        shares = [one.accuracy[system] for one in results.by_count]
        values = np.array([share.value for share in shares])
        low, high = (np.array([getattr(one, end) for one in shares]) for end in ("low", "high"))
        axes.errorbar(
            places + 0.1 * (number - (len(results.systems) - 1) / 2),
            100 * values,
            yerr=100 * np.array([np.maximum(values - low, 0), np.maximum(high - values, 0)]),
            marker=style.marker,
            linestyle=style.line,
            color=style.color,
            markersize=5,
            linewidth=2 if system == MODEL else 1.2,
        )
    names = [f"{one.name}\n({one.metrics['mentions']:,.0f})" for one in results.by_count]
    axes.set_xticks(places, names)
    axes.set_xlabel("mentions of the entity in the training data (held-out mentions)")
    axes.set_title("accuracy in %, with 95% intervals", loc="left", color=INK)
    axes.grid(axis="y")
    figures.legend_below(figure, zip(results.systems, looks, strict=True))
    return figure
