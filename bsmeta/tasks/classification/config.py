"""The schema of `task=classification`: texts of a CSV file, each with a label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bsmeta.config.schema import LARGEST_SEED, PretrainedConfig, TableDataConfig
from bsmeta.core.keys import inherited, key

AUTO, LINEAR, FROZEN, COMBINED, FINE_TUNE = "auto", "linear", "frozen", "combined", "fine_tune"
"""The values of `method`."""
FITTED = (LINEAR, FROZEN, COMBINED)
"""Those without training steps, the simplest first."""
POOLINGS = ("mean", "cls", "max", "last")
"""The values of `pooling` for a linear head."""
HEAD = "head"
"""The value of `pooling` for the architecture's own head."""


@dataclass(kw_only=True)
class ClassificationDataConfig(TableDataConfig):
    """The table of texts and labels, its chunks and its splits."""

    csv: str | None = key(
        None,
        "the table: .csv or .csv.gz with a header, or the .sqlite that an earlier run made of it",
        is_path=True,
    )
    text_column: str = key("text", "column of the text")
    label_column: str = key("label", "column of the label")
    database: str | None = key(
        None,
        "SQLite file that the table is read into, once; null: beside the CSV file, with its name",
        is_path=True,
    )
    csv_separator: str = key("auto", "character between columns; auto: , ; tab or |")
    csv_encoding: str = key("auto", "encoding of the file; auto: UTF-8, UTF-16 or UTF-32")
    on_bad_row: str = key(
        "refuse",
        "a row without text or label, or with too many or too few columns; skip: leave it out, "
        "and count",
        choices=("refuse", "skip"),
    )

    fold_by: str = key(
        "tokens",
        "how a long text becomes several rows of max_length: tokens: at any token; words: between "
        "words (and at the tokenizer's model_max_length)",
        choices=("tokens", "words"),
    )
    max_length: int = key(
        128,
        "length of a row, beyond which a text continues in further rows: tokens, with the special "
        "ones; under fold_by=words: words",
        at_least=1,
    )
    split_by: str | None = key(
        None,
        "column whose values are groups that no split divides (an author, a site); null: rows "
        "with equal texts stay together",
    )
    split_fractions: list[float] = key(
        [0.8, 0.1, 0.1], "shares of training, validation and test, stratified by label"
    )
    split_column: str | None = key(
        None,
        "column that says train, validation or test, instead of split_fractions; refused if it "
        "divides a group of split_by",
    )
    split_seed: int = key(
        42,
        "seed of the splits, apart from that of the run: runs with other seeds are comparable",
        at_least=0,
        at_most=LARGEST_SEED,
    )

    per_device_train_batch_size: int = key(
        16,
        "rows in a micro-batch of one process",
        deepspeed="train_micro_batch_size_per_gpu",
        at_least=1,
    )


@dataclass(kw_only=True)
class ClassificationConfig(PretrainedConfig):
    """A training run of a text classifier."""

    micro_batch_key: ClassVar[str | None] = "data_config.per_device_train_batch_size"
    metrics: ClassVar[tuple[str, ...] | None] = (
        "loss",
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        "mcc",
        "chunk_accuracy",
    )

    task: str = inherited(PretrainedConfig, "task", "classification")
    data_config: ClassificationDataConfig = key(
        ClassificationDataConfig, "the table of texts and labels"
    )

    model_name: str = inherited(PretrainedConfig, "model_name", "google-bert/bert-base-uncased")
    method: str = key(
        AUTO,
        "linear: an SVM on TF-IDF of words and pairs of words; frozen: logistic regression on the "
        "vectors of the encoder as it is; combined: an SVM on both; fine_tune: train the encoder; "
        "auto: all of them, and export the simplest within one standard error of the best by "
        "keep_best_by (by macro_f1 if that is no score of texts) on the validation split",
        choices=(AUTO, *FITTED, FINE_TUNE),
    )
    pooling: str = key(
        "mean",
        "how the vectors of a row's tokens become one: their mean, their maximum, or the first "
        "(cls) or last token; head: by the head of AutoModelForSequenceClassification, under "
        "method=fine_tune only",
        choices=(*POOLINGS, HEAD),
    )
    head_start: str = key(
        "linear",
        "weights that fine-tuning of the head begins with; linear: those of method=frozen",
        choices=("linear", "random"),
    )
    train_layers: int | None = key(
        None,
        "fine-tune only the last layers of the encoder, this many (0: the head alone); null: all, "
        "and the embeddings",
        at_least=0,
    )
    layer_decay: float = key(
        1.0,
        "fine-tuning: each layer of the encoder has this many times the learning rate of the layer "
        "above it; the head and the last layer have learning_rate",
        above=0,
        at_most=1,
    )
    dropout: float | None = key(
        None, "every dropout of the model; null: those of its config", at_least=0, below=1
    )
    class_weights: Any = key(
        "none",
        "what a row counts in the loss; balanced: rows / (labels x rows of its label); or a "
        "mapping of labels to weights, {left: 2, right: 1} (1 for those that it leaves out)",
    )
    label_smoothing: float = key(
        0.0, "share of the target that is spread evenly over all labels", at_least=0, below=1
    )

    results_dir: str | None = key(
        None,
        "folder of the result files NAME_testset_predictions.csv, NAME_train_test_stats.json and "
        "NAME_trained_model.sav; null: that of the CSV file",
        is_path=True,
        heading="Results",
    )
    bootstrap_resamples: int = key(
        2000,
        "resamples of the test set's texts (or groups) for each interval of the report",
        at_least=1,
    )

    prep_only: bool = key(False, "read the table into its database, and stop", heading="Data")
