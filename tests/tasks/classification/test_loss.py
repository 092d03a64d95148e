"""Class weights and the weighted loss, by literal examples."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.classification.config import (
    ClassificationConfig,
    ClassificationDataConfig,
    value_problems,
)
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import Scored, label_weights
from bsmeta.tasks.classification.results import scores_of
from bsmeta.tasks.classification.task import micro_batch
from tests.tasks.classification.helpers import bert_tokenizer

LABELS = ("left", "neutral", "right")
COUNTS = {"left": 6, "neutral": 1, "right": 3}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("none", [1.0, 1.0, 1.0]),
        ("balanced", [10 / 18, 10 / 3, 10 / 9]),
        ({"right": 2.5}, [1.0, 1.0, 2.5]),
        ({"left": 1, "neutral": 4, "right": 2}, [1.0, 4.0, 2.0]),
    ],
)
def test_weights_of_labels(key: Any, expected: list[float]) -> None:
    assert label_weights(key, LABELS, COUNTS) == expected


def test_a_weight_for_an_unknown_label_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no label rigth \(did you mean right\?\)"):
        label_weights({"rigth": 2}, LABELS, COUNTS)


@pytest.mark.parametrize("key", ["uniform", {"left": 0}, {"left": "2"}, {"left": math.inf}, 3])
def test_other_weights_are_refused_before_anything_is_loaded(key: Any) -> None:
    config = ClassificationConfig(
        data_config=ClassificationDataConfig(csv=__file__), class_weights=key
    )
    assert [problem.key for problem in value_problems(config)] == ["class_weights"]


def test_the_loss_is_the_weighted_mean_of_the_smoothed_cross_entropies() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]]))
    labels = np.array([0, 2])
    plain = [-math.log(0.7), -math.log(0.25)]
    even = [-math.log(0.7 * 0.2 * 0.1) / 3, -math.log(0.25 * 0.5 * 0.25) / 3]
    smoothed = [0.9 * one + 0.1 * other for one, other in zip(plain, even, strict=True)]
    chunks = [Chunk([], label, row, 0, "") for row, label in enumerate(labels.tolist())]
    scored = Scored.of(chunks, logits, 0.1)
    assert scored.chunk_losses.tolist() == pytest.approx(smoothed)
    expected = (smoothed[0] + 3 * smoothed[1]) / 4
    assert scores_of(scored, [1.0, 1.0, 3.0])["loss"] == pytest.approx(expected)


def test_a_micro_batch_carries_the_weight_of_its_labels() -> None:
    chunks = [Chunk([2, 7, 8, 9, 3], 1, 4, 0, "abc"), Chunk([2, 7, 3], 2, 9, 1, "a")]
    batch = micro_batch(chunks, bert_tokenizer(), [1.0, 4.0, 0.5], "leanings.csv")
    assert batch.tensors["input_ids"].tolist() == [[2, 7, 8, 9, 3], [2, 7, 3, 0, 0]]
    assert batch.tensors["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch.tensors["labels"].tolist() == [1, 2]
    assert batch.tensors["weights"].tolist() == [4.0, 0.5]
    assert (batch.weight, batch.tokens, batch.padding) == (4.5, 8, 2)
    assert batch.documents == ["leanings.csv:4", "leanings.csv:9"]
    assert batch.counts == {"chunks": 2.0, "weight": 4.5}


def test_a_best_checkpoint_needs_a_validation_split() -> None:
    data = ClassificationDataConfig(csv=__file__, split_fractions=[0.8, 0.0, 0.2])
    config = ClassificationConfig(data_config=data, keep_best_by="mcc", method="linear")
    assert [problem.key for problem in value_problems(config)] == ["keep_best_by"]
    assert list(value_problems(replace(config, keep_best_by=None))) == []
