"""What a mention is compared with: its candidates with their priors, and hard negatives.

Hard negatives are the entities whose texts are most similar to that of the mention's entity. As in
BLINK (Wu et al. 2020), but by the encoder before training, so that they are found once and every
step can be repeated exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from bsmeta.core.files import replacing, unwritable
from bsmeta.core.progress import exclusively, report_progress
from bsmeta.tasks.disambiguation.embeddings import FrozenVectors
from bsmeta.tasks.disambiguation.entities import EntityTable

FLOOR = 0.1
"""Added to the score of every candidate before its share is computed, so that none is 0."""
_NONE = (np.empty(0, np.int32), np.empty(0, np.float32))
QUERIES_AT_ONCE, _BLOCK = 1024, 1 << 16  # entities that are compared at a time, and with how many


@dataclass(frozen=True)
class Candidates:
    """The candidates of some mentions.

    Attributes:
        entities: int64 [mentions, K], the most popular first; -1 where there are no more.
        prior: float32 [mentions, K, 2]: the logarithm of each candidate's share of the scores, and
            minus that of its rank by score (from 1).
        floor: float32 [mentions, 2]: the same of an entity that is no candidate.
        is_gold: bool [mentions, K]: whether the mention means it.
    """

    entities: np.ndarray
    prior: np.ndarray
    floor: np.ndarray
    is_gold: np.ndarray

    @property
    def place(self) -> np.ndarray:
        """int64 [mentions]: the place of the most popular gold entity; -1 if there is none."""
        return np.where(self.is_gold.any(1), self.is_gold.argmax(1), -1)

    def first(self, most: int) -> Candidates:
        """Limits the candidates of each mention to its entities and the most popular others."""
        if self.entities.shape[1] <= most:
            return self
        order = np.argsort(~self.is_gold, axis=1, kind="stable")[:, :most]  # gold before the others
        kept = np.sort(order, axis=1)
        rows = np.arange(len(kept))[:, None]
        return Candidates(
            self.entities[rows, kept], self.prior[rows, kept], self.floor, self.is_gold[rows, kept]
        )


class DocumentCounts:
    """How often each document of the training data uses an alias for an entity.

    Args:
        documents, aliases, entities: int64 [mentions] of the training data.
    """

    def __init__(self, documents: np.ndarray, aliases: np.ndarray, entities: np.ndarray) -> None:
        self._keys, self._counts = np.unique(_key(documents, aliases, entities), return_counts=True)

    def of(self, documents: np.ndarray, aliases: np.ndarray, entities: np.ndarray) -> np.ndarray:
        """int64: the counts of some triples (arrays that broadcast)."""
        keys = _key(documents, aliases, entities)
        places = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._counts[places], 0)


def _key(documents: np.ndarray, aliases: np.ndarray, entities: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each triple (multiplicative, with odd constants)."""
    mixed = documents.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ aliases.astype(np.uint64)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    return (mixed ^ entities.astype(np.uint64)) * np.uint64(0x165667B19E3779F9)


def candidates_of(
    table: EntityTable,
    aliases: Sequence[int] | np.ndarray,
    golds: np.ndarray,
    documents: np.ndarray | None = None,
    counts: DocumentCounts | None = None,
) -> Candidates:
    """The candidates of mentions.

    Args:
        table: The entities.
        aliases: The number of each mention's alias; -1 has no candidates.
        golds: int64 [mentions, most of one]: the entities of each mention; -1 for no more. (NIL is
            never a candidate.)
        documents: The document of each mention.
        counts: If given, the mentions of that document are subtracted from the scores, as if it
            were not part of the training data that they count.
    """
    lists = [table.candidates(int(alias)) if alias >= 0 else _NONE for alias in aliases]
    longest = max((len(found) for found, _ in lists), default=0)
    entities = np.full((len(lists), max(longest, 1)), -1, np.int64)
    scores = np.zeros(entities.shape, np.float64)
    for row, (found, own) in enumerate(lists):
        entities[row, : len(found)] = found
        scores[row, : len(found)] = own
    is_candidate = entities >= 0
    if counts is not None:
        assert documents is not None
        numbers = np.asarray(aliases)[:, None]
        scores -= counts.of(documents[:, None], numbers, entities) * is_candidate
        scores = scores.clip(min=0)
    totals = scores.sum(1) + FLOOR * is_candidate.sum(1)
    log_totals = np.log(np.maximum(totals, FLOOR))
    # Without the own document, another candidate may come first; of equal scores, the first one.
    order = np.argsort(np.where(is_candidate, -scores, np.inf), axis=1, kind="stable")
    ranks = np.argsort(order, axis=1) + 1
    prior = np.stack([np.log(scores + FLOOR) - log_totals[:, None], -np.log(ranks)], axis=2)
    floor = np.stack([np.log(FLOOR) - log_totals, -np.log(is_candidate.sum(1) + 1)], axis=1)
    is_gold = is_candidate & (entities[:, :, None] == golds[:, None, :]).any(2)
    return Candidates(entities, prior.astype(np.float32), floor.astype(np.float32), is_gold)


def training_counts(entities: np.ndarray, total: int) -> np.ndarray:
    """int64 [total]: how many training mentions, weak labels included, have each entity."""
    return np.bincount(entities, minlength=total)


def percentiles(counts: np.ndarray) -> np.ndarray:
    """float64: how popular each entity is, from 0 (never or most rarely seen) to 1.

    The share of the entities in the training data that have a smaller count.
    """
    seen = np.sort(counts[counts > 0])
    return np.searchsorted(seen, counts, side="left") / max(len(seen) - 1, 1)


class Neighbors:
    """The nearest entities of some entities.

    Args:
        vectors: The vectors of all entities before training.
        entities: int64, distinct and ascending: the entities of the training mentions.
        total: The number of entities of the table.
        count: How many neighbors each has.
        folder: Where they are kept.
    """

    def __init__(
        self, vectors: FrozenVectors, entities: np.ndarray, total: int, count: int, folder: Path
    ) -> None:
        self._entities = entities
        file = folder / f"{vectors.name_of('neighbors', entities.tolist(), total, count)}.npy"
        folder.mkdir(parents=True, exist_ok=True)
        with exclusively(f"{file}.lock", "the nearest entities of each entity"):
            if not file.exists():
                found = _nearest(vectors, entities, total, count)
                try:
                    with replacing(file) as part:
                        np.save(part, found)
                except OSError as error:
                    raise unwritable(file, error) from error
        self._found = np.load(file, mmap_mode="r")

    def __call__(self, entities: np.ndarray) -> np.ndarray:
        """int64 [entities, count]; -1 for an entity that no training mention has."""
        places = np.searchsorted(self._entities, entities).clip(max=len(self._entities) - 1)
        is_known = (self._entities[places] == entities)[:, None]
        return np.where(is_known, self._found[places], -1)

    def distinct(self) -> np.ndarray:
        """int64: all of them, each once, ascending."""
        found = np.unique(self._found)
        return found[found >= 0]


def _nearest(vectors: FrozenVectors, entities: np.ndarray, total: int, count: int) -> np.ndarray:
    """int64 [entities, count]: by falling cosine, without the entity itself and NIL; -1: none."""
    found = np.full((len(entities), count), -1, np.int64)
    blocks = [np.arange(first, min(first + _BLOCK, total)) for first in range(1, total, _BLOCK)]
    for first in range(0, len(entities), QUERIES_AT_ONCE):
        asked = entities[first : first + QUERIES_AT_ONCE]
        own = _directions(vectors, asked)
        best = torch.full((len(asked), count), -2.0)
        chosen = torch.full((len(asked), count), -1, dtype=torch.int64)
        for block in blocks:
            cosines = own @ _directions(vectors, block).T
            cosines[torch.from_numpy(asked[:, None] == block[None, :])] = -2.0
            numbers = torch.from_numpy(block).expand(len(asked), -1)
            best, places = torch.cat([best, cosines], 1).topk(count, dim=1)
            report_progress()
            chosen = torch.cat([chosen, numbers], 1).gather(1, places)
        found[first : first + QUERIES_AT_ONCE] = torch.where(best > -2.0, chosen, -1).numpy()
    return found


def _directions(vectors: FrozenVectors, entities: np.ndarray) -> torch.Tensor:
    whole = np.zeros(len(entities), bool)
    return functional.normalize(torch.from_numpy(vectors(entities, whole)), dim=1)
