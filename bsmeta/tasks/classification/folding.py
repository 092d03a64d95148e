"""Folds long texts: a text that exceeds the sequence length continues in further chunks.

Nothing is truncated. The tokens of a text's chunks, joined without their special tokens, are the
tokens of the text; their texts, joined, are the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.tokenizer import special_tokens, tokens_with_places

TOKENS_WITHOUT_LIMIT = 512
"""Tokens of a chunk of words, at most, if the tokenizer does not state the limit of its model."""

_STATES_NO_LIMIT = 10**6  # transformers gives such tokenizers a model_max_length of 1e30
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Fold:
    """One chunk of a text.

    Attributes:
        ids: Its tokens, with the special tokens of the model.
        text: Its part of the text.
    """

    ids: list[int]
    text: str


class Folding:
    """Cuts texts into chunks, by tokens or by words.

    Args:
        tokenizer: A fast tokenizer; its special tokens surround each chunk.
        fold_by: `tokens`: a chunk has at most `max_length` tokens, special tokens included, and
            may end within a word. `words`: a chunk has at most `max_length` words (separated by
            white space), as in seed document 004, and not more tokens than the tokenizer states
            for its model; only a word that exceeds this is cut.
        max_length: See `fold_by`.

    Raises:
        ConfigurationError: If the tokenizer gives no positions in the text, or `max_length` leaves
            no room beside the special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, fold_by: str, max_length: int) -> None:
        if not tokenizer.is_fast:
            raise ConfigurationError(
                f"tokenizer_name: {tokenizer.name_or_path} is a slow tokenizer, which does not "
                "give the positions of its tokens; expected one with a tokenizer.json"
            )
        self._tokenizer = tokenizer
        self._prefix, self._suffix = special_tokens(tokenizer)
        specials = len(self._prefix) + len(self._suffix)
        by_words = fold_by == "words"
        self._max_words = max_length if by_words else None
        self._max_tokens = (_limit(tokenizer) if by_words else max_length) - specials
        if self._max_tokens < 1:
            raise ConfigurationError(
                f"data_config.max_length={max_length}: expected at least {specials + 1}, because "
                f"each chunk has {specials} special tokens"
            )

    def fold(self, texts: Sequence[str]) -> list[list[Fold]]:
        """The chunks of each text, in their order; none for a text without tokens."""
        encoded = tokens_with_places(self._tokenizer, texts)
        return [
            self._chunks(text, ids, _starts(places)) if ids else []
            for text, (ids, places) in zip(texts, encoded, strict=True)
        ]

    def _chunks(self, text: str, ids: list[int], starts: np.ndarray) -> list[Fold]:
        cuts = self._cuts(text, starts)
        places = [0, *(int(starts[cut]) for cut in cuts[1:-1]), len(text)]
        return [
            Fold([*self._prefix, *ids[cuts[n] : cuts[n + 1]], *self._suffix], text[begin:end])
            for n, (begin, end) in enumerate(pairwise(places))
        ]

    def _cuts(self, text: str, starts: np.ndarray) -> list[int]:
        """Where chunks begin, in tokens, and the number of tokens."""
        total = len(starts)
        if self._max_words is None:
            return [*range(0, total, self._max_tokens), total]
        ends = np.array([match.end() for match in _WORD.finditer(text)], np.int64)
        # White space between words counts to the next one, and after the last word to that.
        words = np.searchsorted(ends[:-1], starts, side="right")
        cuts = [0]
        while cuts[-1] < total:
            first = cuts[-1]
            end = int(np.searchsorted(words, words[first] + self._max_words))
            if end - first > self._max_tokens:
                end = _word_end(words, first, first + self._max_tokens)
            cuts.append(end)
        return cuts


def _starts(places: np.ndarray) -> np.ndarray:
    """Where each token begins in its text, int64[tokens]; never before the token that precedes."""
    return np.maximum.accumulate(places[:, 0])


def _word_end(words: np.ndarray, first: int, limit: int) -> int:
    """The last end of a word at or before the token `limit`; `limit` within a first long word."""
    begin = int(np.searchsorted(words, words[limit]))  # where the word of the next token begins
    return begin if begin > first else limit


def _limit(tokenizer: PreTrainedTokenizerBase) -> int:
    stated = int(tokenizer.model_max_length)
    return stated if stated < _STATES_NO_LIMIT else TOKENS_WITHOUT_LIMIT
