"""Sentences are divided into rows that fit; no mention is lost, and none is in two rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.tasks.disambiguation.chunks import Chunk, Limits, divide, overlapping, widen


def words_of(lengths: list[int]) -> np.ndarray:
    """Words of these lengths, with a space between them."""
    ends = np.cumsum(np.array(lengths, np.int64) + 1) - 1
    return np.stack([ends - lengths, ends], axis=1) if lengths else np.empty((0, 2), np.int64)


def letters(words: np.ndarray) -> np.ndarray:
    """A token for each letter."""
    places = [place for start, end in words.tolist() for place in range(start, end)]
    return np.array([(place, place + 1) for place in places], np.int64).reshape(-1, 2)


def test_a_sentence_that_fits_is_one_row() -> None:
    words = words_of([1] * 6)
    mentions = np.array([[4, 7], [0, 1]])
    assert divide(mentions, words, letters(words), Limits(2, 6, 6)) == ([Chunk(0, 6, [1, 0])], 0)


def test_too_many_mentions_become_rows_of_about_as_many() -> None:
    words = words_of([1] * 11)
    chunks, lost = divide(words, words, letters(words), Limits(10, 100, 100))
    assert chunks == [Chunk(0, 11, [0, 1, 2, 3, 4, 5]), Chunk(0, 11, [6, 7, 8, 9, 10])]
    assert lost == 0


def test_a_long_sentence_is_cut_around_its_mentions() -> None:
    words = words_of([1] * 20)
    chunks, lost = divide(words[[2, 9, 19]], words, letters(words), Limits(10, 5, 100))
    assert chunks == [Chunk(0, 5, [0]), Chunk(7, 12, [1]), Chunk(15, 20, [2])]
    assert lost == 0


def test_long_words_are_cut_at_tokens() -> None:
    words = words_of([50, 4, 50])
    chunks, lost = divide(words[[1]], words, letters(words), Limits(10, 100, 10))
    assert chunks == [Chunk(47, 57, [0])]
    assert lost == 0


def test_mentions_that_no_row_can_hold_are_counted() -> None:
    words = words_of([1] * 20)
    mentions = np.array([[0, 11], [3, 4], [0, 1]])  # six words; a space; a word
    assert divide(mentions, words, letters(words), Limits(10, 5, 100)) == ([Chunk(0, 5, [2])], 2)


@pytest.mark.parametrize(
    ("start", "end", "size", "found"),
    [(4, 6, 6, (2, 8)), (1, 2, 5, (0, 5)), (9, 10, 5, (5, 10)), (4, 6, 99, (0, 10))],
)
def test_a_window_uses_all_its_room(
    start: int, end: int, size: int, found: tuple[int, int]
) -> None:
    assert widen(start, end, 0, 10, size) == found


@st.composite
def sentences(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Limits]:
    words = words_of(draw(st.lists(st.integers(1, 6), max_size=40)))
    length = int(words[-1, 1]) if len(words) else 0
    spans = st.tuples(st.integers(0, length), st.integers(1, 12))
    mentions = [(start, start + size) for start, size in draw(st.lists(spans, max_size=30))]
    limits = Limits(*(draw(st.integers(1, most)) for most in (12, 20, 40)))
    return np.array(mentions, np.int64).reshape(-1, 2), words, limits


@given(sentences())
def test_no_mention_is_lost_or_doubled(case: tuple[np.ndarray, np.ndarray, Limits]) -> None:
    mentions, words, limits = case
    tokens = letters(words)
    chunks, lost = divide(mentions, words, tokens, limits)
    held = [number for chunk in chunks for number in chunk.mentions]
    assert len({*held}) == len(held)
    for number in {*range(len(mentions))} - {*held}:
        start, end = mentions[number]
        covered = (tokens[:, 1] > start) & (tokens[:, 0] < end)
        in_words = (words[:, 1] > start) & (words[:, 0] < end)
        assert not covered.any() or covered.sum() > limits.tokens or in_words.sum() > limits.words
    assert lost == len(mentions) - len(held)
    in_tokens = overlapping(mentions, tokens)
    for chunk in chunks:
        assert 0 < len(chunk.mentions) <= limits.mentions
        assert 0 <= chunk.start < chunk.end <= len(tokens)
        assert chunk.end - chunk.start <= limits.tokens
        text = tokens[chunk.start, 0], tokens[chunk.end - 1, 1]
        assert ((words[:, 1] > text[0]) & (words[:, 0] < text[1])).sum() <= limits.words
        for first, after in in_tokens[chunk.mentions]:
            assert chunk.start <= first < after <= chunk.end
