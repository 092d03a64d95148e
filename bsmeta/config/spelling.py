"""The schemas of the spelling tasks: `sed_words`, `sed_sequence` and `sec`.

They share their data, noise and batches, and differ in what the model predicts.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

from bsmeta.config.keys import inherited, key
from bsmeta.config.schema import RunConfig

LEAST_TOKENS = 512
"""Tokens of a step that every process must have at least, as in the published system."""


@dataclass(kw_only=True)
class NoiseConfig:
    """The errors that clean text gets, drawn again for each sample and epoch."""

    method: str = key(
        "mixed",
        "artificial: letters inserted, deleted, swapped or replaced; realistic: known "
        "misspellings; mixed: either",
        choices=("artificial", "realistic", "mixed"),
    )
    word_probability: float = key(0.2, "probability that a word is edited", at_least=0, at_most=1)
    artificial_share: float = key(
        0.2, "mixed: share of the edited words with artificial errors", at_least=0, at_most=1
    )
    edit_probability: float = key(
        0.8,
        "artificial: p of the geometric distribution of the edits of a word",
        above=0,
        at_most=1,
    )
    letters: str = key(
        string.ascii_letters, "artificial: the letters that are inserted, or replace others"
    )
    clean_share: float = key(0.0, "share of the samples without errors", at_least=0, below=1)
    misspellings: str = key(
        "codespell",
        "what words are misspelled as: codespell (the dictionary of that package), or a JSON file "
        "{word: [misspelling, …]}",
        is_path=True,
    )
    learned_characters: bool = key(
        True,
        "edit the letters of a word that has no known misspelling as those of words that have",
    )


@dataclass(kw_only=True)
class SmallModelConfig:
    """A model of random weights, where no model is named."""

    width: int = key(192, "width of every layer", at_least=8)
    layers: int = key(3, "layers of the encoder (sec: and of the decoder)", at_least=1)
    heads: int = key(4, "attention heads; they must divide width", at_least=1)
    dropout: float = key(0.1, "dropout", at_least=0, below=1)
    character_width: int = key(
        48, "detection: width of a byte before the convolutions over a word", at_least=4
    )
    word_bytes: int = key(
        24, "detection: bytes of a word that are read; a longer word loses its middle", at_least=4
    )


@dataclass(kw_only=True)
class SpellingConfig(RunConfig):
    """What all spelling tasks share."""

    document: dict[str, Any] = key(
        {},
        "a configuration file of the published system, for ${document.KEY} in the keys below",
        heading="Data",
    )
    datasets: list[str] = key(
        [],
        "texts to train on: files, folders or globs of .txt (one text a line), .jsonl (also .gz)",
        is_path=True,
    )
    dataset_limits: list[int] = key(
        [], "number of samples to use of each of the datasets; []: all", at_least=1
    )
    val_splits: list[float] = key(
        [0.05],
        "samples of each data set to validate on: a number from 1, or a share below 1 (and the "
        "other samples of the last text of them); one value for all, or one for each",
        at_least=0,
        finite=True,
    )
    text_column: str = key(
        "auto", "key of the text in JSON lines; auto: the first of sequence, text and sentence"
    )
    target_column: str = key(
        "target_sequence", "key of the correct text; where it is missing, the text gets noise"
    )
    max_characters: int = key(
        512, "longer texts are cut at sentences, and longer sentences between words", at_least=16
    )
    min_prose_share: float = key(
        0.0,
        "leave out samples with a smaller share of words of letters only: code and tables",
        at_least=0,
        at_most=1,
    )
    store_dir: str = key(
        "runs/spelling_store",
        "folder for the prepared samples of these settings, which later runs read",
        is_path=True,
    )
    noise: NoiseConfig = key(NoiseConfig, "the errors that clean text gets")

    batch_max_length: int = key(
        4096,
        f"padded tokens of a step over all processes; at least {LEAST_TOKENS} a process",
        at_least=LEAST_TOKENS,
        heading="Batches",
    )
    bucket_span: int = key(
        4, "samples are ordered by length // bucket_span, and cut into steps", at_least=1
    )
    batch_shares: int | None = key(
        None,
        "parts into which every step can be divided: processes x gradient_accumulation_steps must "
        "divide it; null: the largest power of 2 that leaves each of them "
        f"{LEAST_TOKENS} tokens, at most 64",
        at_least=1,
    )
    num_workers: int = key(
        0, "loader processes of each rank (0: in the training process)", at_least=0
    )

    model_name: str | None = key(
        None,
        "a folder or Hub name to start from; null: random weights (of small_model, unless "
        "model_config_file)",
        is_path=True,
        heading="Model",
    )
    model_config_file: str | None = key(
        None,
        "JSON of a transformers config: random weights of this shape, with tokenizer_name",
        is_path=True,
    )
    tokenizer_name: str | None = key(None, "a folder or Hub name; null: model_name", is_path=True)
    small_model: SmallModelConfig = key(SmallModelConfig, "the model without the keys above")
    word_list: str | None = key(
        None,
        "words with counts that the small detector knows beside those of the training text: a file "
        "of lines `word count`, or symspellpy (the English list of that package); the dictionary "
        "baseline has this list, too (null: symspellpy)",
        is_path=True,
    )

    benchmarks: str | None = key(
        None,
        "folder of test sets TASK/GROUP/SPLIT/{corrupt,correct}.txt, scored after the last step",
        is_path=True,
        heading="Results",
    )
    benchmark_lines: int | None = key(
        None, "number of lines to score of each test set; null: all", at_least=1
    )
    bootstrap_resamples: int = key(
        2000, "resamples of the lines of a test set for each interval", at_least=1
    )


@dataclass(kw_only=True)
class DetectionConfig(SpellingConfig):
    """What the two tasks that detect errors share."""

    hidden_counts: float = key(
        0.5,
        "share of the training samples in which the small model does not see how frequent a word "
        "is in the training text: other texts have more words that it does not know",
        at_least=0,
        at_most=1,
        heading="Detection",
    )
    wanted_precision: float = key(
        0.95,
        "a second threshold is chosen on the validation samples for this precision, and saved",
        above=0,
        at_most=1,
    )
    abstains: bool = key(
        False,
        "flag only what reaches the saved threshold for wanted_precision, not all that is more "
        "likely wrong than right (predict.py, evaluate.py: +overrides.abstains=true)",
    )


@dataclass(kw_only=True)
class SedWordsConfig(DetectionConfig):
    """A training run that detects the words with errors."""

    task: str = inherited(RunConfig, "task", "sed_words")


@dataclass(kw_only=True)
class SedSequenceConfig(DetectionConfig):
    """A training run that detects the sequences with errors."""

    task: str = inherited(RunConfig, "task", "sed_sequence")


@dataclass(kw_only=True)
class SecConfig(SpellingConfig):
    """A training run that corrects errors, sequence to sequence."""

    task: str = inherited(RunConfig, "task", "sec")

    num_beams: int = key(
        1, "beams of the search in `generate`; 1: greedy", at_least=1, heading="Correction"
    )
    detector: str | None = key(
        None,
        "model/ of a run of sed_words: only words that it flags are changed; null: all may be",
        is_path=True,
    )
    val_corrections: int = key(
        100, "validation samples to correct at each evaluation (the loss is over all)", at_least=1
    )
