"""Reads sizes of a model from its `config.json`, without importing transformers, which is slow.

`models.shapes` reads sizes from a config that transformers has loaded.
"""

from __future__ import annotations

from typing import Any

NESTED_KEYS = ("text_config", "decoder", "generator")
"""Keys below which a language model's config may be nested (transformers' `get_text_config`)."""

_POSITION_KEYS = ("max_position_embeddings", "n_positions")


def find_language_part(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a `config.json` that describes the language model, or else the whole."""
    for key in NESTED_KEYS:
        nested_part = content.get(key)
        if isinstance(nested_part, dict):
            return nested_part
    return content


def read_max_positions(content: dict[str, Any]) -> int | None:
    """Returns the maximum number of positions; None if the config states none."""
    part = find_language_part(content)
    for key in _POSITION_KEYS:
        max_positions = part.get(key)
        if isinstance(max_positions, int):
            return max_positions
    return None
