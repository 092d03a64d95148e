"""Results on held-out mentions, by slice: the model and its baselines, with intervals.

Slices are those of seed documents 000 and 001. Bands follow from how often the training data has
the gold entity: toes 0 (TS); tail up to 10, toes included (TL); torso 11 to 1,000 (TO); head more
(HD). `unif_*` are the mentions of a band, `unif_NS_*` those with more than one candidate,
`not_most_popular_*` those whose entity is not the first candidate.

Intervals are 95% bootstrap intervals over documents: mentions of one document are alike. The
systems are compared on the same resamples.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bsmeta.report.inference import Estimate, bootstrap
from bsmeta.tasks.disambiguation.lines import ALL_MENTIONS

TAIL_MOST, TORSO_MOST = 10, 1000
SHORT = {"HD": "head", "TO": "torso", "TL": "tail", "TS": "toes"}
"""What Bootleg calls the bands in the names of slices."""
TOP = 5


@dataclass(frozen=True)
class Answers:
    """The mentions, and the best candidate of each.

    Attributes:
        sentences, positions: int64 [mentions]: the numbers of the sentence, and of the mention in
            its line.
        aliases: int64 [mentions].
        gold: int64 [mentions, most of one]: the gold entities; -1 for no more.
        entities: int64 [mentions]: the best candidate; -1 if there is none, 0 for NIL.
        shares: float64 [mentions]: its probability among the candidates.
    """

    sentences: np.ndarray
    positions: np.ndarray
    aliases: np.ndarray
    gold: np.ndarray
    entities: np.ndarray
    shares: np.ndarray


@dataclass(frozen=True)
class Scored:
    """The gold mentions of a split, scored. Of several gold entities, the best one counts.

    Attributes:
        rank: int64 [mentions]: how many candidates score higher than the gold entity; -1 if the
            gold entity is no candidate, and NIL no possible answer.
        place: int64 [mentions]: the gold entity's place among the candidates by popularity; -1 if
            it is none of them.
        candidates: int64 [mentions]: the number of candidates.
        counts: int64 [mentions]: how often the training data has the gold entity; of several, the
            most frequent one.
        documents: int64 [mentions].
        own: The slices that the lines define: bool [mentions] by name (`own_slices`).
        loss: float64 [mentions]: minus the log-probability of the gold entities among the mention's
            own candidates; NaN if there is none of them.
        answers: What the model has answered.
    """

    rank: np.ndarray
    place: np.ndarray
    candidates: np.ndarray
    counts: np.ndarray
    documents: np.ndarray
    own: Mapping[str, np.ndarray]
    loss: np.ndarray
    answers: Answers

    @property
    def is_right(self) -> np.ndarray:
        """bool [mentions]: whether the model is right."""
        return self.rank == 0

    @property
    def popular_is_right(self) -> np.ndarray:
        """bool [mentions]: whether the most popular candidate is right."""
        return self.place == 0


def bands(counts: np.ndarray) -> dict[str, np.ndarray]:
    """The mentions of each band, bool [mentions].

    Args:
        counts: int [mentions]: how often the training data has the gold entity.
    """
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
OF_LINES = "_of_lines"
"""Ends the name of a slice that lines define although it is built in."""
QUALITIES = ("accuracy", "top5", "popular_accuracy")
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
    """The mentions of each slice, bool [mentions], by name.

    Args:
        scored: The mentions.
        chosen: The slices that are wanted, if they exist; None: all.
    """
    found = built_in_slices(scored.counts, scored.candidates, scored.place) | dict(scored.own)
    return {name: members for name, members in found.items() if is_reported(name, chosen)}


def metrics_of(scored: Scored, members: np.ndarray) -> dict[str, float]:
    """The metrics of a slice: also those over its mentions whose entity is a candidate.

    Args:
        scored: The mentions.
        members: bool [mentions]: those of the slice.
    """
    in_candidates = members & (scored.place >= 0)
    return {
        **_shares(scored, members),
        **{
            f"{name}_in_candidates": value for name, value in _shares(scored, in_candidates).items()
        },
    }


def _shares(scored: Scored, members: np.ndarray) -> dict[str, float]:
    rank = scored.rank[members]
    shares = (rank == 0, (rank >= 0) & (rank < TOP), scored.popular_is_right[members])
    return {
        "mentions": float(members.sum()),
        **{name: _mean(values) for name, values in zip(QUALITIES, shares, strict=True)},
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def own_slices(names: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """The slices that lines define: bool [mentions] by name.

    Args:
        names: The slices of each mention.
    """
    return {
        name_of_own(name): np.array([name in own for own in names])
        for name in sorted({name for own in names for name in own})
    }


MODEL, POPULAR = "model", "most popular candidate"

COUNT_BINS = (0, 1, 2, 4, 11, 31, 101, 301, 1001)
"""The lowest training count of each bin of the plot."""


@dataclass(frozen=True)
class SliceResult:
    """The result on one slice.

    Attributes:
        name: That of the slice.
        documents: The number of documents with a mention in it.
        metrics: Those of `metrics_of` of the model.
        accuracy: The accuracy of each system.
        difference: The accuracy of the model minus that of each other system.
    """

    name: str
    documents: int
    metrics: dict[str, float]
    accuracy: dict[str, Estimate]
    difference: dict[str, Estimate]


@dataclass(frozen=True)
class Results:
    """The result on a split.

    Attributes:
        source: The file of the mentions.
        documents: The number of its documents.
        systems: The names of the systems, the model first.
        slices: The result on each slice that has mentions.
        by_count: The same for mentions by the training count of their entity.
    """

    source: str
    documents: int
    systems: list[str]
    slices: list[SliceResult]
    by_count: list[SliceResult]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


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

    Args:
        scored: The mentions, scored by the model.
        others: Whether other systems are right, bool [mentions], by their names.
        source: The file of the mentions.
        chosen: The slices that are reported; None: all.
        resamples: Number of bootstrap resamples.
        seed: Their seed.
    """
    is_right = {MODEL: scored.is_right, POPULAR: scored.popular_is_right, **others}
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
        names = [*is_right]
        return SliceResult(
            name,
            int((totals > 0).sum()),
            metrics_of(scored, members),
            dict(zip(names, shares, strict=False)),
            dict(zip(names[1:], shares[len(names) :], strict=True)),
        )

    slices = slices_of(scored, chosen)
    return Results(
        source=source,
        documents=int(documents.max()) + 1,
        systems=[*is_right],
        slices=[result(name, members) for name, members in slices.items() if members.any()],
        by_count=[result(n, members) for n, members in count_bins(scored.counts).items()],
    )


def count_bins(counts: np.ndarray) -> dict[str, np.ndarray]:
    """The mentions by the training count of their entity, bool [mentions]; no empty bin."""
    bins = {}
    for low, after in zip(COUNT_BINS, [*COUNT_BINS[1:], None], strict=True):
        members = counts >= low
        if after is None:
            name = f"{low - 1:,}+"
        else:
            members = members & (counts < after)
            name = f"{low:,}" if after == low + 1 else f"{low:,}–{after - 1:,}"
        if members.any():
            bins[name] = members
    return bins
