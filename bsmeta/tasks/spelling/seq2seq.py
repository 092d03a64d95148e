"""The sequence-to-sequence models of `sec`: loading, encoding, and generation."""

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
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.text.tokenizer import tokenizer_of
from bsmeta.models.pretrained import check_files, load_exported
from bsmeta.tasks.spelling.config import SecConfig

IGNORED = -100
"""The label of padding."""


def load_tokenizer(config: SecConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of a run: that of `tokenizer_name`, or of `model_name`."""
    name = str(config.tokenizer_name or config.model_name)
    tokenizer = tokenizer_of(name)
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
