"""Attribution candidates: the values of a metadata type, as labels and as records.

A label is the class to infer (a host, a year); its record presents it to a model that was trained
on full values (`https://host/`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.config.metadata import MetadataConfig
from bsmeta.evaluation.documents import HeldOutDocuments
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import BadDocument, Document, Record


class Labels:
    """Labels of one metadata type.

    Args:
        key: The metadata type.
        config: How the type is rendered.
    """

    def __init__(self, key: str, config: MetadataConfig) -> None:
        self.key = key
        self._type, self._config = type_of(key), config

    def of(self, document: Document) -> str | None:
        """The label of a document's first global record of the type; None if it has none."""
        for record in document.records(self.key):
            if not record.is_local():
                try:
                    return self._type.group(str(record.value), self._config)
                except BadDocument as error:
                    raise DataError(f"metadata_{self.key}: {error}") from error
        return None

    def given(self, text: str) -> str:
        """The label of a candidate that a user gave (such as a host or a complete URL).

        Raises:
            ConfigurationError: It has no label of this type.
        """
        try:
            label = self._type.group(text, self._config)
        except BadDocument as error:
            raise ConfigurationError(f"candidates: {text} is no {self.key}: {error}") from error
        if label is None:
            raise ConfigurationError(f"candidates: {text} is no {self.key}")
        return label

    def record(self, label: str) -> Record:
        """The record that presents the label to the model."""
        value = self._type.value_of_group(label, self._config)
        return Record(value=value, key=self.key, type="global")


@dataclass(frozen=True)
class Candidates:
    """The candidates that texts are attributed to.

    Attributes:
        labels: The labels of the candidates, the most frequent first.
        counts: int64 [candidates], number of held-out documents with each label.
        truths: int64 [documents], index of each held-out document's label; -1 if that is not a
            candidate.
    """

    labels: list[str]
    counts: np.ndarray
    truths: np.ndarray

    def log_prior(self, kind: str, document: int | None) -> np.ndarray:
        """Prior log-probabilities float64 [candidates].

        `empirical` uses the counts in the held-out documents, without the document itself and with
        one added to each (Laplace smoothing).
        """
        if kind == "uniform":
            return np.full(len(self.labels), -np.log(len(self.labels)))
        counts = self.counts + 1.0
        if document is not None and self.truths[document] >= 0:
            counts[self.truths[document]] -= 1
        return np.log(counts / counts.sum())


def find_candidates(
    labels: Labels, given: Sequence[str], documents: HeldOutDocuments | None
) -> Candidates:
    """The given candidates; if there are none, all labels of the held-out documents.

    Raises:
        ConfigurationError: There are fewer than two candidates.
    """
    found: list[str | None] = []
    if documents is not None:
        found = [labels.of(documents[index]) for index in range(len(documents))]
    counts = Counter(label for label in found if label is not None)
    names = [labels.given(one) for one in given] or list(counts)
    names = sorted(dict.fromkeys(names), key=lambda name: (-counts[name], name))
    if len(names) < 2:
        raise ConfigurationError(
            f"candidates={names}: expected at least two values of {labels.key}, given or in the "
            "held-out file"
        )
    place = {name: number for number, name in enumerate(names)}
    return Candidates(
        labels=names,
        counts=np.array([counts[name] for name in names]),
        truths=np.array([place.get(label or "", -1) for label in found], dtype=np.int64),
    )
