"""Checks and summary of a spelling run, before anything is loaded."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from bsmeta.config.checks.run import is_path, missing
from bsmeta.config.hydra_ext import unread_keys
from bsmeta.config.launch import Launch
from bsmeta.config.task_entry import Row
from bsmeta.core.problems import HYDRA, Problem, bound_problems, show
from bsmeta.tasks.spelling.config import (
    CODESPELL,
    LEAST_TOKENS,
    SYMSPELLPY,
    WORDFREQ,
    SecConfig,
    SpellingConfig,
)

MOST_SHARES = 64  # of a step, unless batch_shares is set


def value_problems(config: SpellingConfig, _: Collection[str] = ()) -> Iterator[Problem]:
    """Yields problems that do not depend on the launch."""
    yield from _data(config)
    yield from _model(config)
    yield from _batches(config)
    yield from _packages(config)
    noise = config.noise
    if noise.misspellings != CODESPELL and not os.path.isfile(noise.misspellings):
        fix = "noise.misspellings=codespell, or a JSON file {word: [misspelling, …]}"
        yield missing("noise.misspellings", noise.misspellings, "codespell, or a file", fix)
    if not noise.letters.isalpha():
        fix = "noise.letters=abcdefghijklmnopqrstuvwxyz"
        yield Problem("noise.letters", HYDRA, show(noise.letters), "letters, without spaces", fix)
    if noise.accent_share + noise.slip_share > 1:
        found = show(noise.accent_share + noise.slip_share)
        expected = "at most 1, with noise.accent_share"
        yield Problem("noise.slip_share", HYDRA, found, expected, "noise.slip_share=0.5")
    if config.benchmarks is not None and not os.path.isdir(config.benchmarks):
        expected = "a folder of TASK/GROUP/SPLIT/{corrupt,correct}.txt"
        yield missing("benchmarks", config.benchmarks, expected, "correct benchmarks")


def _packages(config: SpellingConfig) -> Iterator[Problem]:
    """Yields what is not installed but will be needed, perhaps only after the last step."""
    noise = config.noise
    if noise.method != "artificial" and noise.misspellings == CODESPELL:
        yield from _uninstalled(
            "noise.misspellings",
            noise.misspellings,
            "codespell_lib",
            "noise.misspellings=FILE.json",
        )
    if config.benchmarks is not None:
        yield from _uninstalled("benchmarks", config.benchmarks, "symspellpy", "benchmarks=null")


def _uninstalled(key: str, value: str, module: str, instead: str) -> Iterator[Problem]:
    if find_spec(module) is None:
        package = module.removesuffix("_lib")
        expected = f"the package {package}, which is not installed"
        yield Problem(key, HYDRA, show(value), expected, f"pip install {package}, or {instead}")


def _data(config: SpellingConfig) -> Iterator[Problem]:
    if not config.datasets:
        expected = "at least one file, folder or glob of .txt or .jsonl"
        yield Problem("datasets", HYDRA, "[]", expected, "datasets=[FILE]")
    if config.accelerate_config_file is None:
        for name in config.datasets:
            if not os.path.exists(name) and not glob.glob(name, recursive=True):
                yield missing("datasets", name, "a file, a folder or a glob", "correct datasets")
    count = len(config.datasets)
    for key in ("dataset_limits", "val_splits"):
        values = getattr(config, key)
        if len(values) not in (0, 1, count):
            expected = f"one value for all {count} datasets, or one for each"
            yield Problem(key, HYDRA, show(list(values)), expected, f"correct {key}")
    for split in config.val_splits:
        if 1 <= split < math.inf and split != int(split):
            expected = "a number of samples from 1, or a share below 1"
            yield Problem("val_splits", HYDRA, show(split), expected, "val_splits=[0.05]")
    if not any(config.val_splits) and config.keep_best_by is not None:
        expected = "null, because val_splits leaves nothing to validate on"
        fix = "keep_best_by=null early_stopping_patience=null export_best=false, or val_splits"
        yield Problem("keep_best_by", HYDRA, show(config.keep_best_by), expected, fix)


def _model(config: SpellingConfig) -> Iterator[Problem]:
    """Yields missing local files; names that may be on the Hub (OWNER/NAME) are not checked."""
    for key in ("model_config_file", "model_name", "tokenizer_name"):
        name = getattr(config, key)
        if name is not None and is_path(name) and not os.path.exists(name):
            yield missing(key, name, "a folder or file, or a name on the Hub", f"correct {key}")
    if config.model_config_file and not (config.tokenizer_name or config.model_name):
        expected = "the tokenizer of the model of model_config_file"
        yield Problem("tokenizer_name", HYDRA, "null", expected, "tokenizer_name=FOLDER")
    small = config.small_model
    if small.heads >= 1 and small.width % small.heads:
        expected = f"a divisor of small_model.width={small.width}"
        yield Problem(
            "small_model.heads", HYDRA, show(small.heads), expected, "small_model.heads=4"
        )
    if isinstance(config, SecConfig) and not os.path.isdir(config.detector or "."):
        expected = "model/ of a run of sed_words"
        yield missing("detector", str(config.detector), expected, "correct detector")
    for name in config.word_lists:
        if name.partition(":")[0] in (SYMSPELLPY, WORDFREQ):
            yield from _uninstalled("word_lists", name, name.partition(":")[0], "word_lists=[]")
        elif not os.path.isfile(name):
            expected = "symspellpy, wordfreq, or a file of lines `word count`"
            yield missing("word_lists", name, expected, "correct word_lists")
    if config.dictionary is not None and not os.path.isfile(config.dictionary):
        yield missing(
            "dictionary", config.dictionary, "a file of lines `word count`", "dictionary=null"
        )


def _batches(config: SpellingConfig) -> Iterator[Problem]:
    shares = config.batch_shares
    if shares is not None and config.batch_max_length < LEAST_TOKENS * shares:
        expected = f"at least {LEAST_TOKENS} tokens for each of batch_shares={shares}"
        fix = f"batch_max_length={LEAST_TOKENS * shares}, or fewer batch_shares"
        yield Problem("batch_max_length", HYDRA, show(config.batch_max_length), expected, fix)


def shares_of(config: SpellingConfig) -> int:
    """The parts into which every step can be divided."""
    if config.batch_shares is not None:
        return config.batch_shares
    return min(1 << ((config.batch_max_length // LEAST_TOKENS).bit_length() - 1), MOST_SHARES)


def start_problems(
    config: SpellingConfig, launch: Launch, _: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields steps that the processes of the launch cannot divide."""
    accumulation, processes = config.gradient_accumulation_steps, launch.num_processes
    bounds = {problem.key for problem in bound_problems(config)}
    if bounds & {"gradient_accumulation_steps", "batch_shares", "batch_max_length"}:
        return
    shares, parts = shares_of(config), accumulation * processes
    if shares % parts:
        product = f"{processes} (processes) x {accumulation} (gradient_accumulation_steps)"
        needed = -(-shares // parts) * parts
        fix = f"batch_shares={needed}"
        if LEAST_TOKENS * needed > config.batch_max_length:
            fix += f" batch_max_length={LEAST_TOKENS * needed}, or fewer parts"
        found = show(config.batch_shares) + (f" ({shares})" if config.batch_shares is None else "")
        yield Problem("batch_shares", HYDRA, found, f"a multiple of {product} = {parts}", fix)


def summary_rows(config: SpellingConfig, _: Launch) -> list[Row]:
    """Rows for model and data."""
    small, noise = config.small_model, config.noise
    model = f"candidates, ranked by {small.layers} layers of width {small.width}"
    if config.model_config_file is not None:
        model = f"{config.model_config_file} (random weights)"
    elif config.model_name is not None:
        model = config.model_name
    errors = {
        "artificial": "artificial",
        "realistic": f"misspellings of {noise.misspellings}",
        "mixed": f"misspellings of {noise.misspellings}, {noise.artificial_share:.0%} artificial",
    }[noise.method]
    return [
        ("model", model),
        ("data sets", ", ".join(config.datasets)),
        ("errors", f"{errors}; in {noise.word_probability:.0%} of the words"),
        (
            "global batch",
            f"{config.batch_max_length:,} padded tokens; buckets of {config.bucket_span}",
        ),
    ]


def notes(config: SpellingConfig) -> Iterator[str]:
    """Yields what a configuration of the published system says that has no effect here."""
    unread = unread_keys("document")
    if unread:
        yield f"{', '.join(unread)}: without a counterpart here, so not used"
    kind = (config.document.get("lr_scheduler") or {}).get("type", "")
    if unread and str(kind).startswith("STEP"):
        falls = f"falls as lr_scheduler_type={config.lr_scheduler_type}, not in steps"
        yield f"document.lr_scheduler.type: {kind}: the learning rate {falls}"
