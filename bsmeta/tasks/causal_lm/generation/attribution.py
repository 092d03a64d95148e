"""Attributes texts to candidates by Bayes' rule, and computes the accuracy.

    p(value | text) = p(text | value) p(value) / sum over the candidates

Source: "source attribution" of CTRL (Keskar et al. 2019, section 5), here over any metadata type.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bsmeta.report.inference import compute_bootstrap_intervals
from bsmeta.tasks.causal_lm.generation.candidates import Candidates

TOP_COUNTS = (1, 5)
"""Numbers of best guesses among which the label of a document must be to count as right."""


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
        correct = np.take_along_axis(self.posterior, self.truths[:, None], axis=1)
        return (self.posterior >= correct).sum(axis=1)


def compute_posterior(likelihoods: np.ndarray, log_priors: np.ndarray) -> np.ndarray:
    """Computes posterior log-probabilities float64 [texts, candidates], each row normalized.

    Args:
        likelihoods: float64 [texts, candidates], log p(text | candidate).
        log_priors: float64 [texts, candidates].
    """
    joint = likelihoods + log_priors
    return joint - np.logaddexp.reduce(joint, axis=1, keepdims=True)


def compute_metrics(attribution: Attribution, *, resamples: int, seed: int) -> dict[str, Any]:
    """Computes the accuracy of the best guess, of the best five, and of the majority class.

    Each accuracy has its 95% bootstrap interval over documents.
    """
    ranks = attribution.ranks
    truths = attribution.truths
    labels = attribution.candidates.labels
    majority = int(np.bincount(truths, minlength=len(labels)).argmax())

    is_right = {f"top_{count}": ranks <= count for count in TOP_COUNTS}
    is_right["majority_class"] = truths == majority
    values = np.stack([*is_right.values()]).astype(np.float64)
    intervals = compute_bootstrap_intervals(
        values, np.ones_like(values), resamples=resamples, seed=seed
    )
    shares = {
        name: {"share": float(row.mean()), **asdict(interval)}
        for name, row, interval in zip(is_right, values, intervals, strict=True)
    }

    log_probabilities = attribution.posterior[np.arange(len(truths)), truths]
    return {
        "documents": len(truths),
        "candidates": len(labels),
        "tokens": int(attribution.tokens.sum()),
        **shares,
        "majority_label": labels[majority],
        "mean_reciprocal_rank": float((1 / ranks).mean()),
        "mean_bits_of_the_truth": float(-log_probabilities.mean() / np.log(2)),
    }


def list_candidates(attribution: Attribution) -> list[dict[str, Any]]:
    """Returns for each candidate its numbers of documents and guesses, and its main confusion."""
    guesses = attribution.posterior.argmax(axis=1)
    truths = attribution.truths
    labels = attribution.candidates.labels

    rows = []
    for number, label in enumerate(labels):
        has_label = truths == number
        confusions = np.bincount(guesses[has_label], minlength=len(labels))
        correct = int(confusions[number])
        confusions[number] = 0  # leave only the wrong guesses
        rows.append(
            {
                "label": label,
                "documents": int(has_label.sum()),
                "correct": correct,
                "guessed": int((guesses == number).sum()),
                "most_often_taken_for": labels[confusions.argmax()] if confusions.any() else None,
            }
        )
    return rows


def list_documents(attribution: Attribution) -> list[dict[str, Any]]:
    """Returns each document's label, the label's rank and log-probability, and the best guess."""
    labels = attribution.candidates.labels
    truths = attribution.truths
    ranks = attribution.ranks

    rows = []
    for number, name in enumerate(attribution.names):
        posterior = attribution.posterior[number]
        truth = truths[number]
        rows.append(
            {
                "document": name,
                "label": labels[truth],
                "guess": labels[int(posterior.argmax())],
                "rank": int(ranks[number]),
                "log_probability": float(posterior[truth]),
                "tokens": int(attribution.tokens[number]),
            }
        )
    return rows
