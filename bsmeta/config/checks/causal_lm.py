"""Checks of `task=causal_lm`: shards, streams, metadata, held-out file, model, speed options.

Those of `data_config` alone (`check_data`) read no data, and also serve programs that do not train.
"""

from __future__ import annotations

import glob
import importlib.util
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.files import file_problems, model_name_problems
from bsmeta.config.checks.problems import HYDRA, Problem, bound_problems, look_up, refuse, show
from bsmeta.config.data import (
    MOST_PARTS,
    SCHEME,
    DataConfig,
    in_dataset,
    parts_of,
    train_entries,
)
from bsmeta.config.launch import Launch

_HELD_OUT = "data_config.validation_file"
_WEB = ("http://", "https://")
_CARD_FORMS = {
    "license": (r"[a-z0-9]+([.-][a-z0-9]+)*", "identifiers of the Hub", "apache-2.0"),
    "datasets": (r"[\w.-]+(/[\w.-]+)?", "names of data sets on the Hub", "OWNER/NAME"),
    "language": (r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*", "codes of ISO 639", "en"),
}


def check_data(config: DataConfig) -> None:
    """Raises an error for values that are wrong whatever the data."""
    refuse([*data_problems(config)])


def data_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields invalid values and invalid combinations of values."""
    yield from bound_problems(config, "data_config.")
    yield from _column_problems("data_config.columns", config.columns)
    yield from _source_problems(config)
    yield from _address_problems(config)
    yield from _pattern_problems(config)
    if config.dataset_revision is not None and not any(
        _takes_revision(entry) for _, entry in _entries(config)
    ):
        expected = "null: nothing is read from the Hub, or only at a revision of its own (@)"
        fix = "leave it out, or name the data as data_config.dataset_name or hf://datasets/…"
        yield _refused(config, "dataset_revision", expected, fix)


def _column_problems(key: str, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yields paths that no record can have, and paths inside the value of another path."""
    paths = {"text": "text", **columns} if columns else {}
    for name, path in paths.items():
        longer = next((other for other in paths.values() if other.startswith(f"{path}.")), None)
        if not all(path.split(".")):
            expected = "a path: the name of a column, or names joined by dots"
            fix = f"{key}.{name}=column.field"
            yield Problem(f"{key}.{name}", HYDRA, show(path), expected, fix)
        elif longer is not None:
            expected = f"a value; {longer} is a field of it"
            yield Problem(f"{key}.{name}", HYDRA, show(path), expected, "map only one of the two")


def _source_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields sources without a name, a file or a weight, of equal names, or beside `train_file`."""
    names = [source.name for source in config.sources]
    for number, source in enumerate(config.sources):
        key = f"data_config.sources.{number}"
        yield from _column_problems(f"{key}.columns", source.columns)
        if not re.fullmatch(r"[\w.-]+", source.name):
            expected = "a name of letters, digits, dots, hyphens and underscores"
            yield Problem(f"{key}.name", HYDRA, show(source.name), expected, f"{key}.name=web")
        elif source.name in names[:number]:
            expected = "a name of its own: another source has this one"
            yield Problem(
                f"{key}.name", HYDRA, show(source.name), expected, f"rename one {source.name}"
            )
        if not source.train_file:
            fix = f"{key}.train_file=FOLDER/*.jsonl.gz (or a list of files)"
            yield Problem(f"{key}.train_file", HYDRA, show(source.train_file), "its shards", fix)
    weights = [source.weight for source in config.sources]
    if (
        weights
        and all(0 < weight < math.inf for weight in weights)
        and sum(parts_of(weights)) > MOST_PARTS
    ):
        found = f"weights {', '.join(map(str, weights))}"
        expected = "weights whose shares are exact in fewer digits"
        fix = f"weights {', '.join(f'{weight / sum(weights):.3f}' for weight in weights)}"
        yield Problem("data_config.sources", HYDRA, found, expected, fix)
    if config.sources and config.train_file is not None:
        expected = "null, because data_config.sources names the shards"
        yield _refused(config, "train_file", expected, "data_config.train_file=null")


def _address_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields files on file systems that cannot be read, by the scheme of their addresses."""
    for key, entry in _entries(config):
        address = re.match(r"([a-z][a-z0-9+.-]*)://", entry, re.IGNORECASE)
        if address is None:
            continue
        by_tensorflow = config.reader == "tf" and key != _HELD_OUT
        scheme = address[0].lower()
        if by_tensorflow and scheme in (SCHEME, *_WEB):
            expected = "a path or address that TensorFlow reads (data_config.reader=tf)"
            yield Problem(key, HYDRA, show(entry), expected, "data_config.reader=native")
        elif not by_tensorflow and scheme != SCHEME:
            expected = f"a path, or a file on the Hugging Face Hub ({SCHEME}datasets/OWNER/NAME/…)"
            fix = f"copy the files here, or mount {scheme}… as a folder, and name the path"
            if key != _HELD_OUT and scheme not in _WEB:
                fix += "; data_config.reader=tf reads what TensorFlow has a file system for"
            if scheme == "file://":
                fix = f"{key}={entry[len(scheme) :]}"
            yield Problem(key, HYDRA, f"{show(entry)} ({scheme})", expected, fix)


def _pattern_problems(config: DataConfig) -> Iterator[Problem]:
    """Yields a local pattern in place of the held-out file: every shard that it matches is one."""
    path = in_dataset(config.validation_file or "", config)
    if "://" in path or not glob.has_magic(path) or os.path.exists(path):
        return
    files = sorted(glob.glob(path, recursive=True))
    matched = f"{len(files)} files" if files else "no file"
    fix = f"{_HELD_OUT}={(files or ['FILE'])[0]}"
    found = f"{show(path)}, a pattern that matches {'1 file' if len(files) == 1 else matched}"
    yield Problem(_HELD_OUT, HYDRA, found, "the path of one file", fix)


def _entries(config: DataConfig) -> Iterator[tuple[str, str]]:
    """The keys that name files and their values, resolved inside `dataset_name` if it is set."""
    entries = [*train_entries(config)]
    if not entries and config.dataset_name:
        entries = [("data_config.dataset_name", in_dataset("", config))]
    yield from entries
    if config.validation_file:
        yield _HELD_OUT, in_dataset(config.validation_file, config)


def _takes_revision(entry: str) -> bool:
    """Whether an entry is read from the Hub and does not name a revision itself."""
    return entry.startswith(SCHEME) and "@" not in "/".join(entry.split("/")[:5])


def _refused(config: DataConfig, name: str, expected: str, fix: str) -> Problem:
    return Problem(f"data_config.{name}", HYDRA, show(getattr(config, name)), expected, fix)


METRICS = (
        "bits_per_byte_with", "bits_per_byte_without", "text_bits_per_byte", "difference",
        "difference_low", "difference_high", "perplexity_with", "perplexity_without",
        "mean_document_difference", "mean_document_difference_low",
        "mean_document_difference_high", "sign_test_p",
    )  # fmt: skip
"""The metrics of an evaluation during training."""


def value_problems(config: CausalLMConfig, overridden: Collection[str] = ()) -> Iterator[Problem]:
    """Yields problems that do not depend on the launch."""
    yield from model_name_problems(config, overridden)
    data = config.data_config
    if data.train_file is None and data.dataset_name is None and not data.sources:
        fix = "data_config.train_file=FOLDER/*.jsonl.gz (or a list of files, or dataset_name)"
        yield Problem("data_config.train_file", HYDRA, "null", "the training shards", fix)
    yield from data_problems(data)
    yield from _card_problems(config)
    yield from file_problems(config)


def _card_problems(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields values that the Hub would reject in the front matter of the model card."""
    for name, (form, expected, example) in _CARD_FORMS.items():
        values = getattr(config.model_card, name)
        if not all(re.fullmatch(form, value) for value in values):
            key = f"model_card.{name}"
            yield Problem(key, HYDRA, show(values), expected, f"{key}=[{example}], for example")


def start_problems(
    config: CausalLMConfig, launch: Launch, document: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields problems that depend on the launch or the DeepSpeed JSON."""
    yield from _streams(config, launch)
    yield from _held_out(config)
    yield from speed_problems(config, launch, document)


def _streams(config: CausalLMConfig, launch: Launch) -> Iterator[Problem]:
    """Yields a problem unless every loader worker of every process gets equally many streams."""
    streams, workers = config.data_config.num_streams, max(1, config.data_config.num_workers)
    readers = launch.num_processes * workers
    if streams >= 1 and streams % readers:
        sum_ = f"{launch.num_processes} (processes) x {workers} (data_config.num_workers)"
        yield Problem(
            key="data_config.num_streams",
            file=HYDRA,
            found=str(streams),
            expected=f"a multiple of {sum_} = {readers}",
            fix=f"data_config.num_streams={-(-streams // readers) * readers}, or (on a resumed "
            "run, which must keep num_streams) other numbers of processes or workers",
        )


def _held_out(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields the keys that need an evaluation although there is no held-out file."""
    best = config.keep_best_by if config.eval_steps else None
    asked = {"keep_best_by": best, "start_with_eval": config.start_with_eval or None}
    for key, value in asked.items():
        if value is not None and config.data_config.validation_file is None:
            expected = "no evaluation, because there is no held-out file"
            fix = f"data_config.validation_file=FILE, or leave {key} out"
            yield Problem(key, HYDRA, show(value), expected, fix)


FLASH, FLEX = "flash_attention_2", "flex_attention"


def speed_problems(
    config: CausalLMConfig, launch: Launch, document: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields options that cannot run here, and keys without effect."""
    yield from _attention(config, launch)
    if config.liger_kernel:
        yield from _only_on_gpus("liger_kernel", True, launch, "liger_kernel=false")
        if importlib.util.find_spec("liger_kernel") is None:
            fix = "pip install liger-kernel, or liger_kernel=false"
            yield Problem("liger_kernel", HYDRA, show(True), "an installed library", fix)
    stage = None if document is None else look_up(document, "zero_optimization.stage")
    if config.torch_compile and stage == 3:
        expected = "false under ZeRO-3, which gathers weights between the compiled operations"
        fix = "torch_compile=false, or ZeRO-2"
        yield Problem("torch_compile", HYDRA, show(True), expected, fix)
    every = config.gradient_checkpointing_every
    if every > 1 and not config.gradient_checkpointing:
        key = "gradient_checkpointing_every"
        expected = "1, because gradient_checkpointing=false recomputes nothing"
        yield Problem(key, HYDRA, show(every), expected, "gradient_checkpointing=true")


def _attention(config: CausalLMConfig, launch: Launch) -> Iterator[Problem]:
    key, found = "attn_implementation", config.attn_implementation
    if found in (FLASH, FLEX):
        yield from _only_on_gpus(key, found, launch, f"{key}=sdpa")
    if found != FLASH:
        return
    if config.mixed_precision == "no":
        expected = "another one in float32: flash attention computes in bf16 or fp16"
        yield Problem(key, HYDRA, show(found), expected, f"mixed_precision=bf16, or {key}=sdpa")
    if config.torch_compile:
        expected = "another one with torch_compile: documents' borders have no fixed shape"
        yield Problem(key, HYDRA, show(found), expected, f"torch_compile=false, or {key}=sdpa")
    if importlib.util.find_spec("flash_attn") is None:
        fix = f"pip install flash-attn, or {key}=sdpa"
        yield Problem(key, HYDRA, show(found), "an installed library (flash_attn)", fix)


def _only_on_gpus(key: str, found: object, launch: Launch, fix: str) -> Iterator[Problem]:
    if launch.gpus == 0:
        yield Problem(key, HYDRA, show(found), "another value: there is no GPU to train on", fix)
