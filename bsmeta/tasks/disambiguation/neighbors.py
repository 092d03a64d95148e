"""Hard negatives: the entities whose texts are most similar to that of a mention's entity.

As in BLINK (Wu et al. 2020), but by the encoder before training, so that they are found once and
every step can be repeated exactly.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from bsmeta.core.files import replacing, unwritable
from bsmeta.core.progress import exclusively, report_progress
from bsmeta.tasks.disambiguation.embeddings import FrozenVectors

_ASKED, _BLOCK = 1024, 1 << 16  # entities that are compared at a time, and with how many


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
    for first in range(0, len(entities), _ASKED):
        asked = entities[first : first + _ASKED]
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
        found[first : first + _ASKED] = torch.where(best > -2.0, chosen, -1).numpy()
    return found


def _directions(vectors: FrozenVectors, entities: np.ndarray) -> torch.Tensor:
    whole = np.zeros(len(entities), bool)
    return functional.normalize(torch.from_numpy(vectors(entities, whole)), dim=1)
