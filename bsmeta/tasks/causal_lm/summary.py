"""The rows that `task=causal_lm` adds to the start-up table."""

from __future__ import annotations

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.files import missing_shards
from bsmeta.config.data import BY_TEXT, DataConfig, local_dataset, train_files
from bsmeta.config.launch import Launch
from bsmeta.config.steps import BatchPlan
from bsmeta.config.summary import evaluations
from bsmeta.config.task_entry import Row


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
