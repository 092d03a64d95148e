"""Sampling: which metadata types a document gets.

Second stage of the flow, between decoding and rendering. Every choice is drawn from the generator
passed in (one per document); none depends on the content of the records.
"""

from __future__ import annotations

import math
import random

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import Document


class TypeSampler:
    """Draws the metadata types of documents.

    Args:
        config: The probabilities.
    """

    def __init__(self, config: MetadataConfig) -> None:
        self._probability = config.metadata_probability
        self._draws_some = config.random_sample_metadata
        self._chances = [  # computed once: sampling runs for every document
            (key, type_of(key).always_present, _dropout(key, config), weight_of(key, config))
            for key in config.metadata_list
        ]

    def draw(self, document: Document, rng: random.Random) -> tuple[str, ...]:
        """The types that a document is rendered with.

        The document gets any metadata with probability `metadata_probability`. Then
        `metadata_dropout` and the type's own sample rate each drop types at random; of the n
        remaining types, k (uniform in 1..n) are drawn without replacement, with probability
        proportional to `random_sample_metadata_weights`.

        Args:
            document: Its candidate types are those that it has records of.
            rng: The document's generator.

        Returns:
            Keys in the order of `metadata_list`; `()` for none.
        """
        if rng.random() >= self._probability:
            return ()
        present = [
            (key, weight)
            for key, always, dropout, weight in self._chances
            if (always or document.has(key)) and rng.random() >= dropout
        ]
        if not self._draws_some:
            return tuple(key for key, _ in present)
        drawable = [(key, weight) for key, weight in present if weight > 0]
        if not drawable:
            return ()
        count = rng.randint(1, len(drawable))
        # Sequential weighted draws without replacement are equivalent to taking the smallest of
        # exponential variables with those rates (Efraimidis and Spirakis 2006).
        arrival = {key: -math.log(1.0 - rng.random()) / weight for key, weight in drawable}
        drawn = frozenset(sorted(arrival, key=arrival.__getitem__)[:count])
        return tuple(key for key, _ in present if key in drawn)


def chances(config: MetadataConfig) -> dict[str, dict[str, float]]:
    """The sampling weight of each type and its probability of being left out, as configured."""
    return {
        key: {"weight": weight_of(key, config), "left_out": _dropout(key, config)}
        for key in config.metadata_list
    }


def weight_of(name: str, config: MetadataConfig) -> float:
    """The sampling weight of a type, configured by its key or by the name of its column."""
    weights = config.random_sample_metadata_weights
    names = [name, *type_of(name).columns]
    return next((weights[name] for name in names if name in weights), 1.0)


def _dropout(key: str, config: MetadataConfig) -> float:
    """The probability that a type is dropped before sampling."""
    kept = 1.0 - config.metadata_dropout.get(key, 0.0)
    return 1.0 - kept * type_of(key).sample_rate(config)
