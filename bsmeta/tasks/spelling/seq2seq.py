"""The model of `sec` and its tokenizer: any seq2seq model, or a small one over bytes.

The small one has absolute positions (Marian's), not T5's relative ones: a correction is mostly a
copy, and a decoder that sees positions learns within minutes to look at the same place of the
source.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    ByT5Tokenizer,
    MarianConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.config.spelling import SecConfig
from bsmeta.data.text.tokenizer import tokenizer_of
from bsmeta.models.pretrained import check_files, load_exported

IGNORED = -100
"""The label of padding."""


def load_tokenizer(config: SecConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of a run: that of `model_name`, or bytes."""
    name = config.tokenizer_name or config.model_name
    tokenizer = ByT5Tokenizer(extra_ids=0) if name is None else tokenizer_of(name)
    if tokenizer.pad_token_id is None or tokenizer.eos_token_id is None:
        raise ConfigurationError(
            f"tokenizer_name: {name} has no padding or no end-of-text token; name the tokenizer of "
            "a sequence-to-sequence model",
            ["tokenizer_name"],
        )
    return tokenizer


def build_seq2seq(config: SecConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model to train: float32, on the CPU.

    Raises:
        ConfigurationError: If it cannot be loaded.
        DataError: If it is damaged.
    """
    if config.model_name is None and config.model_config_file is None:
        return AutoModelForSeq2SeqLM.from_config(_small_shape(config, tokenizer))
    source = str(config.model_config_file or config.model_name)
    try:
        if config.model_config_file is not None:
            return AutoModelForSeq2SeqLM.from_config(AutoConfig.from_pretrained(source))
        check_files(source, f"model_name={source}")
        return AutoModelForSeq2SeqLM.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{source} cannot be loaded: {error}. Expected a folder or a name on the Hub that "
            "AutoModelForSeq2SeqLM knows",
            ["model_name"],
        ) from error


def _small_shape(config: SecConfig, tokenizer: PreTrainedTokenizerBase) -> MarianConfig:
    small = config.small_model
    return MarianConfig(
        vocab_size=len(tokenizer),
        d_model=small.width,
        encoder_layers=small.layers,
        decoder_layers=small.layers,
        encoder_attention_heads=small.heads,
        decoder_attention_heads=small.heads,
        encoder_ffn_dim=4 * small.width,
        decoder_ffn_dim=4 * small.width,
        dropout=small.dropout,
        activation_function="gelu",
        max_position_embeddings=longest_target(config.max_characters * 4),
        scale_embedding=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=None,
        decoder_start_token_id=tokenizer.pad_token_id,
    )


def load_seq2seq(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A trained model in evaluation mode, and its tokenizer.

    Raises:
        DataError: If it is damaged or incomplete.
    """
    model = load_exported(AutoModelForSeq2SeqLM, folder, "model", "task=sec")
    try:
        return model, AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: the model cannot be loaded: {error}") from error


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask`, int64 [texts, tokens]."""
    encoded = tokenizer(list(texts), padding=True, return_tensors="pt", verbose=False)
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def token_counts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[int]:
    """The tokens of each text, with its end."""
    return [len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]] if texts else []


def longest_target(tokens: int) -> int:
    """The largest number of tokens in the correction of a text with that number of tokens."""
    return tokens + tokens // 4 + 8


def generate(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    num_beams: int,
    device: torch.device,
) -> list[str]:
    """The correction of each text, by beam search."""
    inputs = {name: tensor.to(device) for name, tensor in encode(tokenizer, texts).items()}
    plain = cast(
        Any, getattr(model, "module", model)
    )  # engines wrap the model without its `generate`
    with torch.no_grad():
        ids = plain.generate(
            **inputs,
            num_beams=num_beams,
            do_sample=False,
            max_new_tokens=longest_target(inputs["input_ids"].shape[1]),
        )
    return [
        " ".join(text.split()) for text in tokenizer.batch_decode(ids, skip_special_tokens=True)
    ]
