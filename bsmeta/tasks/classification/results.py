"""The result on the test set: the scores of the model and of its baselines, with intervals.

The baselines are the most frequent label, and a linear SVM on TF-IDF features with fixed settings
(words and pairs of words, sublinear term frequency, C = 1, as in Wang and Manning 2012); it sees
the whole text and takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bsmeta.core.progress import opaque_work
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.examples import Examples
from bsmeta.tasks.classification.predictions import Scored
from bsmeta.tasks.classification.scoring import SCORES, Compared, Confusion, by_label, compare
from bsmeta.tasks.classification.splits import SPLITS

MAJORITY = "most frequent label"
LINEAR = "TF-IDF + linear SVM"
MODEL = "model"
FIRST_CHUNK = "model, first chunk only"
MOST_WEIGHTS = 1 << 26
"""Of the linear model: half a gigabyte, twice."""

_VALUES_AT_ONCE = 1 << 22  # of its decisions in memory at one time


def majority(labels: np.ndarray, count: int) -> np.ndarray:
    """The most frequent of the training labels (on a tie the first), for `count` texts."""
    return np.full(count, np.bincount(labels).argmax())


def linear(
    texts: Sequence[str], labels: np.ndarray, others: Sequence[str], *, balanced: bool
) -> np.ndarray | None:
    """The labels that a linear model, trained on some texts, predicts for others.

    Args:
        texts: The training texts.
        labels: int [texts].
        others: The texts to label.
        balanced: Whether labels count the inverse of their frequency in training.

    Returns:
        int [others]; None if the model would have more than `MOST_WEIGHTS`, one of each label and
        feature.
    """
    # Imported here because scikit-learn takes seconds, and only rank 0 needs it.
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.svm import LinearSVC

    count = len(np.unique(labels))
    if count < 2:
        return majority(labels, len(others))
    features = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b")
    try:
        known = features.fit_transform(texts)
    except ValueError:  # no text has a word
        return majority(labels, len(others))
    if count * known.shape[1] > MOST_WEIGHTS:
        return None
    model = LinearSVC(C=1.0, class_weight="balanced" if balanced else None, random_state=0)
    model.fit(known, labels)
    unknown, at_once = features.transform(others), max(_VALUES_AT_ONCE // count, 1)
    return np.concatenate([
        model.predict(unknown[start : start + at_once])
        for start in range(0, unknown.shape[0], at_once)
    ])  # fmt: skip


@dataclass(frozen=True)
class TrainingTexts:
    """What the baselines learn from.

    Attributes:
        texts: The training texts.
        labels: int64 [texts].
        balanced: Whether rare labels count more in training.
    """

    texts: Sequence[str]
    labels: np.ndarray
    balanced: bool


@dataclass(frozen=True)
class Results:
    """The scores on a test set.

    Attributes:
        source: The file of the texts, and the split.
        labels: The labels.
        systems: The model first; then the model on the first chunk only, if any text has several;
            then the baselines, if there are training texts.
        units: Number of resampled units, and what they are.
        per_label: Precision, recall, F1 and number of texts of each label, of the model.
        scores: The loss and the scores of the model that `metrics.jsonl` has.
        folded: Texts with more than one chunk.
        chunks: Chunks of all texts.
        distribution: Number of source texts of each label by split.
        notes: What qualifies the scores, such as repeated texts.
    """

    source: str
    labels: tuple[str, ...]
    systems: list[Compared]
    units: tuple[int, str]
    per_label: dict[str, dict[str, float]]
    scores: dict[str, float]
    folded: int
    chunks: int
    distribution: dict[str, dict[str, int]]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        systems = {
            system.name: {
                name: {
                    "value": system.values[name],
                    "interval": astuple(system.intervals[name]),
                    **_difference(system, name),
                }
                for name in SCORES
            }
            | {"confusion": _cells(system.confusion)}
            for system in self.systems
        }
        return {
            "source": self.source,
            "labels": list(self.labels),
            "texts": self.systems[0].confusion.texts,
            "folded_texts": self.folded,
            "chunks": self.chunks,
            "resampled": {"units": self.units[0], "of": self.units[1]},
            "scores": self.scores,
            "systems": systems,
            "per_label": self.per_label,
            "distribution": self.distribution,
            "notes": self.notes,
        }


def _cells(confusion: Confusion) -> list[list[int]]:
    """True label, predicted label and number of texts of each cell that is not 0."""
    return np.stack([confusion.true, confusion.predicted, confusion.counts], 1).tolist()


def _difference(system: Compared, name: str) -> dict[str, Any]:
    if name not in system.differences:
        return {}
    difference = system.differences[name]
    return {
        "minus_model": difference.value,
        "minus_model_interval": astuple(difference.interval),
    }


def results_of(
    scored: Scored,
    texts: Sequence[str],
    training: TrainingTexts | None,
    *,
    source: str,
    labels: tuple[str, ...],
    groups: tuple[np.ndarray, str],
    model_scores: dict[str, float],
    distribution: Mapping[str, Mapping[str, int]],
    notes: Sequence[str],
    resamples: int,
    seed: int,
) -> Results:
    """Scores the model and the baselines on the same texts.

    Args:
        scored: The model's logits.
        texts: The texts, in the order of `scored.sources`.
        training: What the baselines learn from; None: no baselines.
        source: The file of the texts, and the split.
        labels: The labels.
        groups: int [texts], the group of each text, and what the groups are.
        model_scores: The loss and the scores of the model.
        distribution: Number of texts of each label by split.
        notes: What qualifies the scores.
        resamples: Number of bootstrap resamples.
        seed: Their seed.
    """
    predicted, notes = {MODEL: scored.predicted}, [*notes]
    if scored.chunks.max() > 1:
        predicted[FIRST_CHUNK] = scored.first_predicted
    if training is not None:
        predicted[MAJORITY] = majority(training.labels, len(texts))
        with opaque_work():
            guesses = linear(training.texts, training.labels, texts, balanced=training.balanced)
        if guesses is None:
            notes.append(
                f"there is no {LINEAR} beside the model: with {len(labels):,} labels it would have "
                f"more than {MOST_WEIGHTS:,} weights"
            )
        else:
            predicted[LINEAR] = guesses
    units, unit = groups
    systems = compare(scored.labels, predicted, units, len(labels), resamples=resamples, seed=seed)
    columns = {name: column.tolist() for name, column in by_label(systems[0].confusion).items()}
    return Results(
        source=source,
        labels=labels,
        systems=systems,
        units=(len(np.unique(units)), unit),
        per_label={
            label: {name: column[number] for name, column in columns.items()}
            for number, label in enumerate(labels)
        },
        scores=model_scores,
        folded=int((scored.chunks > 1).sum()),
        chunks=int(scored.chunks.sum()),
        distribution={split: dict(counts) for split, counts in distribution.items()},
        notes=notes,
    )


def test_results(
    config: ClassificationConfig, examples: Examples, scored: Scored, scores: dict[str, float]
) -> Results:
    """The scores of the test split, beside baselines that learn from the training split."""
    return results_of(
        scored,
        [text for _, text, _ in examples.texts("test")],
        training_texts(config, examples),
        source=f"{Path(str(config.data_config.csv)).name}, test split",
        labels=examples.labels,
        groups=(np.array(examples.groups("test")), unit_of(config)),
        model_scores=scores,
        distribution={split: examples.label_counts(split) for split in SPLITS},
        notes=examples.facts["warnings"],
        resamples=config.bootstrap_resamples,
        seed=config.seed,
    )


def training_texts(config: ClassificationConfig, examples: Examples) -> TrainingTexts:
    """What the baselines learn from: the training split."""
    return TrainingTexts(
        texts=[text for _, text, _ in examples.texts("train")],
        labels=examples.source_labels("train"),
        balanced=config.class_weights != "none",
    )


def unit_of(config: ClassificationConfig) -> str:
    """What is resampled for intervals."""
    group = config.data_config.split_by
    return "distinct texts" if group is None else f"values of {group}"
