"""p(metadata | text) by Bayes' rule over candidates, and the accuracy of its best guess.

    p(value | text) = p(text | value) p(value) / sum over the candidates

Source: "source attribution" of CTRL (Keskar et al. 2019, section 5), here over any metadata type.
A candidate has a label, the class to infer (a host, a year), and a record, which presents it to a
model that was trained on full values (`https://host/`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.config.metadata import MetadataConfig
from bsmeta.evaluation.documents import HeldOutDocuments
from bsmeta.evaluation.statistics import bootstrap
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


TOP = (1, 5)


@dataclass(frozen=True)
class Share:
    """A share of the documents, with its 95% bootstrap interval over documents."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Attribution:
    """The result of an attribution.

    Attributes:
        candidates: The candidates that the texts could be attributed to.
        posterior: float64 [documents, candidates], log p(candidate | text).
        tokens: int64 [documents], number of scored tokens of each text.
        names: Name of each document.
        documents: Index of each document among the held-out documents.
    """

    candidates: Candidates
    posterior: np.ndarray
    tokens: np.ndarray
    names: list[str]
    documents: list[int]

    @property
    def truths(self) -> np.ndarray:
        """int64 [documents], index of the correct candidate of each document."""
        return self.candidates.truths[self.documents]

    @property
    def ranks(self) -> np.ndarray:
        """int64 [documents], the 1-based rank of the correct candidate; ties count against it."""
        right = np.take_along_axis(self.posterior, self.truths[:, None], axis=1)
        return (self.posterior >= right).sum(axis=1)


def posterior(likelihoods: np.ndarray, log_priors: np.ndarray) -> np.ndarray:
    """Posterior log-probabilities float64 [texts, candidates], each row normalized.

    Args:
        likelihoods: float64 [texts, candidates], log p(text | candidate).
        log_priors: float64 [texts, candidates].
    """
    joint = likelihoods + log_priors
    return joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)


def summarize(found: Attribution, *, resamples: int, seed: int) -> dict[str, Any]:
    """The metrics: accuracy of the best guess, of the best five, and of the majority class."""
    ranks, truths = found.ranks, found.truths
    classes = np.bincount(truths, minlength=len(found.candidates.labels))
    most_frequent = int(classes.argmax())
    rows = {f"top_{most}": ranks <= most for most in TOP}
    rows["majority_class"] = truths == most_frequent
    shares = _shares(list(rows.values()), resamples, seed)
    right = found.posterior[np.arange(len(truths)), truths]
    return {
        "documents": len(truths),
        "candidates": len(found.candidates.labels),
        "tokens": int(found.tokens.sum()),
        **{name: asdict(share) for name, share in zip(rows, shares, strict=True)},
        "majority_label": found.candidates.labels[most_frequent],
        "mean_reciprocal_rank": float((1 / ranks).mean()),
        "mean_bits_of_the_truth": float(-right.mean() / np.log(2)),
    }


def _shares(rows: Sequence[np.ndarray], resamples: int, seed: int) -> list[Share]:
    values = np.stack(rows).astype(np.float64)
    intervals = bootstrap(values, np.ones_like(values), resamples=resamples, seed=seed)
    return [
        Share(float(row.mean()), interval.low, interval.high)
        for row, interval in zip(values, intervals, strict=True)
    ]


def by_candidate(found: Attribution) -> list[dict[str, Any]]:
    """For each candidate: its documents, the number guessed right, and the main wrong guess."""
    guesses = found.posterior.argmax(axis=1)
    rows = []
    for number, label in enumerate(found.candidates.labels):
        own = found.truths == number
        taken_for = np.bincount(guesses[own], minlength=len(found.candidates.labels))
        taken_for[number] = 0
        other = found.candidates.labels[int(taken_for.argmax())] if taken_for.any() else None
        rows.append(
            {
                "label": label,
                "documents": int(own.sum()),
                "told": int((guesses[own] == number).sum()),
                "guessed": int((guesses == number).sum()),
                "most_often_taken_for": other,
            }
        )
    return rows


def by_document(found: Attribution) -> list[dict[str, Any]]:
    """For each document: its label, the label's rank and log-probability, and the best guess."""
    labels = found.candidates.labels
    return [
        {
            "document": name,
            "label": labels[truth],
            "guess": labels[int(row.argmax())],
            "rank": int(rank),
            "log_probability": float(row[truth]),
            "tokens": int(tokens),
        }
        for name, truth, row, rank, tokens in zip(
            found.names, found.truths, found.posterior, found.ranks, found.tokens, strict=True
        )
    ]
