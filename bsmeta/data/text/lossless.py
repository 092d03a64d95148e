"""Recognizes lossless tokenizers: byte-level BPE without a normalizer, as most tokenizers are.

The checks before a run use this module, so it does not import transformers.
"""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from bsmeta.data.text.tokenizer_parts import Part, list_pre_tokenizers, read_parts

_LOSSLESS_PRE_TOKENIZERS = (
    "ByteLevel",
    "Digits",
    "FixedLength",
    "Punctuation",
    "Split",
    "UnicodeScripts",
)
"""Pre-tokenizers that divide a text without dropping any of it (`behavior` aside)."""


def is_lossless(tokenizer: Tokenizer) -> bool:
    """Returns whether the settings of a tokenizer guarantee that decoding restores every text.

    A tokenizer without this guarantee may still be lossless on given texts.
    """
    parts = read_parts(tokenizer)
    model = parts["model"]
    steps = list_pre_tokenizers(parts["pre_tokenizer"])
    if model["type"] != "BPE" or parts["normalizer"] is not None:
        return False
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return False
    if any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"]):
        return False
    if not all(map(keeps_text, steps)):
        return False

    has_bytes = all(character in model["vocab"] for character in ByteLevel.alphabet())
    is_byte_level = any(step["type"] == "ByteLevel" for step in steps)
    return has_bytes and is_byte_level


def keeps_text(step: Part) -> bool:
    """Returns whether a pre-tokenizer drops none of the text that it divides."""
    return step["type"] in _LOSSLESS_PRE_TOKENIZERS and step.get("behavior") != "Removed"
