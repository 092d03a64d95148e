"""Sizes of the language model that a transformers config describes.

The config of a multimodal checkpoint (Gemma 3, Qwen3.5, Llama 4) does not have these sizes itself,
but in a nested config. All code that needs a size from a loaded config reads it here;
`config.model_file` reads sizes from a `config.json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def find_text_shape(shape: PretrainedConfig) -> Any:
    """Returns the config of the language model: a nested one, or the config itself.

    If the model has a text encoder and a decoder, this is the decoder's config.
    """
    try:
        return shape.get_text_config()
    except ValueError:  # there are several
        return shape.get_text_config(decoder=True)


def count_positions(shape: PretrainedConfig) -> int | None:
    """Returns the maximum number of positions in a sequence; None: no limit."""
    return getattr(find_text_shape(shape), "max_position_embeddings", None)


def read_hidden_size(shape: PretrainedConfig) -> int:
    """Returns the width of the hidden states."""
    return int(find_text_shape(shape).hidden_size)


def count_layers(shape: PretrainedConfig) -> int | None:
    """Returns the number of layers; None if the config lacks it."""
    return getattr(find_text_shape(shape), "num_hidden_layers", None)


def count_head_groups(shape: PretrainedConfig) -> tuple[int | None, int | None]:
    """Returns the number of attention heads, and of groups that share keys and values.

    Either is None if the config lacks it.
    """
    text = find_text_shape(shape)
    heads = getattr(text, "num_attention_heads", None)
    groups = getattr(text, "num_key_value_heads", None)
    return heads, groups
