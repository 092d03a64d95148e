"""Samples the metadata types that a document is rendered with.

Second stage of the flow (line -> document -> sampled types -> rendered text). Every choice is drawn
from the generator passed in (one per document), and none depends on the content of the records.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import find_type


class TypeChances(NamedTuple):
    """The probabilities with which a metadata type is sampled.

    Attributes:
        dropout: The probability that the type is dropped before the draw.
        weight: The weight of the type in the draw.
    """

    dropout: float
    weight: float


class TypeSampler:
    """Draws the metadata types of documents."""

    def __init__(self, config: MetadataConfig) -> None:
        self._probability = config.metadata_probability
        self._draws_subset = config.random_sample_metadata

        # Both are computed once, because sampling runs for every document.
        self._chances = compute_chances(config)
        self._always_present = frozenset(
            key for key in config.metadata_list if find_type(key).always_present
        )

    def draw(self, document: Document, rng: random.Random) -> tuple[str, ...]:
        """Draws the types that a document is rendered with.

        The document gets any metadata with probability `metadata_probability`. Then
        `metadata_dropout` and the type's own sample rate each drop types at random; of the n
        remaining types, k (uniform in 1..n) are drawn without replacement, with probability
        proportional to `random_sample_metadata_weights`.

        Args:
            document: The candidates are the types of its records.

        Returns:
            Keys in the order of `metadata_list`; `()` for none.
        """
        if rng.random() >= self._probability:
            return ()

        weights: dict[str, float] = {}  # of the types that are not dropped
        for key, chances in self._chances.items():
            is_present = key in self._always_present or document.has(key)
            if is_present and rng.random() >= chances.dropout:
                weights[key] = chances.weight

        if not self._draws_subset:
            return tuple(weights)
        return _draw_subset(weights, rng)


def _draw_subset(weights: dict[str, float], rng: random.Random) -> tuple[str, ...]:
    """Draws k of n types without replacement, k being uniform in 1..n, in their order.

    Args:
        weights: The weight of each type; a type of weight 0 is never drawn.
    """
    positive_weights = {key: weight for key, weight in weights.items() if weight > 0}
    if not positive_weights:
        return ()
    count = rng.randint(1, len(positive_weights))

    # Sequential weighted draws without replacement are equivalent to taking the smallest of
    # exponential variables with those rates (Efraimidis and Spirakis 2006).
    arrival_times = {
        key: -math.log(1.0 - rng.random()) / weight for key, weight in positive_weights.items()
    }
    earliest = sorted(arrival_times, key=arrival_times.__getitem__)[:count]
    return tuple(key for key in weights if key in earliest)


def compute_chances(config: MetadataConfig) -> dict[str, TypeChances]:
    """Returns the sampling chances of each type, in the order of `metadata_list`."""
    chances: dict[str, TypeChances] = {}
    for key in config.metadata_list:
        metadata_type = find_type(key)
        chances[key] = TypeChances(
            dropout=metadata_type.compute_dropout(key, config),
            weight=metadata_type.find_weight(key, config),
        )
    return chances
