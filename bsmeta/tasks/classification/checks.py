"""What is known about a classification run before anything is loaded: problems and summary."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bsmeta.config.checks.run import missing, model_problems
from bsmeta.config.launch import Launch
from bsmeta.config.task_entry import Row
from bsmeta.core.problems import HYDRA, Problem, show
from bsmeta.tasks.classification.config import (
    AUTO,
    FINE_TUNE,
    FITTED,
    HEAD,
    LINEAR,
    ClassificationConfig,
)


def value_problems(config: ClassificationConfig, _: Collection[str] = ()) -> Iterator[Problem]:
    """Yields problems that do not depend on the launch."""
    yield from _table(config)
    yield from model_problems(config)
    yield from _class_weights(config.class_weights)
    yield from fraction_problems(config.data_config.split_fractions)
    yield from _validation(config)
    yield from _method(config)
    folder = Path(config.results_dir or "")
    if config.results_dir is not None and folder.exists() and not folder.is_dir():
        fix = "results_dir=results, for example"
        yield Problem("results_dir", HYDRA, f"{show(str(folder))}, a file", "a folder", fix)


def _table(config: ClassificationConfig) -> Iterator[Problem]:
    data = config.data_config
    if data.csv is None:
        expected = "a CSV file with a column of texts and a column of labels"
        fix = "data_config.csv=FILE data_config.text_column=NAME data_config.label_column=NAME"
        yield Problem("data_config.csv", HYDRA, "null", expected, fix)
    elif config.accelerate_config_file is None and not os.path.isfile(data.csv):
        yield missing("data_config.csv", data.csv, "a CSV file", "correct data_config.csv")


def fraction_problems(shares: Sequence[float]) -> list[Problem]:
    """The problem of `split_fractions` that do not divide a table; empty if they do."""
    valid = len(shares) == 3 and shares[0] > 0 and min(shares) >= 0
    if valid and math.isclose(sum(shares), 1, abs_tol=1e-6):
        return []
    key = "data_config.split_fractions"
    expected = "the shares of training (above 0), validation and test, whose sum is 1"
    return [Problem(key, HYDRA, show(list(shares)), expected, f"{key}=[0.8,0.1,0.1], for example")]


def _lacks_validation(config: ClassificationConfig) -> bool:
    shares = config.data_config.split_fractions
    return config.data_config.split_column is None and len(shares) == 3 and shares[1] == 0


def _validation(config: ClassificationConfig) -> Iterator[Problem]:
    """Yields a `keep_best_by` for a table whose validation split is empty."""
    fractions = config.data_config.split_fractions
    if _lacks_validation(config) and config.keep_best_by is not None:
        expected = (
            f"null, because data_config.split_fractions={fractions} leaves no validation split"
        )
        fix = "keep_best_by=null early_stopping_patience=null export_best=false, or a share for it"
        yield Problem("keep_best_by", HYDRA, show(config.keep_best_by), expected, fix)


def _method(config: ClassificationConfig) -> Iterator[Problem]:
    """Yields keys that do not go with the method."""
    method, shares = config.method, config.data_config.split_fractions
    by_steps = method in (AUTO, FINE_TUNE)
    if config.pooling == HEAD and method != FINE_TUNE:
        expected = f"mean, cls, max or last, because method={method} needs vectors"
        yield Problem("pooling", HYDRA, HEAD, expected, "pooling=mean, or method=fine_tune")
    starts_linear = config.head_start == "linear" and config.pooling != HEAD
    if _lacks_validation(config) and method != LINEAR and (method != FINE_TUNE or starts_linear):
        expected = (
            f"linear or fine_tune, because split_fractions={shares} leaves no validation split"
        )
        fix = "method=fine_tune head_start=random, or a share for it"
        yield Problem("method", HYDRA, method, expected, fix)
    for key, default in (("train_layers", None), ("layer_decay", 1.0)):
        value = getattr(config, key)
        if value != default and (not by_steps or config.pooling == HEAD):
            expected = f"{show(default)} with method={method} pooling={config.pooling}"
            yield Problem(key, HYDRA, show(value), expected, f"{key}={show(default)}")
    if config.estimate and method in FITTED:
        fix = "method=fine_tune"
        yield Problem("estimate", HYDRA, "true", f"false: method={method} has no steps", fix)


def _class_weights(weights: Any) -> Iterator[Problem]:
    """Yields weights that no table could have; labels are compared with those of the table."""
    if weights in ("none", "balanced"):
        return
    values = weights.values() if isinstance(weights, Mapping) else [None]
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) < len(values) or not all(0 < value < math.inf for value in numbers):
        expected = "none, balanced, or labels with weights above 0"
        fix = "class_weights=balanced, or class_weights={LABEL: 2}"
        yield Problem("class_weights", HYDRA, show(weights), expected, fix)


def _of_encoder(config: ClassificationConfig) -> str:
    if config.method == LINEAR:
        return ""
    parts = [f"pooling={config.pooling}"]
    if config.method in (AUTO, FINE_TUNE) and config.pooling != HEAD:
        parts += [f"head_start={config.head_start}"]
        parts += [f"train_layers={show(config.train_layers)}, layer_decay={config.layer_decay:g}"]
    return f" ({', '.join(parts)})"


def summary_rows(config: ClassificationConfig, _: Launch) -> list[Row]:
    """Rows for model and table."""
    data = config.data_config
    model = config.model_name
    if config.model_config_file is not None:
        model = f"{config.model_config_file} (random weights)"
    unit = "tokens" if data.fold_by == "tokens" else "words"
    splits = f"{data.split_fractions} (training, validation, test)"
    if data.split_column is not None:
        splits = f"column {data.split_column}"
    if data.split_by is not None:
        splits += f"; no split divides a value of {data.split_by}"
    return [
        ("method", f"{config.method}{_of_encoder(config)}"),
        ("model", model),
        ("tokenizer", config.tokenizer_name or f"{config.model_name} (that of model_name)"),
        ("table", f"{data.csv}: {data.text_column} → {data.label_column}"),
        ("chunks", f"{data.max_length:,} {unit}; longer texts are folded"),
        ("splits", splits),
        ("class weights", show(config.class_weights)),
    ]
