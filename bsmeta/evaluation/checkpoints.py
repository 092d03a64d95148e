"""Locates a checkpoint, loads what it contains, and checks what it was trained on.

A held-out file that was part of the training data is reported.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import hf_hub_download
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import (
    SCHEME,
    DataConfig,
    metadata_room,
    row_length,
    source_configs,
    train_entries,
)
from bsmeta.config.evaluation import EvaluateConfig, training_config
from bsmeta.core.errors import ConfigurationError, DataError, UserError
from bsmeta.data.io.files import size_of
from bsmeta.data.io.hub import FileRef
from bsmeta.data.io.shards import (
    Shard,
    list_shards,
    shards_fingerprint,
    validation_path,
)
from bsmeta.data.text.tokenizer import check_vocabulary
from bsmeta.models.pretrained import check_files, default_device, load_weights

HUB = "hf://"
RECIPE = "metadata.yaml"
"""File in an exported model with the part of the run's configuration that using it requires."""

_CHECKPOINT = re.compile(r"checkpoint-(\d+)step")


@dataclass(frozen=True, slots=True)
class Location:
    """A checkpoint that was found.

    Attributes:
        name: The checkpoint as the user gave it.
        model: The argument of `from_pretrained`: a folder, or a Hub name.
        config: `config.yaml` of the run, or the model's own `metadata.yaml`, if there is one.
        run_folder: The run's folder (with its `metrics.jsonl`), if there is one.
        untrained: Whether this refers to the initial model of the run.
    """

    name: str
    model: str
    config: Path | None
    run_folder: Path | None
    untrained: bool = False

    @property
    def is_on_hub(self) -> bool:
        """Whether the model is a Hub repository rather than a folder."""
        return not Path(self.model).is_dir()

    @property
    def has_run_config(self) -> bool:
        """Whether `config` is the complete configuration of the run."""
        return self.config is not None and self.config.name != RECIPE


def locate(checkpoint: str) -> Location:
    """Find the model in a run folder, a checkpoint folder, a model folder, or on the Hub."""
    if checkpoint.startswith(HUB):
        name = checkpoint.removeprefix(HUB)
        return Location(checkpoint, name, _recipe_on_hub(name), None)
    folder = Path(checkpoint)
    if not folder.is_dir():
        raise DataError(
            f"checkpoint={checkpoint}: there is no such folder (from {Path.cwd()}). Expected a run "
            "folder, a checkpoint-{step}step folder, or a folder that from_pretrained loads; "
            f"a model of the Hub is named {HUB}owner/name"
        )
    model = _model_folder(folder)
    if model is None:
        raise DataError(
            f"checkpoint={checkpoint}: no model in it. Expected config.json, model/config.json or "
            "a checkpoint-{step}step folder (a run has its first at save_steps)"
        )
    near = [folder / "config.yaml" for folder in (model, *model.resolve().parents[:2])]
    config = next((path for path in (*near, model / RECIPE) if path.is_file()), None)
    above = [folder.resolve(), *folder.resolve().parents[:2]]
    run_folder = next((folder for folder in above if (folder / "metrics.jsonl").is_file()), None)
    return Location(checkpoint, str(model), config, run_folder)


def untrained(location: Location) -> Location:
    """The initial model of the run that wrote this checkpoint."""
    return replace(location, name=f"untrained ({location.name})", untrained=True)


def _recipe_on_hub(name: str) -> Path | None:
    """The `metadata.yaml` of a repository; None if it has none or cannot be accessed.

    Problems with the repository itself are reported when its model is loaded.
    """
    try:
        return Path(hf_hub_download(name, RECIPE))
    except (OSError, ValueError):
        return None


def _model_folder(folder: Path) -> Path | None:
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    steps = []
    for entry in folder.iterdir():
        if (match := _CHECKPOINT.fullmatch(entry.name)) and (entry / "model/config.json").is_file():
            steps.append((int(match[1]), entry))
    return max(steps)[1] / "model" if steps else None


def resolve_config(config: EvaluateConfig, location: Location) -> CausalLMConfig:
    """The training run's configuration with the changes that the evaluation makes."""
    train = run_config(location, config.training_config, config.overrides)
    data, metadata = train.data_config, train.data_config.metadata_config
    if config.metadata_list is not None:  # the run may not have read the columns of these types
        metadata = replace(
            metadata, metadata_list=list(config.metadata_list), metadata_column_list=None
        )
    if config.validation_file is not None:
        data = replace(data, validation_file=config.validation_file)
    if config.per_device_eval_batch_size is not None:
        data = replace(data, per_device_eval_batch_size=config.per_device_eval_batch_size)
    return replace(train, data_config=replace(data, metadata_config=metadata))


def run_config(
    location: Location, training_config_file: str | None, overrides: Mapping[str, Any]
) -> CausalLMConfig:
    """The configuration that the model was trained with, after overrides."""
    path = Path(training_config_file) if training_config_file else location.config
    return training_config(path, overrides)


class OpenedModel:
    """A language model whose configuration is read at once, and its weights on first use.

    Args:
        training_config: The `config.yaml` of its run; None: the one beside it.
        overrides: Keys of that configuration to change.
        precision: `auto`, `float32` or `bfloat16`.
        device: None: a GPU if there is one.

    Attributes:
        location: Where it was found.
        train: The configuration that it was trained with, after overrides.
        device: Where it runs.
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
        self.train = run_config(location, training_config, overrides)
        self.device = device or default_device()
        self._precision = precision

    @cached_property
    def _loaded(self) -> tuple[nn.Module, PreTrainedTokenizerBase]:
        transformers.utils.logging.disable_progress_bar()
        return load_model(self.location, self.train, self._precision, self.device)

    @property
    def model(self) -> nn.Module:
        """The model, on its device and in evaluation mode."""
        return self._loaded[0]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer."""
        return self._loaded[1]


def load_model(
    location: Location, train: CausalLMConfig, precision: str, device: torch.device
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """The model, on its device and in evaluation mode, and its tokenizer."""
    dtype = _dtype(precision, train.mixed_precision, device)
    where = f"checkpoint={location.name}"
    if location.untrained:  # only its tokenizer is used
        check_files(location.model, where)
        tokenizer = _load_tokenizer(location.model, where)
        model = _first_model(location, train, len(tokenizer), dtype)
    else:
        model = load_weights(location.model, where, dtype=dtype)
        tokenizer = _load_tokenizer(location.model, where)
    _check_fit(model, tokenizer, train.data_config)
    return model.to(device).eval(), tokenizer


def _load_tokenizer(source: str, where: str) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: the tokenizer of {source} cannot be loaded: {error}") from error
    check_vocabulary(tokenizer, where)
    return tokenizer


def _first_model(
    location: Location, train: CausalLMConfig, vocabulary: int, dtype: torch.dtype
) -> nn.Module:
    """The initial model of a run: random weights, or those of the configured `model_name`."""
    if not location.has_run_config or train.model_config_file is not None:
        shape = AutoConfig.from_pretrained(location.model)
        with torch.random.fork_rng():
            torch.manual_seed(train.seed)
            return AutoModelForCausalLM.from_config(shape, dtype=dtype)
    where = f"{location.name}: model_name={train.model_name}"
    model = load_weights(train.model_name, where, dtype=dtype)
    if vocabulary > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(vocabulary)  # the special tokens that training added
    return model


def _dtype(precision: str, trained_in: str, device: torch.device) -> torch.dtype:
    if precision == "auto":
        use_bfloat16 = device.type == "cuda" and trained_in == "bf16"
        return torch.bfloat16 if use_bfloat16 else torch.float32
    return torch.float32 if precision == "float32" else torch.bfloat16


def _check_fit(model: nn.Module, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> None:
    rows = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if len(tokenizer) > rows:
        raise ConfigurationError(
            f"the tokenizer has {len(tokenizer)} tokens, the model {rows} embeddings: "
            "it is not the tokenizer that the model was trained with"
        )
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and row_length(data) > longest:
        length, room = data.metadata_config.max_seq_len, metadata_room(data)
        with_room = f" (and {room} of metadata)" if room else ""
        raise ConfigurationError(
            f"data_config.metadata_config.max_seq_len={length}{with_room}, but the model has only "
            f"{longest} positions; +overrides.data_config.metadata_config.max_seq_len="
            f"{longest // 2 if room else longest}"
        )


def check_not_trained_on(data: DataConfig, location: Location, train: CausalLMConfig) -> None:
    """Reject a held-out file that is one of the run's training shards.

    The shards are those that a checkpoint of the run lists, and those in its configuration that
    still exist on this machine. Local shards are identified by their content, shards on the Hub by
    name and size.

    Args:
        data: The data configuration of the evaluation.
        train: The configuration of its run, without the changes that the evaluation makes.
    """
    path = validation_path(data)
    if not path or not (isinstance(path, FileRef) or os.path.isfile(path)):
        return  # reported when it is read
    own = Shard(os.path.basename(str(path)), path, size_of(path))
    content = _content(own)
    same = [
        name
        for name, listed in _listed_by_checkpoint(location).items()
        if listed == content and (os.path.basename(name) == own.name or isinstance(listed, dict))
    ]
    same += [
        str(shard.path)
        for shard in _on_this_machine(train)
        if shard.size == own.size and _content(shard) == content
    ]
    if same:
        raise DataError(
            f"validation_file={path}: the run of checkpoint={location.name} was trained on it (as "
            f"{same[0]}); expected a file that it was not trained on, such as "
            f"validation_file={train.data_config.validation_file}"
        )


def _content(shard: Shard) -> Any:
    """A shard's entry in the fingerprint of a run: its size, and a hash if it is local."""
    return shards_fingerprint([shard])[shard.name]


def _listed_by_checkpoint(location: Location) -> dict[str, Any]:
    """Training shards and their fingerprints as listed by a checkpoint of the run; {} if none."""
    folders = [Path(location.model).parent, Path(location.name)]
    if location.run_folder is not None:
        folders += sorted(location.run_folder.glob("checkpoint-*step"))
    for folder in folders:
        try:
            state = json.loads((folder / "data_state.json").read_text(encoding="utf-8"))
            return dict(state["fingerprint"]["shards"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}


def _on_this_machine(train: CausalLMConfig) -> list[Shard]:
    """The training shards of the configuration, if all of them are local files."""
    data = train.data_config
    if any(entry.startswith(SCHEME) for _, entry in train_entries(data)):
        return []
    try:
        return [
            shard
            for own in source_configs(data).values()
            if own.train_file
            for shard in list_shards(own)
        ]
    except UserError:  # they were moved or deleted
        return []
