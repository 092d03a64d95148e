"""The sizes of the language model that a transformers config describes.

The config of a checkpoint that also sees or hears (Gemma 3, Qwen3.5, Llama 4) has none of them
itself: they are in a config nested in it. All code that needs a size of a loaded config reads it
here. `config.model_file` reads those of a `config.json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def text_shape(shape: PretrainedConfig) -> Any:
    """The config of the language model in a config: a nested one, or the config itself."""
    try:
        return shape.get_text_config()
    except ValueError:  # it has one for an encoder of text, and one for a decoder
        return shape.get_text_config(decoder=True)


def positions_of(shape: PretrainedConfig) -> int | None:
    """The most tokens that the model has positions for; None: without a limit."""
    return getattr(text_shape(shape), "max_position_embeddings", None)


def hidden_size_of(shape: PretrainedConfig) -> int:
    """The width of the hidden states."""
    return int(text_shape(shape).hidden_size)


def layers_in(shape: PretrainedConfig) -> int | None:
    """The number of layers; None if the config does not say it."""
    return getattr(text_shape(shape), "num_hidden_layers", None)


def head_groups(shape: PretrainedConfig) -> tuple[int | None, int | None]:
    """The numbers of attention heads, and of the groups that share keys and values."""
    text = text_shape(shape)
    return getattr(text, "num_attention_heads", None), getattr(text, "num_key_value_heads", None)
