"""Divides a sentence into rows that fit: not too many mentions, words or tokens.

Every mention is in one row. A sentence that has only too many mentions becomes several rows of its
whole text, each with some of the mentions; of a long sentence, a row has the words around its
mentions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Limits:
    """What a row may hold.

    Attributes:
        mentions: Mentions, at most.
        words: Words, at most.
        tokens: Tokens without special ones, at most.
    """

    mentions: int
    words: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A row of a sentence.

    Attributes:
        start: Its first token.
        end: The token after its last one.
        mentions: Numbers of its mentions, in the order of the text.
    """

    start: int
    end: int
    mentions: list[int]


def overlapping(spans: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The range of parts (tokens or words) that each span overlaps.

    Args:
        spans: int[n, 2], characters.
        parts: int[m, 2], characters; starts and ends do not fall.

    Returns:
        int[n, 2], first part and the one after the last; not ascending where a span has none.
    """
    first = np.searchsorted(parts[:, 1], spans[:, 0], side="right")
    after = np.searchsorted(parts[:, 0], spans[:, 1], side="left")
    return np.stack([first, after], axis=1)


def divide(
    mentions: np.ndarray, words: np.ndarray, tokens: np.ndarray, limits: Limits
) -> tuple[list[Chunk], int]:
    """The rows of a sentence.

    Args:
        mentions: int[n, 2], the characters of each mention.
        words: int[w, 2], the characters of each word.
        tokens: int[t, 2], the characters of each token.
        limits: What a row may hold.

    Returns:
        The rows, and the number of mentions that no row can hold: longer than a row, or without a
        token.
    """
    in_words, in_tokens = overlapping(mentions, words), overlapping(mentions, tokens)
    lengths = in_tokens[:, 1] - in_tokens[:, 0]
    fits = (lengths > 0) & (lengths <= limits.tokens)
    fits &= in_words[:, 1] - in_words[:, 0] <= limits.words
    order = [int(i) for i in np.lexsort((mentions[:, 1], mentions[:, 0])) if fits[i]]
    chunks = [
        Chunk(
            *_window(_hull(in_words[group]), _hull(in_tokens[group]), words, tokens, limits), group
        )
        for group in _groups(order, in_words, in_tokens, limits)
    ]
    return chunks, len(mentions) - len(order)


def _groups(
    order: Sequence[int], in_words: np.ndarray, in_tokens: np.ndarray, limits: Limits
) -> list[list[int]]:
    """Groups of consecutive mentions of about equal size, each of which fits into a row."""
    if not order:
        return []
    least = -(-len(order) // limits.mentions)
    size = -(-len(order) // least)
    words, tokens = in_words.tolist(), in_tokens.tolist()  # arrays are slow one by one
    groups: list[list[int]] = []
    last_word = last_token = 0
    for mention in order:
        last_word = max(last_word, words[mention][1])
        last_token = max(last_token, tokens[mention][1])
        if (
            groups
            and len(groups[-1]) < size
            and last_word - words[groups[-1][0]][0] <= limits.words
            and last_token - tokens[groups[-1][0]][0] <= limits.tokens
        ):
            groups[-1].append(mention)
        else:
            groups.append([mention])
            last_word, last_token = words[mention][1], tokens[mention][1]
    return groups


def _hull(ranges: np.ndarray) -> tuple[int, int]:
    return int(ranges[:, 0].min()), int(ranges[:, 1].max())


def _window(
    in_words: tuple[int, int],
    in_tokens: tuple[int, int],
    words: np.ndarray,
    tokens: np.ndarray,
    limits: Limits,
) -> tuple[int, int]:
    """The tokens around some mentions that a row has room for."""
    first, after = widen(*in_words, 0, len(words), limits.words)
    around = np.array([[words[first, 0], words[after - 1, 1]]])
    low, high = overlapping(around, tokens)[0]
    return widen(*in_tokens, int(low), int(high), limits.tokens)


def widen(start: int, end: int, low: int, high: int, size: int) -> tuple[int, int]:
    """A range around another, of `size` if there is room, with as much before as after it.

    Args:
        start: Of the range inside.
        end: Of the range inside; `end - start <= size`.
        low: The least start.
        high: The greatest end.
        size: The greatest length.
    """
    spare = size - (end - start)
    after = min(high - end, spare - min(start - low, spare // 2))
    before = min(start - low, spare - after)
    return start - before, end + after
