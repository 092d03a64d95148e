"""Load the tokenizer of a run, and check its vocabulary."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.metadata.rendering import Renderer


def load_tokenizer(config: CausalLMConfig) -> PreTrainedTokenizerBase:
    """The tokenizer, with the special tokens of the metadata.

    Raises:
        ConfigurationError: If it cannot be loaded, or has no end-of-text token.
    """
    name = config.tokenizer_name or config.model_name
    tokenizer = tokenizer_of(name)
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(
            f"tokenizer_name: {name} has no end-of-text token; every document ends with it. Name "
            "a tokenizer that has an eos_token"
        )
    special = Renderer(config.data_config.metadata_config).special_tokens()
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    return tokenizer


def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder or on the Hub."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"tokenizer_name: {name} cannot be loaded: {error}. Expected a folder, or a name on "
            "the Hub"
        ) from error
    check_vocabulary(tokenizer, f"tokenizer_name: {name}")
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    """Rejects the default tokenizer that transformers builds for a folder without tokenizer files.

    It only has the special tokens of the model's class, and encodes every text as empty.

    Args:
        where: The key that names it, and its value.
    """
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ConfigurationError(
            f"{where}: there is no tokenizer (it would have {len(tokenizer)} tokens, all special "
            "ones). Expected its files (tokenizer.json, tokenizer_config.json) beside the model: "
            "copy them there"
        )


def padded_tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub name, with a padding token.

    Raises:
        ConfigurationError: If it cannot be loaded, or has no token to pad with.
    """
    tokenizer = tokenizer_of(name)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ConfigurationError(
                f"tokenizer_name: {name} has neither a padding nor an end-of-text token; name a "
                "tokenizer that has a pad_token"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
