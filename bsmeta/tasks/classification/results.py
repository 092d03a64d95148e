"""The result on the test set: the scores of the model and of its baselines, with intervals.

The baselines are the most frequent label, and a linear SVM on TF-IDF features with fixed settings
(words and pairs of words, sublinear term frequency, C = 1, as in Wang and Manning 2012); it sees
the whole text and takes seconds. It is the system of `method=linear`. A run of `method=auto` adds
its other systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bsmeta.core.progress import opaque_work
from bsmeta.tasks.classification.config import (
    COMBINED,
    FINE_TUNE,
    FROZEN,
    LINEAR,
    ClassificationConfig,
)
from bsmeta.tasks.classification.examples import Examples
from bsmeta.tasks.classification.model import label_weights
from bsmeta.tasks.classification.predictions import (
    SCORES,
    Compared,
    Confusion,
    Scored,
    by_label,
    compare,
)
from bsmeta.tasks.classification.splits import SPLITS
from bsmeta.tasks.classification.systems import fit_words

MAJORITY = "most frequent label"
WORDS = "TF-IDF + linear SVM"
NAMES = {
    LINEAR: WORDS,
    FROZEN: "frozen vectors + logistic regression",
    COMBINED: "TF-IDF and frozen vectors + linear SVM",
    FINE_TUNE: "fine-tuned encoder",
}
"""What reports call each method."""
MODEL = "model"
FIRST_CHUNK = "model, first chunk only"


def majority(labels: np.ndarray, count: int) -> np.ndarray:
    """The most frequent of the training labels (on a tie the first), for `count` texts."""
    return np.full(count, np.bincount(labels).argmax())


@dataclass(frozen=True)
class TrainingTexts:
    """What the baselines learn from.

    Attributes:
        texts: The training texts.
        labels: int64 [texts].
        weights: The weight of each label in training.
    """

    texts: Sequence[str]
    labels: np.ndarray
    weights: Sequence[float]


@dataclass(frozen=True)
class Choice:
    """What `method=auto` has compared on the validation split.

    Attributes:
        metric: The score that it chose by.
        chosen: The method whose model is exported.
        systems: Their scores; the name of each is its method, and the best one is the first.
        settings: What was chosen within each fitted method.
    """

    metric: str
    chosen: str
    systems: list[Compared]
    settings: dict[str, dict[str, float]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        systems = {
            system.name: {**system.values, **self.settings.get(system.name, {})}
            for system in self.systems
        }
        return {"metric": self.metric, "chosen": self.chosen, "systems": systems}


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
        choice: How the model was chosen; None if there was no choice.
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
    choice: Choice | None = None

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
            **({} if self.choice is None else {"choice": self.choice.as_dict()}),
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
    others: Mapping[str, np.ndarray] | None = None,
    choice: Choice | None = None,
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
        others: What further systems predict, int64 [texts] by method.
        choice: How the model was chosen among them.
    """
    predicted, notes = {MODEL: scored.predicted}, [*notes]
    others = {} if others is None else {NAMES[name]: labels for name, labels in others.items()}
    if scored.chunks.max() > 1:
        predicted[FIRST_CHUNK] = scored.first_predicted
    if training is not None:
        predicted[MAJORITY] = majority(training.labels, len(texts))
        if WORDS not in others:
            with opaque_work():
                baseline, reasons = fit_words(
                    labels, training.weights, training.labels, training.texts
                )
                if baseline is not None:
                    predicted[WORDS] = baseline.logits(texts).argmax(1)
            notes += reasons
    predicted.update(others)
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
        choice=choice,
    )


def test_results(
    config: ClassificationConfig,
    examples: Examples,
    scored: Scored,
    scores: dict[str, float],
    others: Mapping[str, np.ndarray],
    choice: Choice | None,
) -> Results:
    """The scores of the model on the test split, and of baselines fitted on the training split."""
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
        others=others,
        choice=choice,
    )


def training_texts(config: ClassificationConfig, examples: Examples) -> TrainingTexts:
    """What the baselines learn from: the training split."""
    return TrainingTexts(
        texts=[text for _, text, _ in examples.texts("train")],
        labels=examples.source_labels("train"),
        weights=label_weights(
            config.class_weights, examples.labels, examples.label_counts("train")
        ),
    )


def unit_of(config: ClassificationConfig) -> str:
    """The unit that is resampled for intervals, in words."""
    group = config.data_config.split_by
    return "distinct texts" if group is None else f"values of {group}"
