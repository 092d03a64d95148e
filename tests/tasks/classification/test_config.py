"""Mistakes in the configuration of a classifier are found before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bsmeta.core.changed_values import replace_values
from bsmeta.tasks.classification.config import (
    ClassificationConfig,
    ClassificationDataConfig,
    find_value_problems,
)


@pytest.mark.parametrize("key", ["uniform", {"left": 0}, {"left": "2"}, {"left": math.inf}, 3])
def test_other_weights_are_refused_before_anything_is_loaded(key: Any) -> None:
    config = ClassificationConfig(
        data_config=ClassificationDataConfig(csv=__file__), class_weights=key
    )
    assert [problem.key for problem in find_value_problems(config)] == ["class_weights"]


def test_a_best_checkpoint_needs_a_validation_split() -> None:
    data = ClassificationDataConfig(csv=__file__, split_fractions=[0.8, 0.0, 0.2])
    config = ClassificationConfig(data_config=data, keep_best_by="mcc", method="linear")
    assert [problem.key for problem in find_value_problems(config)] == ["keep_best_by"]
    assert list(find_value_problems(replace(config, keep_best_by=None))) == []


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("pooling", {"pooling": "head"}),
        ("method", {"data_config.split_fractions": [0.8, 0.0, 0.2]}),
        ("method", {"data_config.split_fractions": [0.8, 0.0, 0.2], "method": "fine_tune"}),
        ("train_layers", {"train_layers": 1, "method": "linear"}),
        ("layer_decay", {"layer_decay": 0.9, "method": "fine_tune", "pooling": "head"}),
        ("estimate", {"estimate": True, "method": "combined"}),
        ("export_dtype", {"export_dtype": "bfloat16", "method": "linear"}),
    ],
)
def test_keys_that_do_not_go_with_the_method(key: str, values: dict[str, Any]) -> None:
    config = ClassificationConfig(data_config=ClassificationDataConfig(csv=__file__))
    config = replace_values(config, values)
    (problem,) = find_value_problems(config)
    assert problem.key == key
