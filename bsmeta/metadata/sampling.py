"""Sampling: which metadata types a document is given.

Second step of the flow, between decoding and rendering. All of its choices come from the
generator that it is given (one for each document), none from the type's records.
"""

from __future__ import annotations

import math
import random

from bsmeta.config.metadata import COLUMN_KEYS, MetadataConfig
from bsmeta.metadata.processors import PROCESSORS
from bsmeta.metadata.records import Document


def choose_types(document: Document, config: MetadataConfig, rng: random.Random) -> tuple[str, ...]:
    """Draw the types that a document is rendered with.

    With `metadata_probability` the document is given metadata at all. Then `metadata_dropout`
    and `html_overall_sample_rate` each leave a type out by chance; of the n types that are left,
    k (uniform in 1..n) are drawn without replacement, each draw in proportion to
    `random_sample_metadata_weights`.

    Args:
        document: Its types are those it has records of.
        config: The chances.
        rng: The document's generator.

    Returns:
        Keys in the order of `metadata_list`; `()` for none.
    """
    if rng.random() >= config.metadata_probability:
        return ()
    present = [key for key in config.metadata_list if _has(document, key)]
    present = [key for key in present if rng.random() >= _dropout(key, config)]
    if not config.random_sample_metadata:
        return tuple(present)
    weights = {key: _weight(key, config) for key in present}
    drawable = [key for key in present if weights[key] > 0]
    if not drawable:
        return ()
    count = rng.randint(1, len(drawable))
    # Drawing one after the other by weight is taking the smallest of exponential variables
    # with those rates (Efraimidis and Spirakis 2006).
    arrival = {key: -math.log(1.0 - rng.random()) / weights[key] for key in drawable}
    drawn = frozenset(sorted(drawable, key=arrival.__getitem__)[:count])
    return tuple(key for key in present if key in drawn)


def chances(config: MetadataConfig) -> dict[str, dict[str, float]]:
    """What is configured for each type: its weight in the draw, and its chance to be left out."""
    return {
        key: {"weight": _weight(key, config), "left_out": _dropout(key, config)}
        for key in config.metadata_list
    }


def _has(document: Document, key: str) -> bool:
    metadata_type = PROCESSORS.get(key)
    return document.has(key) or (metadata_type is not None and metadata_type.always_present)


def _dropout(key: str, config: MetadataConfig) -> float:
    """The chance that a type is left out before the draw."""
    kept = 1.0 - config.metadata_dropout.get(key, 0.0)
    if key == "html":
        kept *= config.html_overall_sample_rate
    return 1.0 - kept


def _weight(key: str, config: MetadataConfig) -> float:
    """A type's weight, given by its key or by the name of its column."""
    weights = config.random_sample_metadata_weights
    names = [key, *(column for column, column_key in COLUMN_KEYS.items() if column_key == key)]
    return next((weights[name] for name in names if name in weights), 1.0)
