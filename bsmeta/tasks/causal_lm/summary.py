"""The rows and notes that `task=causal_lm` adds to the start-up table."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import pairwise

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.run import uses_model_name
from bsmeta.config.data import (
    BY_TEXT,
    DataConfig,
    local_dataset,
    source_configs,
    train_entries,
    train_files,
)
from bsmeta.config.launch import Launch
from bsmeta.config.metadata import MetadataConfig, phase_starts
from bsmeta.config.steps import BatchPlan, decay_start
from bsmeta.config.summary import evaluations
from bsmeta.config.task_entry import Row
from bsmeta.data.stream.preview import missing_types
from bsmeta.metadata.checks import metadata_notes
from bsmeta.tasks.causal_lm.checks import missing_shards


def rows(config: CausalLMConfig, launch: Launch) -> list[Row]:
    """Rows for model, data and metadata; batch and length of the run are also given in tokens."""
    data = config.data_config
    length = data.metadata_config.max_seq_len
    plan = BatchPlan.of(config, launch.num_processes)
    batch = plan.global_batch
    tokens = "text tokens" if data.row_budget == BY_TEXT else "tokens"
    return [
        ("model", _model(config)),
        ("tokenizer", config.tokenizer_name or f"{config.model_name} (that of model_name)"),
        ("training data", _shards(data) + _not_here(config)),
        ("held-out file", data.validation_file or "– (no evaluation)"),
        (
            "metadata",
            f"{', '.join(data.metadata_config.metadata_list)}; in "
            f"{data.metadata_config.metadata_probability:.0%} of the documents",
        ),
        (
            "global batch",
            f"{plan.micro_batch} (micro-batch) x {plan.accumulation} (accumulation) x "
            f"{plan.processes} (processes) = {batch:,} sequences = {batch * length:,} {tokens} of "
            f"{length:,} a sequence",
        ),
        (
            "steps",
            f"{config.max_train_steps:,} x {batch * length:,} {tokens} = "
            f"{config.max_train_steps * batch * length:,} {tokens}",
        ),
        ("evaluation", evaluations(config) if data.validation_file else "–"),
    ]


def _model(config: CausalLMConfig) -> str:
    if config.model_config_file is not None:
        return f"{config.model_config_file} (random weights)"
    return config.model_name


def _shards(data: DataConfig) -> str:
    named = train_files(data)
    if not data.dataset_name:
        return named
    folder = local_dataset(data)
    return f"{named} in {folder or f'{data.dataset_name} (Hugging Face Hub)'}"


def _not_here(config: CausalLMConfig) -> str:
    """Notes missing shards, if the launch may be on another machine; otherwise they are refused."""
    return "; not on this machine" if missing_shards(config) else ""


_METADATA = "data_config.metadata_config"


def notes(config: CausalLMConfig) -> list[str]:
    """One line for each setting that has no effect."""
    metadata = config.data_config.metadata_config
    return [
        *_unused_model(config),
        *_phases(metadata, config.max_train_steps, decay_start(config, config.max_train_steps)),
        *_excluded(config.data_config),
        *_unused_columns(config.data_config),
        *_row_budget(config.data_config),
        *metadata_notes(metadata),
        *missing_types(config.data_config),
    ]


def _unused_model(config: CausalLMConfig) -> Iterator[str]:
    if config.model_name != CausalLMConfig.model_name and not uses_model_name(config):
        yield (
            f"model_name: {config.model_name} is not used: model_config_file and tokenizer_name "
            "are set"
        )


def _phases(config: MetadataConfig, max_train_steps: int, decay_start: int | None) -> Iterator[str]:
    starts = [*phase_starts(config, max_train_steps, decay_start), max_train_steps]
    for number, (start, end) in enumerate(pairwise(starts)):
        if start == end and config.schedule:
            phase = config.schedule[number]
            reason = (
                "the learning rate of this run never decays (a run of decay_from may have it)"
                if phase.at_decay
                else f"its share of {phase.share:g} is less than one of {max_train_steps:,} steps"
            )
            yield f"{_METADATA}.schedule.{number} never takes place: {reason}"


def _unused_columns(config: DataConfig) -> Iterator[str]:
    """Yields the mapped types that `metadata_list` does not name."""
    used = {"text", *config.metadata_config.metadata_list}
    mapped = dict.fromkeys(name for own in source_configs(config).values() for name in own.columns)
    unused = [name for name in mapped if name not in used]
    if unused:
        yield f"data_config.columns: {', '.join(unused)} not in metadata_list, so not used"


def _row_budget(config: DataConfig) -> Iterator[str]:
    if config.row_metadata_budget is not None and config.row_budget != BY_TEXT:
        yield (
            f"data_config.row_metadata_budget is not used: under row_budget={config.row_budget}, "
            "metadata shares the max_seq_len tokens of a row with the text"
        )


def _excluded(config: DataConfig) -> Iterator[str]:
    """Yields the entries of `exclude` that match none of the training shards on this disk."""
    paths = [entry for _, entry in train_entries(config)]
    if not config.exclude or config.prepared or any("://" in path for path in paths):
        return
    files: list[str] = []
    for path in paths:
        pattern = os.path.join(path, "*") if os.path.isdir(path) else path
        files += glob.glob(pattern, recursive=True)
    for excluded in config.exclude:
        if not any(_matches(file, excluded) for file in files):
            yield f"data_config.exclude: {excluded} matches none of {len(files)} training shards"


def _matches(file: str, pattern: str) -> bool:
    return fnmatch(os.path.basename(file), pattern) or fnmatch(os.path.abspath(file), pattern)
