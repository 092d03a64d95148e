"""Loads the language model of a checkpoint and the configuration of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig, compute_metadata_room, compute_row_length
from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.config.saved_runs import change_keys, convert_to_config, read_saved_config
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.model_files import create_model, read_model_config, read_tokenizer
from bsmeta.data.text.tokenizer import check_vocabulary, count_trained_tokens
from bsmeta.models.embeddings import add_embeddings
from bsmeta.models.pretrained import check_model_folder, choose_device, load_weights
from bsmeta.models.shapes import count_positions
from bsmeta.tasks import TASKS
from bsmeta.tasks.checkpoints import RECIPE, Location, read_recipe


def resolve_config(config: EvaluateConfig, location: Location) -> CausalLMConfig:
    """Returns the training run's configuration with the changes that the evaluation makes."""
    run_config = read_run_config(location, config.training_config, config.overrides)
    data = run_config.data_config
    metadata = data.metadata_config
    if config.metadata_list is not None:  # the run may not have read the columns of these types
        metadata = replace(
            metadata, metadata_list=list(config.metadata_list), metadata_column_list=None
        )
    if config.validation_file is not None:
        data = replace(data, validation_file=config.validation_file)
    if config.per_device_eval_batch_size is not None:
        data = replace(data, per_device_eval_batch_size=config.per_device_eval_batch_size)
    return replace(run_config, data_config=replace(data, metadata_config=metadata))


def read_run_config(
    location: Location, training_config_file: str | None, overrides: Mapping[str, Any]
) -> CausalLMConfig:
    """Returns the configuration that the model was trained with, or the default for a Hub model.

    Args:
        training_config_file: The `config.yaml` of the run; None: the one beside the model.
        overrides: Keys of the configuration to change.
    """
    path = Path(training_config_file) if training_config_file else location.config
    if path is None:
        return change_keys(CausalLMConfig(), overrides)
    if path.name == RECIPE:
        recipe = convert_to_config(read_recipe(path), CausalLMConfig, str(path))
        return change_keys(recipe, overrides)

    config = read_saved_config(path, {"causal_lm": TASKS["causal_lm"]}, overrides)
    assert isinstance(config, CausalLMConfig)
    return config


class OpenedModel:
    """A language model; its configuration is read immediately, its weights on first use.

    Args:
        training_config: The `config.yaml` of its run; None: the one beside it.
        overrides: Keys of that configuration to change.
        precision: `auto`, `float32` or `bfloat16`.
        device: The device of the model; None: a GPU if there is one.

    Attributes:
        run_config: The configuration that it was trained with, after overrides.
    """

    def __init__(
        self,
        location: Location,
        training_config: str | None,
        overrides: Mapping[str, Any],
        *,
        precision: str = "auto",
        device: torch.device | None = None,
    ) -> None:
        self.location = location
        self.run_config = read_run_config(location, training_config, overrides)
        self.device = device or choose_device()
        self._precision = precision

    @cached_property
    def _loaded(self) -> tuple[nn.Module, PreTrainedTokenizerBase]:
        """The model and its tokenizer."""
        transformers.utils.logging.disable_progress_bar()
        return load_model(self.location, self.run_config, self._precision, self.device)

    @property
    def model(self) -> nn.Module:
        """The model, on its device and in evaluation mode."""
        return self._loaded[0]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model."""
        return self._loaded[1]


def load_model(
    location: Location, run_config: CausalLMConfig, precision: str, device: torch.device
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """Loads the model, on `device` and in evaluation mode, and its tokenizer.

    Args:
        run_config: The configuration of the model's run.
        precision: `auto`, `float32` or `bfloat16`.

    Raises:
        UserError: If one of them cannot be loaded, or if they do not match each other or the
            configuration.
    """
    use_bfloat16 = precision == "bfloat16"
    if precision == "auto":
        use_bfloat16 = device.type == "cuda" and run_config.mixed_precision == "bf16"
    dtype = torch.bfloat16 if use_bfloat16 else torch.float32

    setting = f"checkpoint={location.name}"
    if location.untrained:  # only its tokenizer is used
        check_model_folder(location.model, setting)
        tokenizer = _load_tokenizer(location.model, setting)
        model = _make_initial_model(location, run_config, tokenizer, dtype)
    else:
        model = load_weights(location.model, setting, dtype=dtype)
        tokenizer = _load_tokenizer(location.model, setting)

    _check_fit(model, tokenizer, run_config.data_config)
    return model.to(device).eval(), tokenizer


def _load_tokenizer(source: str, setting: str) -> PreTrainedTokenizerBase:
    try:
        tokenizer = read_tokenizer(source)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{setting}: the tokenizer of {source} cannot be loaded: {error}"
        ) from error
    check_vocabulary(tokenizer, setting)
    return tokenizer


def _make_initial_model(
    location: Location,
    run_config: CausalLMConfig,
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
) -> nn.Module:
    """Makes the initial model of a run: random weights, or the weights of its `model_name`."""
    if not location.has_run_config or run_config.model_config_file is not None:
        model_config = read_model_config(location.model)
        with torch.random.fork_rng():
            torch.manual_seed(run_config.seed)
            return create_model(AutoModelForCausalLM, model_config, dtype=dtype)

    setting = f"{location.name}: model_name={run_config.model_name}"
    model = load_weights(run_config.model_name, setting, dtype=dtype)
    num_trained = count_trained_tokens(run_config.model_name, run_config.tokenizer_name, tokenizer)
    add_embeddings(model, len(tokenizer), num_trained)
    return model


def _check_fit(model: nn.Module, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> None:
    """Refuses a model without embeddings for all tokens, or without positions for all sequences."""
    num_embeddings = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if len(tokenizer) > num_embeddings:
        raise ConfigurationError(
            f"the tokenizer has {len(tokenizer)} tokens, the model {num_embeddings} embeddings: "
            "it is not the tokenizer that the model was trained with"
        )

    positions = count_positions(model.config)
    if positions is not None and compute_row_length(data) > positions:
        length = data.metadata_config.max_seq_len
        room = compute_metadata_room(data)
        with_room = f" (and {room} of metadata)" if room else ""
        raise ConfigurationError(
            f"data_config.metadata_config.max_seq_len={length}{with_room}, but the model has only "
            f"{positions} positions; +overrides.data_config.metadata_config.max_seq_len="
            f"{positions // 2 if room else positions}"
        )
