"""What a text may be attributed to: the values of a metadata type, as labels and as records.

A label is what is told apart (a host, a year); its record is how a model that was trained on full
values is given it (`https://host/`).
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
        key: The type.
        config: How it is rendered.
    """

    def __init__(self, key: str, config: MetadataConfig) -> None:
        self.key = key
        self._type, self._config = type_of(key), config

    def of(self, document: Document) -> str | None:
        """The label of a document's first global record of the type; None without one."""
        for record in document.records(self.key):
            if not record.is_local():
                try:
                    return self._type.group(str(record.value), self._config)
                except BadDocument as error:
                    raise DataError(f"metadata_{self.key}: {error}") from error
        return None

    def given(self, text: str) -> str:
        """The label of a candidate as a user writes it (a host or a whole address).

        Raises:
            ConfigurationError: There is none in it.
        """
        try:
            label = self._type.group(text, self._config)
        except BadDocument as error:
            raise ConfigurationError(f"candidates: {text} is no {self.key}: {error}") from error
        if label is None:
            raise ConfigurationError(f"candidates: {text} is no {self.key}")
        return label

    def record(self, label: str) -> Record:
        """The record by which the model is given the label."""
        value = self._type.value_of_group(label, self._config)
        return Record(value=value, key=self.key, type="global")


@dataclass(frozen=True)
class Candidates:
    """What texts are attributed to.

    Attributes:
        labels: The candidates, the most frequent first.
        counts: int64 [candidates], held-out documents of each.
        truths: For each held-out document the index of its label, -1 if that is no candidate.
    """

    labels: list[str]
    counts: np.ndarray
    truths: np.ndarray

    def log_prior(self, kind: str, document: int | None) -> np.ndarray:
        """Log-probabilities float64 [candidates] before the text is seen.

        `empirical` counts the held-out documents, each once more than it is there (Laplace), but
        not the document itself.
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
    """The candidates that are given, else all labels of the held-out documents.

    Raises:
        ConfigurationError: There are fewer than two.
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
