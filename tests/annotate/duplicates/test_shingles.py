"""Words and shingles."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.annotate.duplicates.shingles import hash_shingles, mix_bits, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The  CAT's\nhat, 3.5%!", ["the", "cat", "s", "hat", "3", "5"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("e\u0301te\u0301", ["\u00e9t\u00e9"]),
        ("我们 go到Tokyoへ", ["我", "们", "go", "到", "tokyo", "へ"]),
        ("ไทย", ["ไ", "ท", "ย"]),
        ("हिन्दी में।", ["हिन्दी", "में"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("שָׁלוֹם", ["שָׁלוֹם"]),
        (" \n-- ", []),
    ],
)
def test_words_are_divided_by_the_rules_of_their_script(text: str, words: list[str]) -> None:
    composed = [unicodedata.normalize("NFC", word) for word in words]
    assert split_words(text) == composed


def test_each_sequence_of_words_has_a_hash() -> None:
    words = ["a", "b", "c", "a", "b", "c"]
    assert len(hash_shingles(words, 3)) == 3  # abc, bca, cab; abc again
    assert len(hash_shingles(words, 6)) == 1
    assert len(hash_shingles(words, 7)) == 0
    assert hash_shingles(["a", "b"], 2) != hash_shingles(["b", "a"], 2)
    assert hash_shingles(["a", "a"], 2) != hash_shingles(["aa", ""], 2)


def test_hashes_never_change() -> None:
    """Signatures on disk contain them: another hash needs another `VERSION`."""
    hashes = hash_shingles(["one", "two", "three"], 2)
    assert hashes.tolist() == [10070034025149354564, 16867776288377992511]


@given(st.lists(st.text("abc", min_size=1, max_size=2), max_size=40), st.integers(1, 6))
def test_only_equal_shingles_have_equal_hashes(words: list[str], length: int) -> None:
    shingles = {tuple(words[k : k + length]) for k in range(len(words) - length + 1)}
    assert len(hash_shingles(words, length)) == len(shingles)


def test_mixed_bits_are_those_of_splitmix64() -> None:
    """The first values of the published generator with the seed 0."""
    states = np.array([0x9E3779B97F4A7C15 * k % 2**64 for k in (1, 2)], np.uint64)
    assert mix_bits(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
