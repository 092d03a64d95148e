"""The size of the training data in the start-up table, and the number of epochs of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import build_source_configs
from bsmeta.config.launch import Launch
from bsmeta.config.steps import BatchPlan
from bsmeta.config.task_entry import Row
from bsmeta.data.stream.columns import list_local_shards
from bsmeta.data.stream.data_size import BYTES_PER_TOKEN, DataSize, estimate_data_size

MANY_EPOCHS = 4
"""Maximum number of epochs in which repeated data is worth about as much as new data (Muennighoff
et al. 2023, "Scaling data-constrained language models", arXiv 2305.16264)."""

_LAST_SIZE: dict[str, DataSize | None] = {}
"""The last estimate, keyed by the settings and files that it depends on."""


def list_size_rows(config: CausalLMConfig, launch: Launch) -> Iterator[Row]:
    """Yields the row with the size of the data, if the data is on this machine."""
    size = _find_size(config)
    if size is None:
        return

    token_length = "" if size.is_tokenized else f" ({BYTES_PER_TOKEN:g} bytes each)"
    qualifier = "" if size.is_exact and size.is_tokenized else "about "
    epochs = _count_planned_tokens(config, launch) / size.num_tokens
    yield (
        "data size",
        f"{qualifier}{format_count(size.num_documents)} documents, "
        f"{format_count(size.text_bytes)}B of text, "
        f"{format_count(size.num_tokens)} tokens{token_length}; "
        f"the run reads it {_format_times(epochs)}",
    )


def list_size_notes(config: CausalLMConfig, launch: Launch) -> Iterator[str]:
    """Yields a note if the run repeats its data for more than `MANY_EPOCHS` epochs."""
    size = _find_size(config)
    if size is None:
        return

    planned_tokens = _count_planned_tokens(config, launch)
    epochs = planned_tokens / size.num_tokens
    if epochs > MANY_EPOCHS:
        steps = max(int(MANY_EPOCHS * config.max_train_steps / epochs), 1)
        yield (
            f"max_train_steps={config.max_train_steps}: {format_count(planned_tokens)} tokens are "
            f"{_format_times(epochs)} the training data "
            f"(about {format_count(size.num_tokens)} tokens); "
            f"beyond {MANY_EPOCHS} epochs, repeated data adds little: max_train_steps={steps} "
            f"makes {MANY_EPOCHS} epochs, or lower the global batch"
        )


def format_count(number: float) -> str:
    """Formats a number with three digits and a unit, such as `13.1 G`; no unit below 1,000."""
    units = ["", " k", " M", " G", " T"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        del units[0]
    digits = f"{number:.0f}" if units[0] == "" else f"{number:#.3g}".rstrip(".")
    return f"{digits}{units[0]}"


def _format_times(epochs: float) -> str:
    return f"{epochs:,.0f} times" if epochs >= 10 else f"{epochs:.2g} times"


def _count_planned_tokens(config: CausalLMConfig, launch: Launch) -> int:
    """Counts the tokens in all steps of the run."""
    batch = BatchPlan.of(config, launch.num_processes).global_batch
    return config.max_train_steps * batch * config.data_config.metadata_config.max_seq_len


def _find_size(config: CausalLMConfig) -> DataSize | None:
    """Returns the size of the data, estimated once for the table and its notes; None if unknown."""
    shards = [list_local_shards(data) for data in build_source_configs(config.data_config).values()]
    key = repr((config.data_config, config.tokenizer_name, config.model_name, shards))
    if key not in _LAST_SIZE:
        _LAST_SIZE.clear()
        _LAST_SIZE[key] = _estimate_size(config)
    return _LAST_SIZE[key]


def _estimate_size(config: CausalLMConfig) -> DataSize | None:
    """Estimates the size with the tokenizer of the run, if the tokenizer is on this machine."""
    folder = config.tokenizer_name or config.model_name
    return estimate_data_size(config.data_config, folder if os.path.isdir(folder) else None)
