"""A word cache in front of a tokenizer: no word is encoded twice.

The tokenizers library takes more than a microsecond per word, whether or not it has seen it before,
and nine words in ten recur. A byte-level tokenizer splits a text by a pattern and encodes the parts
separately; with the patterns below it always splits between a visible character and a space after
it, and the text on one side does not affect how the other side is split. So a text may be cut
there, and the ids of the parts concatenated.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Tokenizer

Backend = Callable[[Sequence[str]], list[np.ndarray]]
"""Texts to token ids (int32); special tokens in a text are recognized, none are added."""

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern of a `ByteLevel` pre-tokenizer that does its own splitting."""

_LATER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACED_PATTERNS = frozenset({GPT2_PATTERN, _LATER % "{1,3}", _LATER % ""})
"""Patterns (of GPT-2, Llama 3, Qwen 2) whose matches never contain a space after a non-space
character, and never depend on text before the match or after the whitespace that follows it."""

MOST_WORDS = 1 << 16  # about 12 MB; lookups in a larger cache are slower
LONGEST_WORD = 64  # bytes; longer words rarely recur
JOINED = 256  # unknown words that are encoded as one text
SPACE, FIRST_VISIBLE, VISIBLE = 32, 33, 94  # "!" to "~": visible in every encoding of UTF-8


class WordMemory:
    """A backend that caches the ids of words; the ids are those of the wrapped backend.

    Args:
        tokenizer: The tokenizer that the backend implements. It splits by one of
            `SPACED_PATTERNS`, does not normalize the text, and its special tokens do not depend on
            the surrounding text.
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer) -> None:
        self._backend = backend
        added = tokenizer.get_added_tokens_decoder()
        self._special = {
            token.content.encode(): np.int32(number).tobytes() for number, token in added.items()
        }
        self._words = dict(self._special)  # ids as int32
        # Like the tokenizer, first find those that do not require normalized text.
        groups = [
            [token.content.encode() for token in added.values() if token.normalized == n]
            for n in (False, True)
        ]
        self._splits = [alternatives(group) for group in groups if group]
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._lengths = np.zeros(max(vocabulary.values()) + 1, np.int64)
        for entry, number in vocabulary.items():
            self._lengths[number] = len(entry)  # a byte is represented as one character

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text (int32[n], read-only)."""
        if len(self._words) > MOST_WORDS:
            self._words = dict(self._special)
        words: list[bytes] = []
        bounds = [0]
        for text in texts:
            words += self._cut(text)
            bounds.append(len(words))
        ids = self._ids(words)
        return [
            np.frombuffer(b"".join(ids[begin:end]), np.int32)
            for begin, end in itertools.pairwise(bounds)
        ]

    def _cut(self, text: str) -> list[bytes]:
        """The words and special tokens of a text."""
        raw = text.encode()
        if not any(name in raw for name in self._special):
            return split_words(raw)
        parts = [raw]
        for split in self._splits:
            parts = [
                new
                for part in parts
                for new in ([part] if part in self._special else split.split(part))
            ]
        cuts = ([part] if part in self._special else split_words(part) for part in parts)
        return list(itertools.chain.from_iterable(cuts))

    def _ids(self, words: list[bytes]) -> list[bytes]:
        """The ids of each word (int32)."""
        found = list(map(self._words.get, words))
        unknown = [word for word, ids in zip(words, found, strict=True) if ids is None]
        learned = self._learn(list(dict.fromkeys(unknown)))
        self._words |= {word: ids for word, ids in learned.items() if len(word) <= LONGEST_WORD}
        return [
            learned[word] if ids is None else ids for word, ids in zip(words, found, strict=True)
        ]

    def _learn(self, words: list[bytes]) -> dict[bytes, bytes]:
        """Encodes words, many at once if they can be concatenated."""
        can_join = [word for word in words if word[0] == SPACE and is_visible(word[-1])]
        learned: dict[bytes, bytes] = {}
        groups = [can_join[i : i + JOINED] for i in range(0, len(can_join), JOINED)]
        joined = [b"".join(group) for group in groups]
        for group, text, ids in zip(
            groups, joined, self._backend([text.decode() for text in joined]), strict=True
        ):
            ends = np.cumsum([len(word) for word in group])
            token_ends = np.cumsum(self._lengths[ids])
            stops = np.searchsorted(token_ends, ends) + 1
            if any(name in text for name in self._special) or not np.array_equal(
                token_ends[np.minimum(stops, len(ids)) - 1], ends
            ):
                continue  # a token spans two words, or a special token was formed
            bounds = itertools.pairwise([0, *stops.tolist()])
            learned |= {
                word: ids[begin:end].tobytes()
                for word, (begin, end) in zip(group, bounds, strict=True)
            }
        alone = [word for word in words if word not in learned]
        encoded = self._backend([word.decode() for word in alone])
        return learned | {word: ids.tobytes() for word, ids in zip(alone, encoded, strict=True)}


def alternatives(strings: Sequence[bytes]) -> re.Pattern[bytes]:
    """A pattern that matches any of the strings, as one group, preferring the longest match."""
    longest_first = sorted(strings, key=len, reverse=True)
    return re.compile(b"(" + b"|".join(map(re.escape, longest_first)) + b")")


def is_visible(byte: int) -> bool:
    """Whether a UTF-8 byte is surely a character other than whitespace."""
    return 0 <= byte - FIRST_VISIBLE < VISIBLE


def split_words(raw: bytes) -> list[bytes]:
    """Cuts a text (in UTF-8) between visible characters and the spaces after them."""
    codes = np.frombuffer(raw, np.uint8)
    before = np.flatnonzero(codes[1:] == SPACE)
    before = before[codes[before] - np.uint8(FIRST_VISIBLE) < VISIBLE]
    begins = [0, *(before + 1).tolist()]
    return [raw[i:j] for i, j in zip(begins, [*begins[1:], len(raw)], strict=True)] if raw else []
