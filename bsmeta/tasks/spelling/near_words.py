"""Words within a small edit distance of a word: an index over what remains after deletions.

Two words at a distance of n edits share a string that each becomes when at most n characters are
deleted (Garbe's symmetric deletions, 2012). The strings are never built: the hash of a word is a
polynomial of its characters modulo 2^64, and the hash after a deletion follows from prefix sums, so
the index of 80,000 words takes about a second and 40 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

LONGEST = 32
"""Characters of a word that are hashed; the end of a longer word is ignored."""
LONGEST_TWICE = 15
"""Characters up to which two characters are deleted; of a longer word, one."""
MOST_SHARING = 100
"""Words that are found by one string that they share with a word: the most frequent."""
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)
_POWERS = np.array([pow(_BASE, n, 2**64) for n in range(LONGEST)], np.uint64)
_ONCE = np.uint64(_INVERSE)
_TWICE = np.uint64(pow(_INVERSE, 2, 2**64))


def hash_words(words: Sequence[str]) -> np.ndarray:
    """The hash of each word, uint64 [words]."""
    return _prefixes(words)[0][:, -1]


def _prefixes(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Prefix hashes, uint64 [words, characters + 1], and the lengths, int64 [words]."""
    if not words:
        return np.zeros((0, 1), np.uint64), np.zeros(0, np.int64)
    array = np.array([word[:LONGEST] for word in words], dtype=np.str_)
    characters = array.view(np.uint32).reshape(len(words), -1).astype(np.uint64)
    sums = np.zeros((len(words), characters.shape[1] + 1), np.uint64)
    np.cumsum(characters * _POWERS[: characters.shape[1]], axis=1, out=sums[:, 1:])
    return sums, np.strings.str_len(array)


def _deletions(words: Sequence[str], most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields hashes after the deletion of up to `most` characters, and the words' numbers."""
    sums, lengths = _prefixes(words)
    numbers = np.arange(len(words))
    total = sums[:, -1]
    yield total, numbers
    for first in range(int(lengths.max(initial=0))):
        own = numbers[lengths > first]
        head, after = sums[own, first], sums[own, first + 1]
        yield head + (total[own] - after) * _ONCE, own
        if most < 2:
            continue
        for second in range(first + 1, int(min(lengths.max(), LONGEST_TWICE))):
            keep = (lengths[own] > second) & (lengths[own] <= LONGEST_TWICE)
            both = own[keep]
            middle = (sums[both, second] - after[keep]) * _ONCE
            yield head[keep] + middle + (total[both] - sums[both, second + 1]) * _TWICE, both


def _all_deletions(words: Sequence[str], most: int) -> tuple[np.ndarray, np.ndarray]:
    parts = list(_deletions(words, most))
    return np.concatenate([keys for keys, _ in parts]), np.concatenate([own for _, own in parts])


class NearWords:
    """Finds words near others.

    Args:
        words: The words, the most frequent first.
        twice: How many of them (from the first) are found with two edits; the others with one.
    """

    def __init__(self, words: Sequence[str], twice: int) -> None:
        keys, numbers = _all_deletions(words[:twice], 2)
        more_keys, more_numbers = _all_deletions(words[twice:], 1)
        keys = np.concatenate([keys, more_keys])
        numbers = np.concatenate([numbers, more_numbers + min(twice, len(words))])
        order = np.lexsort((numbers, keys))
        self._keys, self._numbers = keys[order], numbers[order].astype(np.int32)

    def find(self, words: Sequence[str]) -> list[np.ndarray]:
        """The numbers of the words near each word, int32, ascending; some are farther than two
        edits.
        """
        keys, queries = _all_deletions(words, 2)
        starts = np.searchsorted(self._keys, keys, "left")
        ends = np.searchsorted(self._keys, keys, "right")
        sizes = np.minimum(ends - starts, MOST_SHARING)
        places = np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        pairs = np.repeat(queries, sizes) << np.int64(32) | self._numbers[places]
        found = np.unique(pairs)
        ends = np.searchsorted(found, np.arange(1, len(words)) << np.int64(32))
        return np.split((found & 0xFFFFFFFF).astype(np.int32), ends)
