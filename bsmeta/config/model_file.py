"""The sizes in a model's `config.json`, for code that does without transformers, which is slow to
import. `models.shapes` reads the same sizes from a config that transformers has loaded.
"""

from __future__ import annotations

from typing import Any

NESTED_KEYS = ("text_config", "decoder", "generator")
"""Keys under which the config of a language model is nested (transformers' `get_text_config`)."""
_POSITION_KEYS = ("max_position_embeddings", "n_positions")


def find_language_part(content: dict[str, Any]) -> dict[str, Any]:
    """The part of a `config.json` that describes the language model: a nested one, or all of it."""
    nested = (content.get(key) for key in NESTED_KEYS)
    return next((part for part in nested if isinstance(part, dict)), content)


def read_max_positions(content: dict[str, Any]) -> int | None:
    """The most tokens that the model has positions for; None: without a limit, or not written."""
    part = find_language_part(content)
    values = (part.get(key) for key in _POSITION_KEYS)
    return next((value for value in values if isinstance(value, int)), None)
