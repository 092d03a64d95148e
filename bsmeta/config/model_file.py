"""Reads sizes from a model's `config.json` without transformers, which is slow to import.

`models.shapes` reads the same sizes from a config that transformers has loaded.
"""

from __future__ import annotations

from typing import Any

NESTED_KEYS = ("text_config", "decoder", "generator")
"""Keys under which the config of a language model is nested (transformers' `get_text_config`)."""
_POSITION_KEYS = ("max_position_embeddings", "n_positions")


def find_language_part(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a `config.json` that describes the language model, possibly nested."""
    nested = (content.get(key) for key in NESTED_KEYS)
    return next((part for part in nested if isinstance(part, dict)), content)


def read_max_positions(content: dict[str, Any]) -> int | None:
    """Returns the maximum number of positions; None if there is no limit, or none is stated."""
    part = find_language_part(content)
    values = (part.get(key) for key in _POSITION_KEYS)
    return next((value for value in values if isinstance(value, int)), None)
