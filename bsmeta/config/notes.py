"""Notes on settings that are valid but probably unintended: shown below the start-up table.

Invalid settings are refused by the checks; these may still be intended, such as a phase that is
too short for a step.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import pairwise

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.files import uses_model_name
from bsmeta.config.data import DataConfig, source_configs, train_entries
from bsmeta.config.launch import Launch
from bsmeta.config.metadata import MetadataConfig, phase_starts

_METADATA = "data_config.metadata_config"


def notes(config: CausalLMConfig) -> list[str]:
    """One line for each setting of a causal language model's configuration that has no effect."""
    metadata = config.data_config.metadata_config
    return [
        *_model(config),
        *_phases(metadata, config.max_train_steps),
        *_excluded(config.data_config),
        *_unused_columns(config.data_config),
    ]


def launch_notes(launch: Launch) -> Iterator[str]:
    """Yields the options of `accelerate launch` that have no effect."""
    if launch.use_cpu:
        yield (
            "accelerate launch --cpu (use_cpu: true) starts one process on the CPU, and no "
            "DeepSpeed, whatever else its file says"
        )
    if launch.zero_options and not launch.deepspeed:
        yield f"{', '.join(launch.zero_options)} in the environment: this is no DeepSpeed launch"


def _model(config: CausalLMConfig) -> Iterator[str]:
    if config.model_name != CausalLMConfig.model_name and not uses_model_name(config):
        yield (
            f"model_name: {config.model_name} is not used: model_config_file and tokenizer_name "
            "are set"
        )


def _phases(config: MetadataConfig, max_train_steps: int) -> Iterator[str]:
    starts = [*phase_starts(config, max_train_steps), max_train_steps]
    for number, (start, end) in enumerate(pairwise(starts)):
        if start == end and config.schedule:
            yield (
                f"{_METADATA}.schedule.{number} never takes place: its share of "
                f"{config.schedule[number].share:g} is less than one of {max_train_steps:,} updates"
            )


def _unused_columns(config: DataConfig) -> Iterator[str]:
    """Yields the mapped types that `metadata_list` does not name."""
    used = {"text", *config.metadata_config.metadata_list}
    mapped = dict.fromkeys(name for own in source_configs(config).values() for name in own.columns)
    unused = [name for name in mapped if name not in used]
    if unused:
        yield f"data_config.columns: {', '.join(unused)} not in metadata_list, so not used"


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
