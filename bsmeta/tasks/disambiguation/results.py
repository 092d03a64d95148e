"""The result on held-out mentions: each slice, the model beside its baselines, with intervals.

Intervals are 95% bootstrap intervals over documents: mentions of one document are alike. The
systems are compared on the same resamples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bsmeta.evaluation.statistics import Interval, bootstrap
from bsmeta.tasks.disambiguation.slices import Scored, metrics_of, slices_of

MODEL, POPULAR = "model", "most popular candidate"

COUNT_BINS = (0, 1, 2, 4, 11, 31, 101, 301, 1001)
"""The lowest training count of each bin of the plot."""


@dataclass(frozen=True)
class Share:
    """A share of right mentions, or a difference of two, with its interval over documents."""

    value: float
    interval: Interval


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
    accuracy: dict[str, Share]
    difference: dict[str, Share]


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
            Share(float(total) / int(members.sum()), interval)
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
