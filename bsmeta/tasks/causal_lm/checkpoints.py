"""Loads the language model of a checkpoint and the configuration of its run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import (
    BY_TEXT,
    REMOTE_SCHEMES,
    DataConfig,
    compute_metadata_room,
    compute_row_length,
    resolve_in_dataset,
)
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.config.saved_runs import change_keys, convert_to_config, read_saved_config
from bsmeta.core.errors import ConfigurationError, DataError, describe_differences
from bsmeta.core.model_files import create_model, read_model_config, read_tokenizer
from bsmeta.data.text.tokenizer import check_vocabulary, count_trained_tokens
from bsmeta.metadata.rendering import Renderer
from bsmeta.models.embeddings import add_embeddings
from bsmeta.models.pretrained import (
    TOKENS_HASH,
    check_model_folder,
    choose_device,
    load_weights,
)
from bsmeta.models.shapes import count_positions
from bsmeta.tasks import TASKS
from bsmeta.tasks.checkpoints import RECIPE, RECIPE_KEYS, Location, read_recipe


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


def has_other_data(config: EvaluateConfig | GenerateConfig, location: Location) -> bool:
    """Whether `validation_file` is a different file from the run's held-out file.

    A local file of the same name counts as the run's if that one no longer exists (it may have been
    moved).
    """
    if config.validation_file is None:
        return False
    data = read_run_config(location, config.training_config, config.overrides).data_config
    if data.validation_file is None:
        return True

    run_file = resolve_in_dataset(data.validation_file, data)
    held_out = resolve_in_dataset(config.validation_file, data)
    if os.path.basename(run_file) != os.path.basename(held_out):
        return True
    if run_file.startswith(REMOTE_SCHEMES) or held_out.startswith(REMOTE_SCHEMES):
        return run_file != held_out
    return os.path.exists(run_file) and os.path.realpath(run_file) != os.path.realpath(held_out)


def read_run_config(
    location: Location, training_config_file: str | None, overrides: Mapping[str, Any]
) -> CausalLMConfig:
    """Returns the configuration that the model was trained with, or the default for a Hub model.

    Args:
        training_config_file: The `config.yaml` of the run; None: the one beside the model.
        overrides: Keys of the configuration to change.

    Raises:
        ConfigurationError: If the configuration cannot be read or is invalid, if it renders
            metadata in another way than the recipe of the model says, or if bsmeta has exported the
            model, and neither file is there.
    """
    path = Path(training_config_file) if training_config_file else location.config
    if path is None:
        _refuse_lost_recipe(location)
        return change_keys(CausalLMConfig(), overrides)
    if path.name == RECIPE:
        return change_keys(_read_recipe_config(path), overrides)

    tasks = {"causal_lm": TASKS["causal_lm"]}
    config = read_saved_config(path, tasks, {})
    assert isinstance(config, CausalLMConfig)
    if training_config_file is None:
        _refuse_other_recipe(config, path, Path(location.model) / RECIPE)
    return change_keys(config, overrides)


def _read_recipe_config(file: Path) -> CausalLMConfig:
    """Reads the recipe of a model; all keys on which rendering does not depend have defaults."""
    return convert_to_config(read_recipe(file), CausalLMConfig, str(file))


def _refuse_lost_recipe(location: Location) -> None:
    """Refuses a model that bsmeta has exported, if the configuration of its metadata is missing.

    Its metadata would be rendered with the default settings, and not as in training.

    Raises:
        ConfigurationError: If `config.json` has an entry that only an export of bsmeta has.
    """
    try:
        is_exported = hasattr(read_model_config(location.model), TOKENS_HASH)
    except (OSError, ValueError):
        return  # reported when the model is loaded
    if is_exported:
        raise ConfigurationError(
            f"checkpoint={location.name}: neither {RECIPE} nor the config.yaml of its run is "
            f"beside the model, although bsmeta has exported it ({TOKENS_HASH} in its "
            "config.json), so it is unknown how its metadata was rendered. Copy "
            f"{RECIPE} from the folder that the model comes from, or try again with a connection "
            "to the Hub; evaluate and generate also take training_config=FILE"
        )


def _refuse_other_recipe(config: CausalLMConfig, config_file: Path, recipe_file: Path) -> None:
    """Refuses a run's configuration that renders metadata in another way than the model's recipe.

    Both were written by the same run, so one of them has been changed, or is of another model.

    Args:
        config_file: The `config.yaml` of the run, for messages.
        recipe_file: The recipe of the model, if the file exists.

    Raises:
        ConfigurationError: Listing the keys with different values.
    """
    if not recipe_file.is_file():
        return
    recipe = _select_rendering_keys(_read_recipe_config(recipe_file).data_config)
    differences = "\n".join(
        describe_differences(
            {"data_config": recipe},
            {"data_config": _select_rendering_keys(config.data_config)},
            f"in {RECIPE}",
            "in config.yaml",
        )
    )
    if differences:
        raise ConfigurationError(
            f"{config_file} renders metadata in another way than {recipe_file}, which was saved "
            "with the weights. Restore the file that was changed; to evaluate other settings than "
            f"those of training, use overrides:\n{differences}"
        )


def _select_rendering_keys(data: DataConfig) -> dict[str, Any]:
    """Returns the values of `RECIPE_KEYS`; the metadata budget only if it has an effect."""
    values = asdict(data)
    rendering_values = {name: values[name] for name in RECIPE_KEYS}
    if data.row_budget != BY_TEXT:
        del rendering_values["row_metadata_budget"]
    return rendering_values


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
    """Refuses a model without embeddings for all tokens, or without positions for all sequences.

    It also refuses a tokenizer without the special tokens of the metadata.
    """
    num_embeddings = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if len(tokenizer) > num_embeddings:
        raise ConfigurationError(
            f"the tokenizer has {len(tokenizer)} tokens, the model {num_embeddings} embeddings: "
            "it is not the tokenizer that the model was trained with"
        )
    _refuse_unknown_special_tokens(tokenizer, data.metadata_config)

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


def _refuse_unknown_special_tokens(
    tokenizer: PreTrainedTokenizerBase, metadata: MetadataConfig
) -> None:
    """Refuses metadata with special tokens that the tokenizer would encode as ordinary text.

    Raises:
        ConfigurationError: Listing the tokens.
    """
    vocabulary = tokenizer.get_vocab()
    special_tokens = Renderer(metadata).list_special_tokens()
    unknown = [token for token in special_tokens if token not in vocabulary]
    if unknown:
        raise ConfigurationError(
            f"data_config.metadata_config: its special tokens {', '.join(map(repr, unknown))} are "
            "not in the tokenizer of the model, which was trained without them; expected the "
            "metadata settings and types of the training"
        )
