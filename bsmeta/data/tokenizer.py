"""The tokenizer of a run, as its data sees it."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.schema import TrainConfig
from bsmeta.metadata.rendering import Renderer


def load_tokenizer(config: TrainConfig) -> PreTrainedTokenizerBase:
    """The tokenizer, with the special tokens of the metadata.

    Raises:
        ConfigurationError: If it cannot be loaded, or has no end-of-text token.
    """
    name = config.tokenizer_name or config.model_name
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"tokenizer_name: {name} cannot be loaded: {error}. Expected a folder, or a name on "
            "the Hub"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(
            f"tokenizer_name: {name} has no end-of-text token; every document ends with it. Name "
            "a tokenizer that has an eos_token"
        )
    special = Renderer(config.data_config.metadata_config).special_tokens()
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    return tokenizer
