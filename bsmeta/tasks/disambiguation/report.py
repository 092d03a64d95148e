"""Results on held-out mentions, by slice, and their report: the model and its baselines.

Bands follow from how often the training data has the gold entity: toes 0 (TS); tail up to 10, toes
included (TL); torso 11 to 1,000 (TO); head more (HD). `unif_*` are the mentions of a band,
`unif_NS_*` those with more than one candidate, `not_most_popular_*` those whose entity is not the
first candidate (Bootleg's names).

Intervals are 95% bootstrap intervals over documents: mentions of one document are alike. The
systems are compared on the same resamples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bsmeta.report import figures
from bsmeta.report.figures import INK, SERIES, Look, look
from bsmeta.report.inference import Estimate, bootstrap, rough_intervals
from bsmeta.report.page import (
    COUNT,
    Cell,
    Column,
    Page,
    Section,
    Table,
    json_line,
    own_command,
    print_report,
    write_report,
)
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import ALL_MENTIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TAIL_MOST, TORSO_MOST = 10, 1000
SHORT = {"HD": "head", "TO": "torso", "TL": "tail", "TS": "toes"}
"""What Bootleg calls the bands in the names of slices."""
TOP = 5
OF_LINES = "_of_lines"  # ends the name of a slice that lines define although it is built in
QUALITIES = ("accuracy", "top5", "popular_accuracy")
MODEL, POPULAR = "model", "most popular candidate"
COUNT_BINS = (0, 1, 2, 4, 11, 31, 101, 301, 1001)
"""The lowest training count of each bin of the plot."""
PLOT = "accuracy_by_count"
MENTIONS = "mentions.jsonl"


@dataclass(frozen=True)
class Scored:
    """The gold mentions of a split, scored: arrays [mentions] about the gold entity of each.

    Of several gold entities, the best one counts.
    """

    rank: np.ndarray  # how many candidates score higher than it; -1 if it is none, nor NIL right
    place: np.ndarray  # its place among the candidates by popularity; -1 if it is none of them
    candidates: np.ndarray  # the number of candidates
    counts: np.ndarray  # how often the training data has it; of several, the most frequent one
    documents: np.ndarray
    own: Mapping[str, np.ndarray]  # slices that the lines define: bool [mentions] by name
    loss: np.ndarray  # -log of its probability among the own candidates; NaN if it is none
    sentences: np.ndarray
    positions: np.ndarray  # in the line
    aliases: np.ndarray
    gold: np.ndarray  # int64 [mentions, most of one]: the gold entities; -1 for no more
    answers: np.ndarray  # the best candidate; -1 if there is none, 0 for NIL
    shares: np.ndarray  # its probability among the candidates

    @property
    def is_right(self) -> np.ndarray:
        """bool [mentions]: whether the model is right."""
        return self.rank == 0

    @property
    def popular_is_right(self) -> np.ndarray:
        """bool [mentions]: whether the most popular candidate is right."""
        return self.place == 0


def bands(counts: np.ndarray) -> dict[str, np.ndarray]:
    """The mentions of each band, bool [mentions], by `Scored.counts`."""
    return {
        "head": counts > TORSO_MOST,
        "torso": (counts > TAIL_MOST) & (counts <= TORSO_MOST),
        "tail": counts <= TAIL_MOST,
        "toes": counts == 0,
    }


def built_in_slices(
    counts: np.ndarray, candidates: np.ndarray, place: np.ndarray
) -> dict[str, np.ndarray]:
    """The slices that all data have, bool [mentions], by name; the arguments are of `Scored`."""
    of_band = bands(counts)
    is_ambiguous, is_unpopular = candidates > 1, place != 0
    everything = np.ones(len(counts), bool)
    unpopular = {band: is_unpopular & of_band[band] for band in ("torso", "tail", "toes")}
    return {
        ALL_MENTIONS: everything,
        **of_band,
        "unif_NS_all": is_ambiguous,
        **{f"unif_NS_{short}": is_ambiguous & of_band[band] for short, band in SHORT.items()},
        **{f"not_most_popular_{band}": members for band, members in unpopular.items()},
        "unif_all": everything,
        **{f"unif_{short}": of_band[band] for short, band in SHORT.items()},
    }


BUILT_IN = (*built_in_slices(*np.zeros((3, 0), np.int64)),)
REPEATED = tuple(name for name in BUILT_IN if re.fullmatch(r"unif_[^_]+", name))
"""Slices with the mentions of other ones, reported only if they are named."""


def name_of_own(name: str) -> str:
    """What a slice of the lines is called, which does not replace a built-in one."""
    return f"{name}{OF_LINES}" if name in BUILT_IN else name


def is_reported(name: str, chosen: Collection[str] | None) -> bool:
    """Whether evaluations report a slice: of those that are chosen, or of all (None)."""
    if chosen is None:
        return name not in REPEATED
    return name == ALL_MENTIONS or name in chosen or name.removesuffix(OF_LINES) in chosen


def slices_of(scored: Scored, chosen: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The mentions of each slice that is reported, bool [mentions], by name."""
    found = built_in_slices(scored.counts, scored.candidates, scored.place) | dict(scored.own)
    return {name: members for name, members in found.items() if is_reported(name, chosen)}


def own_slices(names: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """The slices that lines define, bool [mentions] by name, from those of each mention."""
    return {
        name_of_own(name): np.array([name in own for own in names])
        for name in sorted({name for own in names for name in own})
    }


def metrics_of(scored: Scored, members: np.ndarray) -> dict[str, float]:
    """The metrics of a slice (bool [mentions]), and of its mentions whose entity is a candidate."""
    found = {}
    for suffix, chosen in (("", members), ("_in_candidates", members & (scored.place >= 0))):
        rank = scored.rank[chosen]
        shares = (rank == 0, (rank >= 0) & (rank < TOP), scored.popular_is_right[chosen])
        found[f"mentions{suffix}"] = float(len(rank))
        for name, values in zip(QUALITIES, shares, strict=True):
            found[f"{name}{suffix}"] = float(values.mean()) if len(values) else math.nan
    return found


@dataclass(frozen=True)
class SliceResult:
    """The result on one slice."""

    name: str
    documents: int  # those with a mention in it
    metrics: dict[str, float]  # `metrics_of` the model
    accuracy: dict[str, Estimate]  # of each system
    difference: dict[str, Estimate]  # the accuracy of the model minus that of each other system


@dataclass(frozen=True)
class Results:
    """The result on a split."""

    source: str  # the file of the mentions
    documents: int
    systems: list[str]  # the model first
    slices: list[SliceResult]  # those that have mentions
    by_count: list[SliceResult]  # mentions by the training count of their entity


def results_of(
    scored: Scored,
    others: Mapping[str, np.ndarray],
    *,
    source: str,
    chosen: Collection[str] | None,
    resamples: int,
    seed: int,
) -> Results:
    """Compares the model with the most popular candidate and other systems.

    `others` say whether these are right, bool [mentions], by their names; `chosen` are the slices
    that are reported (None: all), `source` is the file of the mentions.
    """
    is_right = {MODEL: scored.is_right, POPULAR: scored.popular_is_right, **others}
    names = [*is_right]
    _, documents = np.unique(scored.documents, return_inverse=True)

    def result(name: str, members: np.ndarray) -> SliceResult:
        systems = [right & members for right in is_right.values()]
        gains = [systems[0].astype(float) - other for other in systems[1:]]
        sums = np.array([np.bincount(documents, values) for values in [*systems, *gains]])
        totals = np.bincount(documents, members.astype(float))
        intervals = bootstrap(sums, np.tile(totals, (len(sums), 1)), resamples=resamples, seed=seed)
        shares = [
            Estimate(float(total) / int(members.sum()), interval)
            for total, interval in zip(sums.sum(1), intervals, strict=True)
        ]
        return SliceResult(
            name,
            int((totals > 0).sum()),
            metrics_of(scored, members),
            dict(zip(names, shares, strict=False)),
            dict(zip(names[1:], shares[len(names) :], strict=True)),
        )

    slices, bins = slices_of(scored, chosen).items(), count_bins(scored.counts).items()
    return Results(
        source=source,
        documents=int(documents.max()) + 1,
        systems=names,
        slices=[result(name, members) for name, members in slices if members.any()],
        by_count=[result(name, members) for name, members in bins],
    )


def count_bins(counts: np.ndarray) -> dict[str, np.ndarray]:
    """The mentions by the training count of their entity, bool [mentions]; no empty bin."""
    bins = {}
    for low, after in zip(COUNT_BINS, [*COUNT_BINS[1:], None], strict=True):
        if after is None:
            name, members = f"{low - 1:,}+", counts >= low
        else:
            name = f"{low:,}" if after == low + 1 else f"{low:,}–{after - 1:,}"
            members = (counts >= low) & (counts < after)
        if members.any():
            bins[name] = members
    return bins


def report(
    results: Results, mentions: Iterable[dict[str, Any]], folder: Path, facts: Mapping[str, str]
) -> None:
    """Writes the report and the `mention_records` to a folder, and prints it.

    `facts` say what was scored, beside what the results say.
    """
    tables, sentences = tables_of(results), summary(results)
    count = results.slices[0].metrics["mentions"]
    page = Page(
        title=f"Disambiguation of {results.source}",
        answers=sentences,
        facts={
            **facts,
            "sentences": results.source,
            "mentions": f"{count:,.0f} in {results.documents:,} documents",
        },
        sections=[Section(tables=tables, plots={PLOT: partial(count_plot, results)})],
        commands=own_command(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / MENTIONS, "wb") as file:
        file.writelines(map(json_line, mentions))
    files = write_report(page, asdict(results), folder, further=[MENTIONS])
    print_report(tables[:1], sentences, files)


def mention_records(
    scored: Scored, table: EntityTable, others: Mapping[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Yields each mention with what the model answers, and whether it and others are right."""
    is_right = {MODEL: scored.is_right, POPULAR: scored.popular_is_right, **others}
    answers = zip(scored.aliases.tolist(), scored.answers.tolist(), strict=True)
    for number, (alias, answer) in enumerate(answers):
        popular = table.candidates(alias)[0][:1].tolist()
        yield {
            "sent_idx_unq": int(scored.sentences[number]),
            "mention": int(scored.positions[number]),
            "alias": table.aliases[alias],
            "gold": [table.ids[one] for one in scored.gold[number].tolist() if one >= 0],
            "answer": None if answer < 0 else table.ids[answer],
            "score": None if answer < 0 else round(float(scored.shares[number]), 4),
            "gold_rank": int(scored.rank[number]),
            "most_popular": table.ids[popular[0]] if popular else None,
            "training_count": int(scored.counts[number]),
            "right": {name: bool(right[number]) for name, right in is_right.items()},
        }


def summary(results: Results) -> list[str]:
    """The result in sentences: the model beside each other system, over all mentions."""
    everything = results.slices[0]
    model = everything.accuracy[MODEL]
    sentences = [
        f"The model is right about {model.value:.1%} of {everything.metrics['mentions']:,.0f} "
        f"mentions (95% interval {model.low:.1%} to {model.high:.1%}, over "
        f"{results.documents:,} resampled documents)."
    ]
    for name, gain in everything.difference.items():
        is_clear = gain.interval.excludes_zero
        distinct = "" if is_clear else ": not distinguishable on these documents"
        subject = f"The {name}" if name == POPULAR else name
        sentences.append(
            f"{subject} is right about {everything.accuracy[name].value:.1%}; the model gains "
            f"{_points(gain.value)} points (95% interval {_points(gain.low)} to "
            f"{_points(gain.high)}{distinct})."
        )
    return [*sentences, *rough_intervals(results.documents, "documents")]


def tables_of(results: Results) -> list[Table]:
    """All tables of a report."""
    names = ("mentions", "accuracy", "top5", "popular_accuracy")
    rows: list[list[Cell]] = [
        [one.name, *(one.metrics[f"{name}_in_candidates"] for name in names)]
        for one in results.slices
    ]
    columns = [Column("slice"), Column("mentions", COUNT)]
    columns += [Column(head, _percent) for head in (MODEL, "top 5", POPULAR)]
    note, title = "In percent of these mentions.", "Mentions whose entity is a candidate"
    return [
        _accuracy("Accuracy by slice", "slice", results.systems, results.slices),
        Table(title, note, columns, rows),
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
        Column(head),
        Column("mentions", COUNT),
        *(Column(system, _percent) for system in systems),
        *(Column(f"gain over {system}", _points) for system in systems[1:]),
        Column("top 5", _percent),
    ]
    return Table(title, note, columns, rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


@figures.styled
def count_plot(results: Results) -> Figure:
    """Accuracy of each system by training count, with 95% intervals."""
    figure, (axes,) = figures.canvas(4.4)
    places, others = np.arange(len(results.by_count)), len(results.systems) - 1
    looks = [Look(SERIES[1], "o"), *(look(number + 2) for number in range(others))]
    for number, (system, style) in enumerate(zip(results.systems, looks, strict=True)):
        shares = [one.accuracy[system] for one in results.by_count]
        values, low, high = (
            np.array([getattr(one, part) for one in shares]) for part in ("value", "low", "high")
        )
        axes.errorbar(
            places + 0.1 * (number - others / 2),
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
