"""Tokenizers by name, and the text that one loses, shown character by character."""

from __future__ import annotations

from functools import cache

import numpy as np
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from bsmeta.data.text.lost_text import LostTextFinder
from bsmeta.data.text.tokens import TextTokenizer
from tests.data.lossy_tokenizers import (
    byte_fallback,
    byte_level,
    unigram,
    word_ends,
    word_piece,
)

NO_PARTS = np.zeros((0, 2), np.int32)
TOKENIZERS = {
    "word_piece": word_piece,
    "word_piece_without_decoder": lambda: word_piece(decodes=False),
    "unigram": unigram,
    "byte_level": byte_level,
    "byte_level_with_space": lambda: byte_level(adds_space=True),
    "byte_level_nfc": lambda: byte_level(normalizers.NFC()),
    "byte_level_nfd": lambda: byte_level(normalizers.NFD()),
    "byte_level_lower": lambda: byte_level(normalizers.Lowercase()),
    "byte_fallback": byte_fallback,
    "word_ends": word_ends,
}


@cache
def make_tokenizer(name: str) -> PreTrainedTokenizerFast:
    return TOKENIZERS[name]()


def shown_losses(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    """Returns the text with a dot for each character that survives a round trip."""
    (tokens,) = TextTokenizer(tokenizer).encode([text], lambda _: NO_PARTS)
    finder = LostTextFinder(tokenizer.backend_tokenizer)
    lost = finder.find(text, tokens.ids, *tokens.locate())
    if lost is None:
        return "." * len(text)
    assert lost.any()
    assert len(lost) == len(text)
    return "".join(character if gone else "." for character, gone in zip(text, lost, strict=True))
