"""The values of a metadata type that texts may be attributed to.

A candidate has a label, the class to infer (a host, a year), and a record, which presents it to a
model that was trained on full values (`https://host/`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import find_type
from bsmeta.metadata.records import BadDocument, Record
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments


class Labels:
    """Labels documents and candidates by one metadata type."""

    def __init__(self, key: str, config: MetadataConfig) -> None:
        self.key = key
        self._type = find_type(key)
        self._config = config

    def label_document(self, document: Document) -> str | None:
        """Returns the label of a document's first global record of the type; None without one."""
        values = [
            str(record.value) for record in document.records(self.key) if not record.is_local()
        ]
        if not values:
            return None

        try:
            return self._type.find_group(values[0], self._config)
        except BadDocument as error:
            raise DataError(f"metadata_{self.key}: {error}") from error

    def label_candidate(self, text: str) -> str:
        """Returns the label of a candidate that a user gave (such as a host or a complete URL).

        Raises:
            ConfigurationError: If it has no label of this type.
        """
        reason = ""
        label = None
        try:
            label = self._type.find_group(text, self._config)
        except BadDocument as error:
            reason = f": {error}"
        if label is None:
            raise ConfigurationError(f"candidates: {text} is not a valid {self.key}{reason}")
        return label

    def make_record(self, label: str) -> Record:
        """Makes the record that presents the label to the model."""
        value = self._type.make_group_value(label, self._config)
        return Record(value=value, key=self.key, type="global")


@dataclass(frozen=True)
class Candidates:
    """The candidates that texts are attributed to.

    Attributes:
        labels: The labels of the candidates, the most frequent first.
        counts: int64 [candidates], number of held-out documents with each label.
        truths: int64 [documents], index of each held-out document's label; -1 if it is not a
            candidate.
    """

    labels: list[str]
    counts: np.ndarray
    truths: np.ndarray

    def compute_log_prior(self, kind: str, document: int | None) -> np.ndarray:
        """Computes the prior log-probabilities float64 [candidates].

        Args:
            kind: `uniform`, or `empirical`: the counts in the held-out documents without the
                document itself, with one added to each (Laplace smoothing).
            document: Index of the held-out document; None for another text.
        """
        if kind == "uniform":
            return np.full(len(self.labels), -np.log(len(self.labels)))

        counts = self.counts + 1.0  # so that no candidate is impossible
        if document is not None and self.truths[document] >= 0:
            counts[self.truths[document]] -= 1  # a document is not evidence about itself
        return np.log(counts / counts.sum())


def find_candidates(
    labels: Labels, requested: Sequence[str], documents: HeldOutDocuments | None
) -> Candidates:
    """Returns the requested candidates, or by default all labels of the held-out documents.

    Raises:
        ConfigurationError: If there are fewer than two candidates.
    """
    document_labels: list[str | None] = []
    if documents is not None:
        document_labels = [
            labels.label_document(documents[index]) for index in range(len(documents))
        ]
    counts = Counter(label for label in document_labels if label is not None)

    distinct_names = {labels.label_candidate(text) for text in requested}
    if not requested:
        distinct_names = set(counts)
    names = sorted(distinct_names, key=lambda name: (-counts[name], name))
    if len(names) < 2:
        raise ConfigurationError(
            f"candidates={names}: expected at least two values of {labels.key}, given or in the "
            "held-out file"
        )

    numbers = {name: number for number, name in enumerate(names)}
    truths = [numbers.get(label or "", -1) for label in document_labels]
    return Candidates(
        labels=names,
        counts=np.array([counts[name] for name in names]),
        truths=np.array(truths, dtype=np.int64),
    )
