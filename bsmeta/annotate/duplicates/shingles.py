"""Computes the shingles of a text: the set of hashes of its overlapping word n-grams.

Two texts are near duplicates if the Jaccard similarity of their sets is high. Words are compared
without case, white space and punctuation. In scripts that are written without spaces, each
character counts as a word, so shingles are character n-grams; a text may mix both.
"""

from __future__ import annotations

import re

import numpy as np
import xxhash
from numpy.typing import NDArray

from bsmeta.data.text.caseless import make_caseless

VERSION = 1
"""Increment it when the shingles of a text change."""

# Scripts without spaces between words: Thai, Lao, Tibetan, Myanmar, Khmer, kana, and Han.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
# Combining marks, which \w does not match: words of Indic scripts, Hebrew and Arabic contain them.
_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f"
    "\u0900-\u0963\u0966-\u0dff"
)
_WORD_RUN = re.compile(rf"[\w{_UNSPACED}{_MARKS}]+")
_WORD_IN_RUN = re.compile(rf"[{_UNSPACED}]|[^{_UNSPACED}]+")

_MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 / the golden ratio, as in splitmix64

Hashes = NDArray[np.uint64]


def split_words(text: str) -> list[str]:
    """Splits a text into caseless words, and into characters in scripts without spaces."""
    words: list[str] = []
    for run in _WORD_RUN.findall(make_caseless(text)):
        if run.isascii():
            words.append(run)
        else:
            words += _WORD_IN_RUN.findall(run)
    return words


def hash_shingles(words: list[str], length: int) -> Hashes:
    """Hashes each sequence of `length` words to 64 bits.

    Returns:
        The distinct hashes, ascending; empty if there are fewer words.
    """
    count = len(words) - length + 1
    if count < 1:
        return np.empty(0, np.uint64)

    word_hashes = {
        word: xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass")) for word in set(words)
    }
    hashes = np.array([word_hashes[word] for word in words], np.uint64)

    # Each position has its own multiplier, so that the order of the words matters.
    combined = np.zeros(count, np.uint64)
    for position in range(length):
        multiplier = np.uint64(pow(_MULTIPLIER, position + 1, 1 << 64))
        combined += hashes[position : position + count] * multiplier
    return np.unique(mix_bits(combined))


def mix_bits(values: Hashes) -> Hashes:
    """Applies the finalizer of splitmix64, a bijection in which each bit affects all others."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(0xBF58476D1CE4E5B9)
    values = values ^ (values >> np.uint64(27))
    values = values * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
