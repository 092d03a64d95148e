"""Sampling: which metadata types a document is given.

Second step of the flow, between decoding and rendering. All of its choices come from the
generator that it is given (one for each document), none from the type's records.
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
        config: The chances.
    """

    def __init__(self, config: MetadataConfig) -> None:
        self._probability = config.metadata_probability
        self._draws_some = config.random_sample_metadata
        self._chances = [  # looked up once: drawing is a part of the stream's time
            (key, type_of(key).always_present, _dropout(key, config), weight_of(key, config))
            for key in config.metadata_list
        ]

    def draw(self, document: Document, rng: random.Random) -> tuple[str, ...]:
        """The types that a document is rendered with.

        With `metadata_probability` the document is given metadata at all. Then `metadata_dropout`
        and the type's own sample rate each leave a type out by chance; of the n types that are
        left, k (uniform in 1..n) are drawn without replacement, each draw in proportion to
        `random_sample_metadata_weights`.

        Args:
            document: Its types are those it has records of.
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
        # Drawing one after the other by weight is taking the smallest of exponential variables
        # with those rates (Efraimidis and Spirakis 2006).
        arrival = {key: -math.log(1.0 - rng.random()) / weight for key, weight in drawable}
        drawn = frozenset(sorted(arrival, key=arrival.__getitem__)[:count])
        return tuple(key for key, _ in present if key in drawn)


def chances(config: MetadataConfig) -> dict[str, dict[str, float]]:
    """What is configured for each type: its weight in the draw, and its chance to be left out."""
    return {
        key: {"weight": weight_of(key, config), "left_out": _dropout(key, config)}
        for key in config.metadata_list
    }


def weight_of(name: str, config: MetadataConfig) -> float:
    """A type's weight in the draw, given by its key or by the name of its column."""
    weights = config.random_sample_metadata_weights
    names = [name, *type_of(name).columns]
    return next((weights[one] for one in names if one in weights), 1.0)


def _dropout(key: str, config: MetadataConfig) -> float:
    """The chance that a type is left out before the draw."""
    kept = 1.0 - config.metadata_dropout.get(key, 0.0)
    return 1.0 - kept * type_of(key).sample_rate(config)
