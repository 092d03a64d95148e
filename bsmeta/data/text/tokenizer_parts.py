"""The parts of a tokenizer, as its `tokenizer.json` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from bsmeta.core.parsing import parse_json

Part = Mapping[str, Any]
"""A part of a `tokenizer.json`; shared by all callers, so nobody changes it."""


def read_parts(tokenizer: Tokenizer) -> Part:
    """Returns the normalizer, pre-tokenizers, model, added tokens, … of a tokenizer by name."""
    return _parse_parts(tokenizer.to_str())


@lru_cache(maxsize=2)  # a start asks several times; those of a large vocabulary take a second
def _parse_parts(content: str) -> Part:
    parts: Part = parse_json(content)
    return parts


def list_pre_tokenizers(part: Part | None) -> list[Part]:
    """Lists the pre-tokenizers of a tokenizer, in order; sequences may be nested."""
    if part is None:
        return []
    if "pretokenizers" not in part:
        return [part]

    steps: list[Part] = []
    for inner in part["pretokenizers"]:
        steps += list_pre_tokenizers(inner)
    return steps
