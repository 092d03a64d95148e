"""Reads the parts of a tokenizer, in the form of its `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from bsmeta.core.parsing import parse_json

Part = Mapping[str, Any]
"""A part of a `tokenizer.json`; cached and shared by all callers, so it must not be changed."""


def read_parts(tokenizer: Tokenizer) -> Part:
    """Returns the parts of a tokenizer (normalizer, model, added tokens, …) by name."""
    return _parse_parts(tokenizer.to_str())


@lru_cache(maxsize=2)  # called several times at the start; a large vocabulary takes a second
def _parse_parts(content: str) -> Part:
    """Parses the content of a `tokenizer.json`."""
    parts: Part = parse_json(content, object_pairs_hook=dict)
    return parts


def list_pre_tokenizers(part: Part | None) -> list[Part]:
    """Returns the pre-tokenizers of a tokenizer in order, out of nested sequences.

    Args:
        part: The part `pre_tokenizer`.
    """
    if part is None:
        return []
    if "pretokenizers" not in part:
        return [part]

    steps: list[Part] = []
    for inner in part["pretokenizers"]:
        steps += list_pre_tokenizers(inner)
    return steps
