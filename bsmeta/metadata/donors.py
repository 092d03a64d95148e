"""Replaces a document's metadata values by those of other documents, its donors.

Values of other documents show the benefit of the content of metadata. A shuffled value is another
document's (and may happen to be the same); a wrong value is another document's and differs from
this document's; a matched value is a wrong value of similar length, so that it takes up a similar
share of the context. A model can be trained on shuffled values (`metadata_values`), but not on the
others: if a type has few values, a wrong one reveals the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash

from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import MATCHED, OWN, SHUFFLED
from bsmeta.metadata.records import Record, select_local_records

_NO_RECORDS = 0
"""The digest of a document without records of a type."""


class Documents(Protocol):
    """A sequence of documents, each of which may be read when it is accessed."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Document: ...


class Donors:
    """Chooses the document (the donor) from which each metadata type of a document is taken.

    The documents form a random cycle; each document takes each type from the next document in the
    cycle that has it (so if all documents have all types, all values come from one document).

    Args:
        documents: All are read when the object is created, donors once more for each use.
        types: The metadata types to replace.
        seed: Seed of the random cycle.
    """

    def __init__(self, documents: Documents, types: Sequence[str], seed: int) -> None:
        self._documents = documents
        self._types = tuple(types)
        self._cycle = np.random.default_rng(seed).permutation(len(documents))
        self._positions = np.argsort(self._cycle)  # the position of each document in the cycle

        # Of the values of each type (row) in each document (column).
        self._digests = np.zeros((len(self._types), len(documents)), dtype=np.uint64)
        self._lengths = np.zeros((len(self._types), len(documents)), dtype=np.int64)
        for index in range(len(documents)):
            document = documents[index]
            for row, key in enumerate(self._types):
                records = document.records(key)
                self._digests[row, index] = _hash_values(records)
                self._lengths[row, index] = sum(len(str(record.value)) for record in records)

    def replace_values(self, index: int, document: Document, values: str) -> Document:
        """Returns a document with its own, shuffled, wrong or matched values.

        A type without a donor among the other documents is left out.

        Args:
            index: The index of the document among the documents of the cycle.
            values: `own`, `shuffled`, `wrong` or `matched`.
        """
        if values == OWN:
            return document

        records: dict[str, list[Record]] = {}
        for row, key in enumerate(self._types):
            if not document.has(key):
                continue
            donor = self._find_donor(row, index, values)
            if donor is None:
                continue

            donated_records = self._documents[donor].records(key)
            replaced_records = _replace_records(document.records(key), donated_records)
            if replaced_records:
                records[key] = replaced_records
        return Document(document.text, document.url, records)

    def _find_donor(self, row: int, index: int, values: str) -> int | None:
        """Returns the index of the donor of a type; None if there is none.

        Args:
            row: The index of the type.
            index: The index of the document that takes the type.
        """
        position = int(self._positions[index])
        following = np.roll(self._cycle, -position)[1:]  # begins with the next document
        digests = self._digests[row]

        is_usable = digests[following] != _NO_RECORDS
        if values != SHUFFLED:
            is_usable &= digests[following] != digests[index]
        donors = following[is_usable]
        if not len(donors):
            return None

        if values == MATCHED:
            distances = np.abs(self._lengths[row, donors] - self._lengths[row, index])
            return int(donors[np.argmin(distances)])
        return int(donors[0])


def _hash_values(records: Sequence[Record]) -> int:
    """Returns a hash of the values of a type's records; `_NO_RECORDS` if there are none."""
    if not records:
        return _NO_RECORDS
    values: list[Any] = [(record.value, record.html_attrs) for record in records]
    digest = xxhash.xxh3_64_intdigest(msgspec.json.encode(values))
    return 1 if digest == _NO_RECORDS else digest


def _replace_records(records: Sequence[Record], donated: Sequence[Record]) -> list[Record]:
    """Returns the records that replace a document's records of a type.

    These are the donor's global records, and the document's local records with the donor's local
    values, which are repeated if the document has more local records than the donor.
    """
    replaced_records = [record for record in donated if not record.is_local()]
    donated_local = select_local_records(donated)
    if not donated_local:
        return replaced_records

    for number, record in enumerate(select_local_records(records)):
        source = donated_local[number % len(donated_local)]
        replaced_records.append(
            msgspec.structs.replace(record, value=source.value, html_attrs=source.html_attrs)
        )
    return replaced_records
