"""Slices of the held-out mentions, as in seed documents 000 and 001, and the metrics of each.

Bands follow from how often the training data has the gold entity: toes 0 (TS); tail up to 10,
toes included (TL); torso 11 to 1,000 (TO); head more (HD). `unif_NS_*` are the mentions with more
than one candidate, `not_most_popular_*` those whose entity is not the first candidate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bsmeta.config.checks.problems import nearest
from bsmeta.config.errors import ConfigurationError

ALL = "final_loss"
"""The slice of every gold mention; its metrics have no prefix."""

BUILT_IN = (
    ALL,
    "unif_NS_all", "unif_NS_HD", "unif_NS_TO", "unif_NS_TL", "unif_NS_TS",
    "not_most_popular_torso", "not_most_popular_tail", "not_most_popular_toes",
)  # fmt: skip
TAIL_MOST, TORSO_MOST = 10, 1000
TOP = 5


@dataclass(frozen=True)
class Scored:
    """The gold mentions of a split, scored.

    Attributes:
        rank: int64 [mentions]: how many candidates score higher than the gold entity; -1 if the
            gold entity is no candidate, and NIL no possible answer.
        place: int64 [mentions]: the gold entity's place among the candidates by popularity; -1 if
            it is none of them.
        candidates: int64 [mentions]: the number of candidates.
        counts: int64 [mentions]: how often the training data has the gold entity.
        documents: int64 [mentions].
        own: The slices that the lines define: bool [mentions] by name.
        loss: float64 [mentions]: minus the log-probability of the gold entity among the mention's
            own candidates; NaN if it is none of them.
    """

    rank: np.ndarray
    place: np.ndarray
    candidates: np.ndarray
    counts: np.ndarray
    documents: np.ndarray
    own: Mapping[str, np.ndarray]
    loss: np.ndarray

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


def slices_of(scored: Scored, chosen: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The mentions of each slice, bool [mentions], by name.

    Args:
        scored: The mentions.
        chosen: The slices that are wanted; None: all.

    Raises:
        ConfigurationError: If a wanted slice does not exist.
    """
    of_band = bands(scored.counts)
    is_ambiguous, is_unpopular = scored.candidates > 1, scored.place != 0
    short = {"HD": "head", "TO": "torso", "TL": "tail", "TS": "toes"}
    found = {
        ALL: np.ones(len(scored.rank), bool),
        **of_band,
        "unif_NS_all": is_ambiguous,
        **{f"unif_NS_{name}": is_ambiguous & of_band[band] for name, band in short.items()},
        **{
            f"not_most_popular_{band}": is_unpopular & of_band[band]
            for band in ("torso", "tail", "toes")
        },
        **scored.own,
    }
    if chosen is None:
        return found
    for name in chosen:
        if name not in found:
            raise ConfigurationError(
                f"eval_slices: there is no slice {name!r}{nearest(name, [*found])}; expected some "
                f"of {', '.join(found)}"
            )
    return {name: members for name, members in found.items() if name in {ALL, *chosen}}


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
    return {
        "mentions": float(members.sum()),
        "accuracy": _mean(rank == 0),
        "top5": _mean((rank >= 0) & (rank < TOP)),
        "popular_accuracy": _mean(scored.popular_is_right[members]),
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def own_slices(names: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """The slices that lines define: bool [mentions] by name.

    Args:
        names: The slices of each mention.
    """
    return {
        name: np.array([name in own for own in names])
        for name in sorted({name for own in names for name in own})
    }
