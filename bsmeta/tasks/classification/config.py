"""The schema of `task=classification` (texts of a CSV file, each with a label), its checks and
summary.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bsmeta.config.checks import is_offline, is_on_machine, is_path, missing, model_problems
from bsmeta.config.composition import NOTHING, Composition
from bsmeta.config.launch import Launch
from bsmeta.config.schema import LARGEST_SEED, PretrainedConfig, TableDataConfig
from bsmeta.config.task_entry import Row
from bsmeta.core.errors import HYDRA, Problem, show
from bsmeta.core.keys import inherited, key

AUTO, LINEAR, FROZEN, COMBINED, FINE_TUNE = "auto", "linear", "frozen", "combined", "fine_tune"
"""The values of `method`."""

FITTED = (LINEAR, FROZEN, COMBINED)  # those without training steps, the simplest first

POOLINGS = ("mean", "cls", "max", "last")  # the values of `pooling` for a linear head

HEAD = "head"  # the value of `pooling` for the architecture's own head


@dataclass(kw_only=True)
class ClassificationDataConfig(TableDataConfig):
    """The table of texts and labels, its chunks and its splits."""

    csv: str | None = key(None, is_path=True)
    """the table: .csv or .csv.gz with a header, or the .sqlite that an earlier run made of it"""
    text_column: str = key("text")
    """column of the text"""
    label_column: str = key("label")
    """column of the label"""
    database: str | None = key(None, is_path=True)
    """SQLite file that the table is read into, once; null: beside the CSV file, with its name"""
    csv_separator: str = key("auto")
    """character between columns; auto: , ; tab or |"""
    csv_encoding: str = key("auto")
    """encoding of the file; auto: UTF-8, UTF-16 or UTF-32"""
    on_bad_row: str = key("refuse", choices=("refuse", "skip"))
    """a row without text or label, or with too many or too few columns; skip: leave it out, and
    count"""

    fold_by: str = key("tokens", choices=("tokens", "words"))
    """how a long text becomes several rows of max_length: tokens: at any token; words: between
    words (and at the tokenizer's model_max_length)"""
    max_length: int = key(128, at_least=1)
    """length of a row, beyond which a text continues in further rows: tokens, with the special
    ones; under fold_by=words: words"""
    split_by: str | None = key(None)
    """column whose values are groups that no split divides (an author, a site); null: rows with
    equal texts stay together"""
    split_fractions: list[float] = key([0.8, 0.1, 0.1])
    """shares of training, validation and test, stratified by label"""
    split_column: str | None = key(None)
    """column that says train, validation or test, instead of split_fractions; refused if it divides
    a group of split_by"""
    split_seed: int = key(42, at_least=0, at_most=LARGEST_SEED)
    """seed of the splits, apart from that of the run: runs with other seeds are comparable"""

    per_device_train_batch_size: int = key(
        16, deepspeed="train_micro_batch_size_per_gpu", at_least=1
    )
    """rows in a micro-batch of one process"""


@dataclass(kw_only=True)
class ClassificationConfig(PretrainedConfig):
    """A training run of a text classifier."""

    micro_batch_key: ClassVar[str | None] = "data_config.per_device_train_batch_size"
    training_data_key: ClassVar[str] = "data_config.csv"
    metrics: ClassVar[tuple[str, ...] | None] = (
        "loss",
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        "mcc",
        "chunk_accuracy",
    )

    task: str = inherited(PretrainedConfig, "task", "classification")
    data_config: ClassificationDataConfig = key(ClassificationDataConfig)
    """the table of texts and labels"""

    model_name: str = inherited(PretrainedConfig, "model_name", "google-bert/bert-base-uncased")
    method: str = key(AUTO, choices=(AUTO, *FITTED, FINE_TUNE))
    """linear: an SVM on TF-IDF of words and pairs of words; frozen: logistic regression on the
    vectors of the encoder as it is; combined: an SVM on both; fine_tune: train the encoder; auto:
    all of them, and export the simplest within one standard error of the best by keep_best_by (by
    macro_f1 if that is no score of texts) on the validation split"""
    pooling: str = key("mean", choices=(*POOLINGS, HEAD))
    """how the vectors of a row's tokens become one: their mean, their maximum, or the first (cls)
    or last token; head: by the head of AutoModelForSequenceClassification, under method=fine_tune
    only"""
    head_start: str = key("linear", choices=("linear", "random"))
    """weights that fine-tuning of the head begins with; linear: those of method=frozen"""
    train_layers: int | None = key(None, at_least=0)
    """fine-tune only the last layers of the encoder, this many (0: the head alone); null: all, and
    the embeddings"""
    layer_decay: float = key(1.0, above=0, at_most=1)
    """fine-tuning: each layer of the encoder has this many times the learning rate of the layer
    above it; the head and the last layer have learning_rate"""
    dropout: float | None = key(None, at_least=0, below=1)
    """every dropout of the model; null: those of its config"""
    class_weights: Any = key("none")
    """what a row counts in the loss; balanced: rows / (labels x rows of its label); or a mapping of
    labels to weights, {left: 2, right: 1} (1 for those that it leaves out; labels yes and no need
    quotes)"""
    label_smoothing: float = key(0.0, at_least=0, below=1)
    """share of the target that is spread evenly over all labels"""

    results_dir: str | None = key(None, is_path=True, heading="Results")
    """folder of the result files NAME_testset_predictions.csv, NAME_train_test_stats.json and
    NAME_trained_model.sav; null: that of the CSV file"""
    spreadsheet_safe: bool = key(False)
    """put ' before labels in NAME_testset_predictions.csv that a spreadsheet would compute (=1+1);
    false: labels are as they were read"""
    bootstrap_resamples: int = key(2000, at_least=1)
    """resamples of the test set's texts (or groups) for each interval of the report"""

    prep_only: bool = key(False, heading="Data")
    """read the table into its database, and stop"""


def value_problems(config: ClassificationConfig, _: Composition = NOTHING) -> Iterator[Problem]:
    """Yields problems that do not depend on the launch."""
    data = config.data_config
    if data.csv is None:
        expected = "a CSV file with a column of texts and a column of labels"
        fix = "data_config.csv=FILE data_config.text_column=NAME data_config.label_column=NAME"
        yield Problem("data_config.csv", HYDRA, "null", expected, fix)
    elif config.accelerate_config_file is None and not os.path.isfile(data.csv):
        yield missing("data_config.csv", data.csv, "a CSV file", "correct data_config.csv")
    yield from model_problems(config)
    yield from _tokenizer(config)
    yield from _class_weights(config.class_weights)
    yield from fraction_problems(data.split_fractions)
    shares = f"data_config.split_fractions={data.split_fractions} leaves no validation split"
    if _lacks_validation(config) and config.keep_best_by is not None:
        fix = "keep_best_by=null early_stopping_patience=null export_best=false, or a share for it"
        found = show(config.keep_best_by)
        yield Problem("keep_best_by", HYDRA, found, f"null, because {shares}", fix)
    yield from _method(config)
    folder = Path(config.results_dir or "")
    if config.results_dir is not None and folder.exists() and not folder.is_dir():
        fix = "results_dir=results, for example"
        yield Problem("results_dir", HYDRA, f"{show(str(folder))}, a file", "a folder", fix)


def _tokenizer(config: ClassificationConfig) -> Iterator[Problem]:
    """Yields a tokenizer that cannot be loaded, which every method needs: it divides the texts."""
    key = "model_name" if config.tokenizer_name is None else "tokenizer_name"
    name = getattr(config, key)
    is_elsewhere = config.accelerate_config_file is not None  # on the machine of the launch file
    if is_elsewhere or is_path(name) or is_on_machine(name) or not is_offline():
        return
    found = f"{show(name)}, which is not on this machine, and HF_HUB_OFFLINE is set"
    expected = f"a folder with a tokenizer, by which method={config.method} divides long texts"
    yield Problem(key, HYDRA, found, expected, "tokenizer_name=FOLDER")


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


def _method(config: ClassificationConfig) -> Iterator[Problem]:
    method, shares = config.method, config.data_config.split_fractions
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
    for field, default in (("train_layers", None), ("layer_decay", 1.0)):
        value = getattr(config, field)
        if value != default and (method in FITTED or config.pooling == HEAD):
            expected = f"{show(default)} with method={method} pooling={config.pooling}"
            yield Problem(field, HYDRA, show(value), expected, f"{field}={show(default)}")
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


def _tokenizer_source(config: ClassificationConfig) -> str:
    name = config.tokenizer_name or config.model_name
    source = name if config.tokenizer_name else f"{name} (that of model_name)"
    return source if is_on_machine(name) else f"{source}; not on this machine, so from the Hub"


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
        ("tokenizer", _tokenizer_source(config)),
        ("table", f"{data.csv}: {data.text_column} → {data.label_column}"),
        ("chunks", f"{data.max_length:,} {unit}; longer texts are folded"),
        ("splits", splits),
        ("class weights", show(config.class_weights)),
    ]
