"""Sampling: the metadata types that a document gets, and whose values they have.

Second stage of the flow, between decoding and rendering. Every choice of types is drawn from the
generator passed in (one per document); none depends on the content of the records.

Values of other documents show what the content of metadata is worth. A shuffled value is another
document's (and may happen to be the same); a wrong value is another document's and differs from
this document's; a matched value is a wrong value of similar length, so that it takes up a similar
share of the context. A model can be trained on shuffled values (`metadata_values`), but not on the
others: where a type has few values, a wrong one gives away the right one. Constant and random
tokens replace the tokens of a prefix one by one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash

from bsmeta.config.metadata import MetadataConfig
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import Document, Record


class TypeSampler:
    """Draws the metadata types of documents."""

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


OWN, SHUFFLED, WRONG, MATCHED = "own", "shuffled", "wrong", "matched"
CONSTANT, RANDOM = "constant", "random"


class Documents(Protocol):
    """Documents by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Document: ...


class Donors:
    """Chooses the document (the donor) that each metadata type of a document is taken from.

    The documents form a random cycle; each document takes each type from the next document in the
    cycle that has it (so if all documents have all types, all values come from one document).

    Args:
        documents: The held-out documents; read once.
    """

    def __init__(self, documents: Documents, types: Sequence[str], seed: int) -> None:
        self._documents = documents
        self._types = tuple(types)
        self._order = np.random.default_rng(seed).permutation(len(documents))
        self._place = np.argsort(self._order)
        self._digests = np.zeros((len(self._types), len(documents)), dtype=np.uint64)
        self._lengths = np.zeros((len(self._types), len(documents)), dtype=np.int64)
        for index in range(len(documents)):
            document = documents[index]
            for row, key in enumerate(self._types):
                records = document.records(key)
                self._digests[row, index] = _digest(records)
                self._lengths[row, index] = sum(len(str(record.value)) for record in records)

    def with_values(self, index: int, document: Document, values: str) -> Document:
        """The document with its own, shuffled, wrong or matched values.

        A type for which no other document can be the donor is left out.
        """
        if values == OWN:
            return document
        records = {}
        for row, key in enumerate(self._types):
            if not document.has(key):
                continue
            donor = self._donor(row, index, values)
            if donor is not None:
                lent = self._documents[donor].records(key)
                records[key] = _lend(document.records(key), lent)
        return Document(document.text, document.url, {k: v for k, v in records.items() if v})

    def _donor(self, row: int, index: int, values: str) -> int | None:
        place = int(self._place[index])
        circle = np.roll(self._order, -place)[1:]  # starts at the next document
        digests = self._digests[row]
        usable = digests[circle] != 0
        if values != SHUFFLED:
            usable &= digests[circle] != digests[index]
        donors = circle[usable]
        if not len(donors):
            return None
        if values == MATCHED:
            distances = np.abs(self._lengths[row, donors] - self._lengths[row, index])
            return int(donors[np.argmin(distances)])
        return int(donors[0])


def _digest(records: Sequence[Record]) -> int:
    """A hash of the values of a type; 0 if there are none."""
    if not records:
        return 0
    values: list[Any] = [(record.value, record.html_attrs) for record in records]
    return xxhash.xxh3_64_intdigest(msgspec.json.encode(values)) or 1


def _lend(own: Sequence[Record], lent: Sequence[Record]) -> list[Record]:
    """The donor's global records, and its local values, in turn, at the document's own spans."""
    local = [record for record in lent if record.is_local()]
    records = [record for record in lent if not record.is_local()]
    for number, record in enumerate(other for other in own if other.is_local() and local):
        source = local[number % len(local)]
        records.append(
            msgspec.structs.replace(record, value=source.value, html_attrs=source.html_attrs)
        )
    return records


WORDS = [
    "about", "after", "all", "also", "and", "any", "are", "because", "been", "before", "but",
    "can", "could", "each", "even", "first", "for", "from", "good", "has", "have", "how", "into",
    "its", "just", "like", "made", "make", "many", "may", "more", "most", "much", "must", "never",
    "new", "not", "now", "off", "one", "only", "other", "our", "out", "over", "own", "same",
    "see", "she", "should", "some", "such", "take", "than", "that", "the", "their", "them",
    "then", "there", "these", "they", "this", "those", "time", "two", "under", "until", "upon",
    "very", "was", "way", "well", "were", "what", "when", "where", "which", "while", "who",
    "will", "with", "would", "year", "you",
]  # fmt: skip
"""Frequent English words, which are in the vocabulary of any English tokenizer."""
