"""The configuration of `task=classification`: texts of a table, each with a label or several.

The module has the schema, the checks of its values, and the rows of the start-up table.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bsmeta.config.checks.paths import (
    describe_missing_file,
    find_model_problems,
    is_offline,
    is_on_machine,
    is_path,
)
from bsmeta.config.composing.composition import EMPTY_COMPOSITION, Composition
from bsmeta.config.launch import Launch
from bsmeta.config.schema import MAX_SEED, PretrainedConfig, TableDataConfig
from bsmeta.config.task_entry import Row
from bsmeta.core.errors import HYDRA, Problem, format_value
from bsmeta.core.keys import inherit_key, key

# Values of `method`.
AUTO = "auto"
LINEAR = "linear"
FROZEN = "frozen"
COMBINED = "combined"
FINE_TUNE = "fine_tune"

FITTED = (LINEAR, FROZEN, COMBINED)  # methods without training steps, the simplest first

_CSV_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")

POOLINGS = ("mean", "cls", "max", "last")  # the values of `pooling` for a linear head

# Values of `data_config.labels`, beside `auto`.
ONE = "one"
SEVERAL = "several"

HEAD = "head"  # the value of `pooling` for the architecture's own head


@dataclass(frozen=True, kw_only=True)
class ClassificationDataConfig(TableDataConfig):
    """The table of texts and labels, its chunks and its splits."""

    csv: str | None = key(None, is_path=True)
    """the table: .csv with a header or .jsonl (or their .gz), .parquet, or the .sqlite that an
    earlier run made of it"""
    text_column: str = key("text")
    """column of the text"""
    label_column: str = key("label")
    """column of the label, or of a list of labels"""
    labels: str = key(AUTO, choices=(AUTO, ONE, SEVERAL))
    """labels of a text; auto: several if label_separator is set or the first row has a list, else
    one. A table that does not agree is refused"""
    label_separator: str | None = key(None)
    """text between the labels of a cell, such as ; or a comma, for a text with several labels; an
    empty cell has none. Lists of .jsonl and .parquet need no separator"""
    database: str | None = key(None, is_path=True)
    """SQLite file that the table is read into, once; null: beside the CSV file, with its name"""
    csv_separator: str = key("auto")
    """character between columns; auto: , ; tab or |"""
    csv_encoding: str = key("auto")
    """encoding of the file; auto: UTF-8, UTF-16 or UTF-32"""
    on_bad_row: str = key("refuse", choices=("refuse", "skip"))
    """rows without text or label, or with too many or too few columns; skip: leave them out and
    count them"""

    fold_by: str = key("tokens", choices=("tokens", "words"))
    """how a long text becomes several rows of max_length: tokens: at any token; words: between
    words (and at the tokenizer's model_max_length)"""
    max_length: int = key(128, at_least=1)
    """length of a row in tokens, special tokens included (in words with fold_by=words); a longer
    text continues in further rows"""
    split_by: str | None = key(None)
    """column whose values are groups that no split divides (an author, a site); null: rows with
    equal texts stay together"""
    split_fractions: list[float] = key([0.8, 0.1, 0.1])
    """shares of training, validation and test, stratified by label"""
    split_column: str | None = key(None)
    """column with the values train, validation or test, used instead of split_fractions; refused if
    it divides a group of split_by"""
    split_seed: int = key(42, at_least=0, at_most=MAX_SEED)
    """seed of the splits, separate from the seed of the run, so that runs with other seeds are
    comparable"""

    per_device_train_batch_size: int = key(
        16, deepspeed="train_micro_batch_size_per_gpu", at_least=1
    )
    """rows in a micro-batch of one process"""


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(PretrainedConfig):
    """A training run of a text classifier."""

    micro_batch_key: ClassVar[str | None] = "data_config.per_device_train_batch_size"
    training_data_key: ClassVar[str] = "data_config.csv"
    metrics: ClassVar[str | None] = "bsmeta.tasks.classification.metrics:METRICS"

    task: str = inherit_key(PretrainedConfig, "task", "classification")
    data_config: ClassificationDataConfig = key(ClassificationDataConfig)
    """the table of texts and labels"""

    model_name: str = inherit_key(PretrainedConfig, "model_name", "google-bert/bert-base-uncased")
    method: str = key(AUTO, choices=(AUTO, *FITTED, FINE_TUNE))
    """linear: an SVM on TF-IDF of words and pairs of words; frozen: logistic regression on the
    vectors of the encoder as it is; combined: an SVM on both; fine_tune: train the encoder; auto:
    all of them, and export the simplest within one standard error of the best by keep_best_by (by
    macro_f1 if keep_best_by is not a score of texts) on the validation split"""
    auto_cpu_chunks: int = key(50_000, at_least=0)
    """on a CPU, number of training chunks above which method=auto exports linear and tries no
    encoder (0: no limit)"""
    pooling: str = key("mean", choices=(*POOLINGS, HEAD))
    """reduction of the vectors of a row's tokens to one: mean, maximum, or the first (cls) or last
    token; head: the head of AutoModelForSequenceClassification, with method=fine_tune only"""
    head_start: str = key("linear", choices=("linear", "random"))
    """initial weights of the head in fine-tuning; linear: the weights fitted by method=frozen"""
    train_layers: int | None = key(None, at_least=0)
    """number of last layers of the encoder to fine-tune (0: the head alone); null: all layers and
    the embeddings"""
    layer_decay: float = key(1.0, above=0, at_most=1)
    """learning rate of each layer of the encoder relative to the layer above it, in fine-tuning;
    the head and the last layer have learning_rate"""
    dropout: float | None = key(None, at_least=0, below=1)
    """probability of every dropout of the model; null: the values of its config"""
    class_weights: Any = key("none")
    """weight of a row in the loss; balanced: rows / (labels x rows of its label); or a mapping of
    labels to weights, {left: 2, right: 1} (other labels: 1; labels yes and no need quotes). With
    several labels a text: weight of the rows with the label, in the loss of that label, where rows
    without it weigh 1; balanced: rows without the label / rows with it"""
    label_smoothing: float = key(0.0, at_least=0, below=1)
    """share of the target that is spread evenly over all labels; with several labels a text, over
    yes and no of each label"""

    results_dir: str | None = key(None, is_path=True, heading="Results")
    """folder of the result files NAME_testset_predictions.csv, NAME_train_test_stats.json and
    NAME_trained_model.sav; null: the folder of the CSV file"""
    spreadsheet_safe: bool = key(False)
    """put ' before labels in NAME_testset_predictions.csv that a spreadsheet would compute (=1+1);
    false: write labels as they were read"""
    bootstrap_resamples: int = key(2000, at_least=1)
    """number of bootstrap resamples of the test set's texts (or groups) for each interval of the
    report"""

    prep_only: bool = key(False, heading="Data")
    """read the table into its database, and stop"""


def find_value_problems(
    config: ClassificationConfig, _: Composition = EMPTY_COMPOSITION
) -> Iterator[Problem]:
    """Yields the problems of a configuration that do not depend on the launch."""
    yield from _find_table_problems(config)
    table = Path(config.data_config.csv or "")
    yield from find_label_problems(config.data_config, is_csv=table.name.endswith(_CSV_ENDINGS))
    yield from find_model_problems(config)
    yield from _find_tokenizer_problems(config)
    yield from _find_class_weight_problems(config.class_weights)
    yield from find_fraction_problems(config.data_config.split_fractions)
    yield from _find_validation_problems(config)
    yield from _find_method_problems(config)
    yield from _find_results_dir_problems(config)


def _find_table_problems(config: ClassificationConfig) -> Iterator[Problem]:
    """Yields a problem if the table is not set or does not exist."""
    data = config.data_config
    if data.csv is None:
        expected = "a CSV file with a column of texts and a column of labels"
        fix = "data_config.csv=FILE data_config.text_column=NAME data_config.label_column=NAME"
        yield Problem("data_config.csv", HYDRA, "null", expected, fix)
    elif config.accelerate_config_file is None and not os.path.isfile(data.csv):
        yield describe_missing_file(
            "data_config.csv", data.csv, "a CSV file", "correct data_config.csv"
        )


def find_label_problems(config: ClassificationDataConfig, *, is_csv: bool) -> Iterator[Problem]:
    """Yields a problem if `label_separator` is empty, missing, or contradicts `labels`.

    Args:
        is_csv: Whether the table is a CSV file, whose cells cannot be lists.
    """
    separator = config.label_separator
    field = "data_config.label_separator"
    if separator == "":
        expected = "the text between two labels, or null"
        yield Problem(field, HYDRA, '""', expected, f'{field}=";", for example')
    elif config.labels == ONE and separator is not None:
        expected = "null, because data_config.labels=one"
        fix = f"{field}=null, or data_config.labels=several"
        yield Problem(field, HYDRA, format_value(separator), expected, fix)
    elif config.labels == SEVERAL and separator is None and is_csv:
        expected = "the text between the labels of a cell, because data_config.labels=several"
        fix = f'{field}=";", for example, or a table of JSON lines with lists'
        yield Problem(field, HYDRA, "null", expected, fix)


def _find_tokenizer_problems(config: ClassificationConfig) -> Iterator[Problem]:
    """Yields a problem if the tokenizer, which every method needs, cannot be loaded offline."""
    field = "model_name" if config.tokenizer_name is None else "tokenizer_name"
    name = getattr(config, field)
    is_elsewhere = config.accelerate_config_file is not None  # on the machine of the launch file
    if is_elsewhere or is_path(name) or is_on_machine(name) or not is_offline():
        return

    value = f"{format_value(name)}, which is not on this machine, and HF_HUB_OFFLINE is set"
    expected = f"a folder with a tokenizer, by which method={config.method} divides long texts"
    yield Problem(field, HYDRA, value, expected, "tokenizer_name=FOLDER")


def _find_class_weight_problems(weights: Any) -> Iterator[Problem]:
    """Yields a problem if `class_weights` is invalid for any table; labels are checked later."""
    if weights in ("none", "balanced"):
        return

    values = weights.values() if isinstance(weights, Mapping) else [None]
    numbers = [
        value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    if len(numbers) < len(values) or not all(0 < value < math.inf for value in numbers):
        expected = "none, balanced, or labels with weights above 0"
        fix = "class_weights=balanced, or class_weights={LABEL: 2}"
        yield Problem("class_weights", HYDRA, format_value(weights), expected, fix)


def find_fraction_problems(shares: Sequence[float]) -> list[Problem]:
    """Returns a problem if `split_fractions` are not three shares that sum to 1; otherwise []."""
    is_valid = len(shares) == 3 and shares[0] > 0 and min(shares) >= 0
    if is_valid and math.isclose(sum(shares), 1, abs_tol=1e-6):
        return []

    field = "data_config.split_fractions"
    expected = "the shares of training (above 0), validation and test, whose sum is 1"
    fix = f"{field}=[0.8,0.1,0.1], for example"
    return [Problem(field, HYDRA, format_value(list(shares)), expected, fix)]


def _find_validation_problems(config: ClassificationConfig) -> Iterator[Problem]:
    """Yields a problem if `keep_best_by` is set but there is no validation split."""
    if not _lacks_validation(config) or config.keep_best_by is None:
        return

    shares = config.data_config.split_fractions
    expected = f"null, because data_config.split_fractions={shares} leaves no validation split"
    fix = "keep_best_by=null early_stopping_patience=null export_best=false, or a share for it"
    yield Problem("keep_best_by", HYDRA, format_value(config.keep_best_by), expected, fix)


def _lacks_validation(config: ClassificationConfig) -> bool:
    shares = config.data_config.split_fractions
    return config.data_config.split_column is None and len(shares) == 3 and shares[1] == 0


def _find_method_problems(config: ClassificationConfig) -> Iterator[Problem]:
    """Yields a problem for each key whose value does not suit `method`."""
    method = config.method
    if config.pooling == HEAD and method != FINE_TUNE:
        expected = f"mean, cls, max or last, because method={method} needs vectors"
        yield Problem("pooling", HYDRA, HEAD, expected, "pooling=mean, or method=fine_tune")

    # The settings of all fitted systems except linear are chosen on the validation split.
    starts_linear = config.head_start == "linear" and config.pooling != HEAD
    needs_validation = method != LINEAR and (method != FINE_TUNE or starts_linear)
    if _lacks_validation(config) and needs_validation:
        shares = config.data_config.split_fractions
        expected = (
            f"linear or fine_tune, because split_fractions={shares} leaves no validation split"
        )
        fix = "method=fine_tune head_start=random, or a share for it"
        yield Problem("method", HYDRA, method, expected, fix)

    for field, default in (("train_layers", None), ("layer_decay", 1.0)):
        value = getattr(config, field)
        if value != default and (method in FITTED or config.pooling == HEAD):
            expected = f"{format_value(default)} with method={method} pooling={config.pooling}"
            yield Problem(
                field, HYDRA, format_value(value), expected, f"{field}={format_value(default)}"
            )

    if config.export_dtype is not None and method == LINEAR:
        expected = "null: method=linear exports no encoder, and its linear layers stay in float32"
        yield Problem("export_dtype", HYDRA, config.export_dtype, expected, "export_dtype=null")

    if config.estimate and method in FITTED:
        expected = f"false: method={method} has no steps"
        yield Problem("estimate", HYDRA, "true", expected, "method=fine_tune")


def _find_results_dir_problems(config: ClassificationConfig) -> Iterator[Problem]:
    """Yields a problem if `results_dir` is a file."""
    folder = Path(config.results_dir or "")
    if config.results_dir is not None and folder.exists() and not folder.is_dir():
        fix = "results_dir=results, for example"
        yield Problem("results_dir", HYDRA, f"{format_value(str(folder))}, a file", "a folder", fix)


def list_summary_rows(config: ClassificationConfig, _: Launch) -> list[Row]:
    """Returns the rows of the start-up table for the model and the data."""
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
        ("method", f"{config.method}{_describe_encoder_settings(config)}"),
        ("model", model),
        ("tokenizer", _name_tokenizer_source(config)),
        ("table", f"{data.csv}: {data.text_column} → {_describe_labels(data)}"),
        ("chunks", f"{data.max_length:,} {unit}; longer texts are folded"),
        ("splits", splits),
        ("class weights", format_value(config.class_weights)),
    ]


def _describe_labels(data: ClassificationDataConfig) -> str:
    """Describes the label column: its name, and whether a cell has several labels."""
    if data.label_separator is not None:
        return f"{data.label_column} (several labels, separated by {data.label_separator!r})"
    if data.labels == SEVERAL:
        return f"{data.label_column} (lists of labels)"
    return data.label_column


def _describe_encoder_settings(config: ClassificationConfig) -> str:
    """Lists the settings of the encoder, in brackets; "" for a method without one."""
    if config.method == LINEAR:
        return ""

    settings = [f"pooling={config.pooling}"]
    if config.method in (AUTO, FINE_TUNE) and config.pooling != HEAD:
        settings += [
            f"head_start={config.head_start}",
            f"train_layers={format_value(config.train_layers)}",
            f"layer_decay={config.layer_decay:g}",
        ]
    return f" ({', '.join(settings)})"


def _name_tokenizer_source(config: ClassificationConfig) -> str:
    """Describes where the tokenizer is loaded from."""
    name = config.tokenizer_name or config.model_name
    source = name if config.tokenizer_name else f"{name} (that of model_name)"
    return source if is_on_machine(name) else f"{source}; not on this machine, so from the Hub"
