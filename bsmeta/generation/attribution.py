"""p(metadata | text) by Bayes' rule, and the accuracy of its best guess.

    p(value | text) = p(text | value) p(value) / sum over the candidates

Source: "source attribution" of CTRL (Keskar et al. 2019, section 5), here over any metadata type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bsmeta.evaluation.statistics import bootstrap
from bsmeta.generation.candidates import Candidates

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
