"""The encoders of a model: loaded, or of random weights; cut to some layers, partly frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.models.layers import encoder_layers
from bsmeta.models.pretrained import (
    check_files,
    explained,
    model_shape,
    model_source,
    token_limit,
    vocabulary_of,
    whole_weights,
)
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.model import BiEncoder, Settings, bare, saved_shape
from bsmeta.tasks.disambiguation.texts import SPECIAL_TOKENS

MOST_TOKENS = 512
"""Tokens of a text, at most, if the encoder has no limit of its own."""


def build_model(config: DisambiguationConfig, tokenizer: PreTrainedTokenizerBase) -> BiEncoder:
    """The model to train: float32, on the CPU (or without weights, if that is torch's device).

    Raises:
        ConfigurationError: If an encoder cannot be built.
        DataError: If the weights are not those of the encoder.
    """
    _check_lengths(config, most_tokens(config, tokenizer))
    with whole_weights():  # DeepSpeed partitions the module as a whole
        mention_encoder = _encoder(config, tokenizer, config.encoder_layers)
        entity_encoder = None if config.share_encoders else _encoder(config, tokenizer, None)
    if config.train_layers is not None:
        _freeze(mention_encoder, "train_layers", config.train_layers)
    if config.train_entity_layers is not None and entity_encoder is not None:
        _freeze(entity_encoder, "train_entity_layers", config.train_entity_layers)
    model = BiEncoder(mention_encoder, entity_encoder, Settings.of(config))
    if config.model_config_file is None:  # random weights know of no similarity
        model.start_alike()
    return model


def _check_lengths(config: DisambiguationConfig, most: int) -> None:
    for name in ("max_entity_length", "window_length"):
        length = getattr(config.data_config, name)
        if length > most:
            raise ConfigurationError(
                f"data_config.{name}={length}: expected at most {most:,}, the "
                "tokens that the encoder takes"
            )


def _encoder(
    config: DisambiguationConfig, tokenizer: PreTrainedTokenizerBase, layers: int | None
) -> PreTrainedModel:
    key, source = model_source(config)
    shape = model_shape(config, AutoModel)
    if layers is not None:
        _cut(shape, layers)
    is_real = torch.get_default_device().type != "meta"
    with explained(key, source, AutoModel):
        if config.model_config_file is not None or not is_real:
            encoder = AutoModel.from_config(shape, dtype=torch.float32)
        else:
            encoder = _pretrained(source, f"{key}={source}", shape)
    encoder = bare(encoder)
    if is_real:
        _add_tokens(encoder, tokenizer)
    return encoder


def _freeze(encoder: PreTrainedModel, key: str, trained: int) -> None:
    """Leaves only the last layers of an encoder to be trained; `key` is that of their number."""
    layers = encoder_layers(encoder)
    count = len(layers)
    if trained > count:
        raise ConfigurationError(
            f"{key}={trained}: expected at most {count}, the layers of the encoder"
            + ("" if count else " that have weights of their own")
        )
    encoder.requires_grad_(False)
    for layer in layers[count - trained :]:
        layer.requires_grad_(True)


def _cut(shape: Any, layers: int) -> None:
    """Keeps the first layers of an encoder."""
    if layers > shape.num_hidden_layers:
        raise ConfigurationError(
            f"encoder_layers={layers}: expected at most "
            f"{shape.num_hidden_layers}, the layers of the encoder"
        )
    shape.num_hidden_layers = layers


def _pretrained(source: str, where: str, shape: Any) -> PreTrainedModel:
    check_files(source, where)
    model, info = AutoModel.from_pretrained(
        source, config=shape, output_loading_info=True, dtype=torch.float32
    )
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)
    if missing or info["mismatched_keys"]:
        raise DataError(
            f"{where}: its weights are not those of the encoder of its config.json (missing: "
            f"{', '.join(missing[:3]) or 'none'}; of another shape: "
            f"{len(info['mismatched_keys'])}); copy the folder again, or fix its config.json"
        )
    return model


def _add_tokens(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Adds the special tokens of the task: they begin as what ends a text, so as to separate."""
    if len(tokenizer) > vocabulary_of(encoder):
        encoder.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    like = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if like is None:
        return
    weight = encoder.get_input_embeddings().weight
    with torch.no_grad():
        weight[tokenizer.convert_tokens_to_ids([*SPECIAL_TOKENS])] = weight[like].clone()


def most_tokens(config: DisambiguationConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens of a text, with the special ones, that encoder and tokenizer accept.

    Raises:
        ConfigurationError: If the configuration of the encoder cannot be read.
    """
    shape = saved_shape(Path(config.model_name)) or model_shape(config, AutoModel)
    return min(token_limit(shape, tokenizer) or MOST_TOKENS, MOST_TOKENS)
