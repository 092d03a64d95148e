"""Counts of n-grams, sequences of words, and the probabilities of words that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ORDER = 4
"""Words of the longest n-grams."""
MAX_NGRAMS = 5_000_000
"""N-grams of each length that are kept: the most frequent."""
MIN_COUNTS = (1, 1, 1, 2)
"""Minimum count of n-grams of each length. Of the longest ones, most occur once."""
DISCOUNTS = (0.8, 0.9, 0.95)
"""Subtracted from the count of each pair, triple and sequence of four, for those not counted."""
LISTED_WEIGHT = 30.0
"""Weight of the distribution without context, in occurrences of a word before another."""

_SIDE = ORDER - 1  # words on each side of a candidate that are in an n-gram with it

_FACTORS = np.array(
    [0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xFF51AFD7ED558CCD, 0xD6E8FEB86659FD93], np.uint64
)


def join_hashes(*words: np.ndarray) -> np.ndarray:
    """Hashes n-grams of at most `ORDER` words: uint64 [n-grams].

    Args:
        words: The hashes of the first words, of the second words, …: uint64 [n-grams] each.
    """
    hashes = np.zeros(1, np.uint64)
    for word, factor in zip(words, _FACTORS[: len(words)], strict=True):
        mixed = (word ^ (word >> np.uint64(29))) * factor
        hashes = (hashes ^ (hashes >> np.uint64(31))) * _FACTORS[0] + mixed
    return hashes


@dataclass(frozen=True)
class Ngrams:
    """N-grams of one length and their counts."""

    keys: np.ndarray  # uint64 [n-grams], the hash of each (see `join_hashes`), ascending
    counts: np.ndarray  # float32 [n-grams]

    def find_positions(self, keys: np.ndarray) -> np.ndarray:
        """Returns the positions of n-grams by their hashes: int64, -1 for unknown ones."""
        if not len(self.keys):
            return np.full(keys.shape, -1)
        positions = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[positions] == keys, positions, -1)

    def count(self, keys: np.ndarray) -> np.ndarray:
        """Looks up the counts of n-grams by their hashes: float32, in the shape of `keys`."""
        if not len(self.keys):
            return np.zeros(keys.shape, np.float32)
        positions = self.find_positions(keys)
        return np.where(positions >= 0, self.counts[positions], np.float32(0))


NO_NGRAMS = Ngrams(np.zeros(0, np.uint64), np.zeros(0, np.float32))


class NgramCounter:
    """Counts the n-grams of one length in blocks of text.

    Args:
        length: Words of an n-gram.

    Attributes:
        keys: The hash of each n-gram, ascending: uint64 [n-grams].
        contexts: The hash of the n-gram without its last word: uint64 [n-grams].
        counts: float32 [n-grams].
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self.keys = np.zeros(0, np.uint64)
        self.contexts = np.zeros(0, np.uint64)
        self.counts = np.zeros(0, np.float32)

    def add(self, words: np.ndarray, boundary: np.uint64) -> None:
        """Adds the n-grams of a block; keeps the `MAX_NGRAMS` most frequent.

        Sequences of `ORDER` words with a boundary inside are left out.

        Args:
            words: The hashes of the words and boundaries: uint64 [words].
            boundary: The hash of a boundary.
        """
        count = max(len(words) - self._length + 1, 0)
        columns = [words[start : start + count] for start in range(self._length)]
        if self._length == ORDER:
            is_inside = np.ones(count, bool)
            for column in columns[1:-1]:
                is_inside &= column != boundary
            columns = [column[is_inside] for column in columns]
        new_keys, first, new_counts = np.unique(
            join_hashes(*columns), return_index=True, return_counts=True
        )
        new_contexts = np.zeros(len(new_keys), np.uint64)  # a single word has none
        if self._length > 1:
            new_contexts = join_hashes(*(column[first] for column in columns[:-1]))

        keys, first, positions = np.unique(
            np.concatenate([self.keys, new_keys]), return_index=True, return_inverse=True
        )
        contexts = np.concatenate([self.contexts, new_contexts])[first]
        counts = np.concatenate([self.counts, new_counts.astype(np.float32)])
        sums = np.bincount(positions, counts, len(keys)).astype(np.float32)
        kept = np.arange(len(keys))
        if len(keys) > MAX_NGRAMS:
            kept = np.sort(np.argsort(-sums, kind="stable")[:MAX_NGRAMS])
        self.keys = keys[kept]
        self.contexts = contexts[kept]
        self.counts = sums[kept]

    def prune(self, min_count: int) -> None:
        """Removes the n-grams with a lower count."""
        kept = self.counts >= min_count
        self.keys = self.keys[kept]
        self.contexts = self.contexts[kept]
        self.counts = self.counts[kept]


@dataclass(frozen=True)
class Sentences:
    """Candidates of one word or several, each between the neighbors of the word to correct.

    The neighbors are the `ORDER` - 1 words before it and those after it, in the order of the text;
    from the end of the sentence on, they are boundaries.
    """

    neighbors: np.ndarray  # uint64 [words, 2 (ORDER - 1)], their hashes
    neighbor_frequencies: np.ndarray  # float [words, 2 (ORDER - 1)]
    is_boundary: np.ndarray  # bool [words, 2 (ORDER - 1)]
    rows: np.ndarray  # int64 [rows], the word of each candidate
    candidates: Sequence[np.ndarray]  # uint64 [rows] for each of their words, the hashes
    candidate_frequencies: Sequence[np.ndarray]  # float [rows] for each of their words


class _Span(NamedTuple):
    """The n-grams in the same columns of each row."""

    counts: np.ndarray  # float32 [rows]
    left_over: np.ndarray  # float32 [rows]; see `NgramModel`


_Spans = dict[tuple[int, int], _Span]
"""N-grams by their first column and the column after their last."""


@dataclass(frozen=True)
class NgramModel:
    """Probabilities of words after others, with interpolated absolute discounting.

    A discount is subtracted from the count of each n-gram, and the probability that becomes free is
    distributed as after one word less (Ney, Essen and Kneser, 1994). After a single word, a word
    also has `LISTED_WEIGHT` times its probability without context as further occurrences.

    Attributes:
        orders: The n-grams of one word, of two, …, of `ORDER`.
        left_over: For all but the longest n-grams, the share of the next word's probability that is
            left for the context with one word less: float32 [n-grams] each.
    """

    orders: Sequence[Ngrams]
    left_over: Sequence[np.ndarray]

    @classmethod
    def of(cls, counters: Sequence[NgramCounter]) -> NgramModel:
        """Makes the model of counted n-grams, of one word, of two, …; prunes them."""
        for counter, min_count in zip(counters, MIN_COUNTS, strict=True):
            counter.prune(min_count)
        orders = [Ngrams(counter.keys, counter.counts) for counter in counters]

        left_over: list[np.ndarray] = []
        for contexts, longer, discount in zip(orders, counters[1:], DISCOUNTS, strict=False):
            positions = contexts.find_positions(longer.contexts)
            is_kept = positions >= 0
            discounted = longer.counts[is_kept] - discount
            used = np.bincount(positions[is_kept], discounted, len(contexts.keys))
            shares = 1 - used / contexts.counts
            left_over.append(np.clip(shares, 0, 1).astype(np.float32))
        return cls(orders, left_over)

    def count(self, *words: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
        """Looks up the counts of n-grams: float32 [n-grams].

        Args:
            words: The hashes of the first words, of the second words, …: uint64 [n-grams] each.
            where: The n-grams to look up, bool [n-grams]; the others count 0. None: all.
        """
        return self._look_up(words, where).counts

    def _look_up(self, words: Sequence[np.ndarray], where: np.ndarray | None) -> _Span:
        """Looks up n-grams; see `count`."""
        ngrams = self.orders[len(words) - 1]
        size = len(words[0])
        rows = np.arange(size) if where is None else np.flatnonzero(where)
        positions = ngrams.find_positions(join_hashes(*(word[rows] for word in words)))
        rows = rows[positions >= 0]
        positions = positions[positions >= 0]

        counts = np.zeros(size, np.float32)
        counts[rows] = ngrams.counts[positions]
        left_over = np.ones(size, np.float32)
        if len(words) < ORDER:
            left_over[rows] = self.left_over[len(words) - 1][positions]
        return _Span(counts, left_over)

    def score(self, sentences: Sentences, listed: Ngrams) -> np.ndarray:
        """Computes the log-probability of each sentence, as far as it depends on its candidate.

        Args:
            sentences: The candidates and their neighbors.
            listed: Pairs of words, with their shares of the words of a list as counts.

        Returns:
            The sum over the candidate and the words after it in the sentence, each given the
            `ORDER` - 1 words before it: float64 [rows], in nats.
        """
        rows = sentences.rows
        first_after = _SIDE + len(sentences.candidates)
        columns = _insert(sentences.neighbors.T, rows, sentences.candidates)
        frequencies = _insert(
            sentences.neighbor_frequencies.T, rows, sentences.candidate_frequencies
        )

        # N-grams without the candidate are looked up once for all candidates of a word.
        spans: _Spans = {}
        for shift, neighbors in (
            (0, sentences.neighbors.T[:_SIDE]),
            (first_after, sentences.neighbors.T[_SIDE:]),
        ):
            for (start, end), span in self._add_spans({}, [*neighbors]).items():
                spans[start + shift, end + shift] = _Span(*(values[rows] for values in span))
        self._add_spans(spans, columns)

        total = np.zeros(len(rows))
        is_inside = np.ones(len(rows), bool)
        for column in range(_SIDE, first_after + _SIDE):
            if column > first_after:
                side = column - len(sentences.candidates)
                is_inside &= ~sentences.is_boundary[rows, side - 1]
                shares = listed.count(join_hashes(*sentences.neighbors.T[side - 1 : side + 1]))
                shares = shares[rows]
            else:
                shares = listed.count(join_hashes(*columns[column - 1 : column + 1]))
            listed_probability = np.minimum(shares / frequencies[column - 1], 1)
            probability = 0.5 * frequencies[column] + 0.5 * listed_probability
            total += is_inside * np.log(_smooth(spans, column, probability))
        return total

    def _add_spans(self, spans: _Spans, columns: Sequence[np.ndarray]) -> _Spans:
        """Looks up the n-grams in columns that `spans` lacks, adds them, and returns `spans`.

        An n-gram is counted only where both of its parts are, so others are not looked up.
        """
        for length in range(1, min(ORDER, len(columns)) + 1):
            for start in range(len(columns) - length + 1):
                end = start + length
                if (start, end) in spans:
                    continue

                is_possible = None
                if length > 1:
                    is_possible = (spans[start, end - 1].counts > 0) & (
                        spans[start + 1, end].counts > 0
                    )
                spans[start, end] = self._look_up(columns[start:end], is_possible)
        return spans


def _insert(sides: np.ndarray, rows: np.ndarray, middle: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns columns for rows: those of their word's neighbors, and others in the middle.

    Args:
        sides: [2 (ORDER - 1), words].
        rows: The word of each row: int64 [rows].
        middle: The columns of the candidates, [rows] each.
    """
    columns = [side[rows] for side in sides]
    return [*columns[:_SIDE], *middle, *columns[_SIDE:]]


def _smooth(spans: _Spans, column: int, probability: np.ndarray) -> np.ndarray:
    """Computes the probability of the words in a column, given the words before it: float [rows].

    Args:
        spans: The counts of all n-grams that end in this column or before it.
        probability: Of the words without context, float [rows].
    """
    for length, discount in enumerate(DISCOUNTS, start=1):
        start = column - length
        context = spans[start, column]
        counts = np.maximum(spans[start, column + 1].counts - discount, 0)
        left_over = context.left_over * context.counts
        total = context.counts
        if length == 1:
            left_over = left_over + LISTED_WEIGHT
            total = total + LISTED_WEIGHT
        smoothed = (counts + left_over * probability) / np.maximum(total, 1)
        probability = np.where(total > 0, smoothed, probability)
    return probability
