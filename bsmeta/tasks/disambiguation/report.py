"""Results of the model and its baselines on held-out mentions, by slice, and their report.

Bands depend on the count of the gold entity in the training data: toes 0 (TS); tail up to 10,
including toes (TL); torso 11 to 1,000 (TO); head more (HD). `unif_*` are the mentions of a band,
`unif_NS_*` those with more than one candidate, `not_most_popular_*` those whose entity is not the
first candidate (Bootleg's names).

Intervals are 95% bootstrap intervals over documents, because mentions in a document are not
independent. The systems are compared on the same resamples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bsmeta.report import figures
from bsmeta.report.cells import Cell
from bsmeta.report.figures import SeriesStyle, choose_series_style
from bsmeta.report.inference import Estimate, compute_bootstrap_intervals, warn_of_rough_intervals
from bsmeta.report.page import (
    Column,
    Page,
    Section,
    Table,
    describe_command,
    encode_json_line,
    print_report,
    write_report,
)
from bsmeta.report.palette import INK, SERIES
from bsmeta.tasks.disambiguation.detection_metrics import DetectionResult, make_detection_section
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import ALL_MENTIONS
from bsmeta.tasks.disambiguation.metrics import (
    IN_CANDIDATES,
    METRICS,
    SLICE_METRICS,
    RankedMentions,
    format_points,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TAIL_MAX_COUNT = 10
TORSO_MAX_COUNT = 1000
BAND_CODES = {"head": "HD", "torso": "TO", "tail": "TL", "toes": "TS"}
"""Bootleg's code of each band in names of slices."""

BUILT_IN_SLICES = (
    ALL_MENTIONS,
    "head",
    "torso",
    "tail",
    "toes",
    "unif_NS_all",
    "unif_NS_HD",
    "unif_NS_TO",
    "unif_NS_TL",
    "unif_NS_TS",
    "not_most_popular_torso",
    "not_most_popular_tail",
    "not_most_popular_toes",
    "unif_all",
    "unif_HD",
    "unif_TO",
    "unif_TL",
    "unif_TS",
)
"""The slices of all data, in the order of reports."""

REPEATED_SLICES = ("unif_all", "unif_HD", "unif_TO", "unif_TL", "unif_TS")
"""Slices with the same mentions as others, which are only reported if they are selected."""

LINE_SUFFIX = "_of_lines"
"""Suffix of a slice that lines define under the name of a built-in one."""

MODEL = "model"
POPULAR = "most popular candidate"

COUNT_BINS = (0, 1, 2, 4, 11, 31, 101, 301, 1001)
"""Lowest training count of each bin of the plot."""

PLOT_NAME = "accuracy_by_count"
MENTIONS_FILE = "mentions.jsonl"


@dataclass(frozen=True)
class Scored:
    """The scored gold mentions of a split; arrays are [mentions] unless noted.

    A mention may have several gold entities, of which the best one counts.
    """

    rank: np.ndarray  # number of candidates above the right answer; -1 if none is right
    gold_position: np.ndarray  # of the gold entity, by popularity; -1 if it is not a candidate
    candidates: np.ndarray  # number of candidates
    counts: np.ndarray  # training count of the most frequent gold entity
    documents: np.ndarray
    line_slices: Mapping[str, np.ndarray]  # bool [mentions] by slice that lines define
    loss: np.ndarray  # negative log-probability of the right answer; NaN if none is right
    sentences: np.ndarray
    positions: np.ndarray  # in the line
    aliases: np.ndarray
    gold: np.ndarray  # int64 [mentions, entities]: the gold entities; -1 pads
    answers: np.ndarray  # best candidate; -1: no candidates, 0: NIL
    shares: np.ndarray  # probability of the answer among the candidates

    @property
    def is_right(self) -> np.ndarray:
        """Whether the model is right, bool [mentions]."""
        return self.rank == 0

    @property
    def popular_is_right(self) -> np.ndarray:
        """Whether the most popular candidate is right, bool [mentions]."""
        return self.gold_position == 0


def mark_bands(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Marks the mentions of each band, bool [mentions].

    Args:
        counts: See `Scored.counts`.
    """
    return {
        "head": counts > TORSO_MAX_COUNT,
        "torso": (counts > TAIL_MAX_COUNT) & (counts <= TORSO_MAX_COUNT),
        "tail": counts <= TAIL_MAX_COUNT,
        "toes": counts == 0,
    }


def find_built_in_slices(scored: Scored) -> dict[str, np.ndarray]:
    """Marks the mentions of each slice in `BUILT_IN_SLICES`, bool [mentions]."""
    bands = mark_bands(scored.counts)
    is_ambiguous = scored.candidates > 1
    is_unpopular = scored.gold_position != 0
    everything = np.ones(len(scored.counts), bool)

    slices = {ALL_MENTIONS: everything, **bands, "unif_NS_all": is_ambiguous}
    for band, code in BAND_CODES.items():
        slices[f"unif_NS_{code}"] = is_ambiguous & bands[band]
    for band in ("torso", "tail", "toes"):
        slices[f"not_most_popular_{band}"] = is_unpopular & bands[band]

    slices["unif_all"] = everything
    for band, code in BAND_CODES.items():
        slices[f"unif_{code}"] = bands[band]
    return slices


def rename_line_slice(name: str) -> str:
    """Returns the reported name of a slice of the lines, which differs from all built-in ones."""
    return f"{name}{LINE_SUFFIX}" if name in BUILT_IN_SLICES else name


def is_reported(name: str, selection: Collection[str] | None) -> bool:
    """Returns whether evaluations report a slice.

    Args:
        selection: Names of selected slices; None: all except `REPEATED_SLICES`.
    """
    if selection is None:
        return name not in REPEATED_SLICES
    return name == ALL_MENTIONS or name in selection or name.removesuffix(LINE_SUFFIX) in selection


def select_slices(
    scored: Scored, selection: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Marks the mentions of each reported slice, bool [mentions]; see `is_reported`."""
    slices = find_built_in_slices(scored) | dict(scored.line_slices)
    return {name: members for name, members in slices.items() if is_reported(name, selection)}


def mark_line_slices(names: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Marks the mentions of each slice of the lines, bool [mentions] by reported name.

    Args:
        names: The slices of each mention.
    """
    slices = {}
    for name in sorted(set[str]().union(*names)):
        members = [name in mention_names for mention_names in names]
        slices[rename_line_slice(name)] = np.array(members)
    return slices


def rank_mentions(scored: Scored, members: np.ndarray) -> RankedMentions:
    """Returns the ranks and losses of selected mentions.

    Args:
        members: bool [mentions], whether the mention is selected.
    """
    return RankedMentions(
        scored.rank[members], scored.popular_is_right[members], scored.loss[members]
    )


def compute_metrics(scored: Scored, members: np.ndarray) -> dict[str, float]:
    """Computes the metrics of a slice, and of its mentions whose entity is a candidate.

    Args:
        members: bool [mentions]: the mentions of the slice.
    """
    in_candidates = members & (scored.gold_position >= 0)

    metrics: dict[str, float] = {}
    for suffix, mentions in (("", members), (IN_CANDIDATES, in_candidates)):
        ranked = rank_mentions(scored, mentions)
        for name, metric in SLICE_METRICS.items():
            metrics[f"{name}{suffix}"] = metric.compute(ranked)
    return metrics


@dataclass(frozen=True)
class SliceResult:
    """The result on one slice."""

    name: str
    documents: int  # number of documents with a mention in the slice
    metrics: dict[str, float]  # of the model; see `compute_metrics`
    accuracy: dict[str, Estimate]  # by system
    difference: dict[str, Estimate]  # accuracy of the model minus the accuracy of each other system


@dataclass(frozen=True)
class Results:
    """The result on a split."""

    source: str  # name of the file
    documents: int
    systems: list[str]  # the model first
    slices: list[SliceResult]  # nonempty slices
    by_count: list[SliceResult]  # bins of training counts; see `bin_by_count`
    notes: list[str]  # facts that qualify the scores, such as sentences that were trained on


def compute_results(
    scored: Scored,
    others: Mapping[str, np.ndarray],
    *,
    source: str,
    chosen: Collection[str] | None,
    notes: Sequence[str] = (),
    resamples: int,
    seed: int,
) -> Results:
    """Compares the model with the most popular candidate and other systems.

    Args:
        others: Whether each other system is right, bool [mentions] by name.
        source: The file of the mentions.
        chosen: The slices to report; None: all.
        notes: Facts that qualify the scores.
    """
    _, documents = np.unique(scored.documents, return_inverse=True)
    comparison = _Comparison(
        scored=scored,
        is_right={MODEL: scored.is_right, POPULAR: scored.popular_is_right, **others},
        documents=documents,
        resamples=resamples,
        seed=seed,
    )

    slices = select_slices(scored, chosen)
    bins = bin_by_count(scored.counts)
    return Results(
        source=source,
        documents=int(documents.max()) + 1,
        systems=[*comparison.is_right],
        slices=[
            comparison.score_slice(name, members)
            for name, members in slices.items()
            if members.any()
        ],
        by_count=[comparison.score_slice(name, members) for name, members in bins.items()],
        notes=[*notes],
    )


@dataclass(frozen=True)
class _Comparison:
    """Compares the model with other systems on slices of the same mentions.

    Attributes:
        is_right: Whether each system is right, bool [mentions] by name; the model is first.
        documents: Index of the document of each mention, int64 [mentions].
        resamples: Number of bootstrap resamples of the documents.
    """

    scored: Scored
    is_right: Mapping[str, np.ndarray]
    documents: np.ndarray
    resamples: int
    seed: int

    def score_slice(self, name: str, members: np.ndarray) -> SliceResult:
        """Scores each system on a slice, and the gain of the model over each other system.

        Args:
            members: bool [mentions], at least one.
        """
        names = [*self.is_right]
        rights = [right & members for right in self.is_right.values()]
        gains = [rights[0].astype(float) - other for other in rights[1:]]
        sums = np.array([np.bincount(self.documents, values) for values in [*rights, *gains]])
        totals = np.bincount(self.documents, members.astype(float))

        intervals = compute_bootstrap_intervals(
            sums,
            np.tile(totals, (len(sums), 1)),
            resamples=self.resamples,
            seed=self.seed,
        )
        estimates = [
            Estimate(float(total) / int(members.sum()), interval)
            for total, interval in zip(sums.sum(1), intervals, strict=True)
        ]
        return SliceResult(
            name=name,
            documents=int((totals > 0).sum()),
            metrics=compute_metrics(self.scored, members),
            accuracy=dict(zip(names, estimates[: len(names)], strict=True)),
            difference=dict(zip(names[1:], estimates[len(names) :], strict=True)),
        )


def bin_by_count(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Divides mentions into bins of training counts; empty bins are omitted.

    Returns:
        bool [mentions] by the name of the bin.
    """
    bins = {}
    for low, next_low in zip(COUNT_BINS, [*COUNT_BINS[1:], None], strict=True):
        if next_low is None:
            name = f"{low - 1:,}+"
            members = counts >= low
        else:
            name = f"{low:,}" if next_low == low + 1 else f"{low:,}–{next_low - 1:,}"
            members = (counts >= low) & (counts < next_low)
        if members.any():
            bins[name] = members
    return bins


def report_results(
    results: Results,
    mentions: Iterable[dict[str, Any]],
    folder: Path,
    facts: Mapping[str, str],
    detection: Mapping[str, DetectionResult] | None = None,
) -> None:
    """Writes the report and the records of the mentions to a folder, and prints the report.

    Args:
        mentions: Records from `build_mention_records`.
        facts: Further facts about the evaluation for the page, by name.
        detection: The results of the detection of mentions, by system, if they were measured.
    """
    tables = make_tables(results)
    sentences = summarize_results(results)
    count = results.slices[0].metrics["mentions"]
    values = asdict(results)
    sections = [Section(tables=tables, plots={PLOT_NAME: partial(plot_accuracy_by_count, results)})]
    if detection:
        values["mention_detection"] = {name: asdict(result) for name, result in detection.items()}
        sections.append(make_detection_section(detection))
    page = Page(
        title=f"Disambiguation of {results.source}",
        answers=sentences,
        facts={
            **facts,
            "sentences": results.source,
            "mentions": f"{count:,.0f} in {results.documents:,} documents",
        },
        sections=sections,
        commands=describe_command(),
    )

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / MENTIONS_FILE, "wb") as file:
        file.writelines(map(encode_json_line, mentions))
    files = write_report(page, values, folder, other_files=[MENTIONS_FILE])
    printed = [tables[0], *(table for section in sections[1:] for table in section.tables)]
    print_report(printed, sentences, files)


def build_mention_records(
    scored: Scored, table: EntityTable, others: Mapping[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Yields a record for each mention: the model's answer, and whether each system is right."""
    is_right = {MODEL: scored.is_right, POPULAR: scored.popular_is_right, **others}
    answers = zip(scored.aliases.tolist(), scored.answers.tolist(), strict=True)
    for number, (alias, answer) in enumerate(answers):
        candidates, _ = table.candidates(alias)
        most_popular = candidates[:1].tolist()
        gold = [entity for entity in scored.gold[number].tolist() if entity >= 0]
        yield {
            "sent_idx_unq": int(scored.sentences[number]),
            "mention": int(scored.positions[number]),
            "alias": table.aliases[alias],
            "gold": [table.ids[entity] for entity in gold],
            "answer": None if answer < 0 else table.ids[answer],
            "score": None if answer < 0 else round(float(scored.shares[number]), 4),
            "gold_rank": int(scored.rank[number]),
            "most_popular": table.ids[most_popular[0]] if most_popular else None,
            "training_count": int(scored.counts[number]),
            "right": {name: bool(right[number]) for name, right in is_right.items()},
        }


def summarize_results(results: Results) -> list[str]:
    """Describes the accuracy of the model and of other systems on all mentions, in sentences."""
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
            f"{format_points(gain.value)} points (95% interval {format_points(gain.low)} to "
            f"{format_points(gain.high)}{distinct})."
        )
    notes = [f"{note}." for note in results.notes]
    return [*sentences, *notes, *warn_of_rough_intervals(results.documents, "documents")]


def make_tables(results: Results) -> list[Table]:
    """Builds all tables of a report."""
    return [
        _make_accuracy_table("Accuracy by slice", "slice", results.systems, results.slices),
        _make_in_candidates_table(results.slices),
        _make_accuracy_table(
            "Accuracy by training count", "count", results.systems, results.by_count
        ),
    ]


def _make_in_candidates_table(slices: Sequence[SliceResult]) -> Table:
    rows: list[list[Cell]] = []
    for result in slices:
        values = [result.metrics[f"{name}{IN_CANDIDATES}"] for name in SLICE_METRICS]
        rows.append([result.name, *values])

    columns = [Column("slice")]
    columns += [Column(metric.label, metric.format) for metric in SLICE_METRICS.values()]
    title = "Mentions whose entity is a candidate"
    return Table(title, "Percentages of these mentions.", columns, rows)


def _make_accuracy_table(
    title: str, head: str, systems: Sequence[str], slices: Sequence[SliceResult]
) -> Table:
    rows: list[list[Cell]] = []
    for result in slices:
        accuracies = [result.accuracy[system] for system in systems]
        gains = [result.difference[system] for system in systems[1:]]
        top5 = result.metrics["top5"]
        rows.append([result.name, result.metrics["mentions"], *accuracies, *gains, top5])

    mentions, accuracy, top = METRICS["mentions"], METRICS["accuracy"], METRICS["top5"]
    columns = [
        Column(head),
        Column(mentions.label, mentions.format),
        *(Column(system, accuracy.format) for system in systems),
        *(Column(f"gain over {system}", accuracy.format_difference) for system in systems[1:]),
        Column(top.label, top.format),
    ]
    note = (
        "Percentages of the mentions; in brackets: 95% bootstrap intervals over documents. Gain: "
        "the accuracy of the model minus that of the other system, on the same resamples. Top 5: "
        "the entity is among the five best candidates of the model."
    )
    return Table(title, note, columns, rows)


@figures.style_figure
def plot_accuracy_by_count(results: Results) -> Figure:
    """Plots the accuracy of each system by training count, with 95% intervals."""
    figure, (axes,) = figures.create_figure(4.4)
    positions = np.arange(len(results.by_count))
    other_count = len(results.systems) - 1
    other_looks = [choose_series_style(number + 2) for number in range(other_count)]
    looks = [SeriesStyle(SERIES[1], "o"), *other_looks]

    for number, (system, style) in enumerate(zip(results.systems, looks, strict=True)):
        estimates = [result.accuracy[system] for result in results.by_count]
        values = np.array([estimate.value for estimate in estimates])
        low = np.array([estimate.low for estimate in estimates])
        high = np.array([estimate.high for estimate in estimates])
        with figures.draw_series(axes, system):
            axes.errorbar(
                positions + 0.1 * (number - other_count / 2),  # centered on the position
                100 * values,
                yerr=100 * np.array([np.maximum(values - low, 0), np.maximum(high - values, 0)]),
                marker=style.marker,
                linestyle=style.line,
                color=style.color,
                markersize=5,
                linewidth=2 if system == MODEL else 1.2,
            )

    names = [f"{result.name}\n({result.metrics['mentions']:,.0f})" for result in results.by_count]
    axes.set_xticks(positions, names)
    axes.set_xlabel("mentions of the entity in the training data (held-out mentions)")
    axes.set_title("accuracy in %, with 95% intervals", loc="left", color=INK)
    axes.grid(axis="y")
    figures.add_legend_below(figure, zip(results.systems, looks, strict=True))
    return figure
