"""The word cache: the ids of its tokenizer, which encodes each word once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers

from bsmeta.data.text import word_cache
from bsmeta.data.text.tokenizer import hf_backend, remembering_backend
from bsmeta.data.text.word_cache import SPACED_PATTERNS, WordMemory, split_words
from tests.data.helpers import small_tokenizer


def tokenizer(pattern: str | None = None) -> Tokenizer:
    """The small one with special tokens of all kinds, splitting by its own or another pattern."""
    with_tokens = small_tokenizer()
    names = ["<HTML>", "</HTML>", " </C> ", "<eos>x"]
    with_tokens.add_special_tokens({"additional_special_tokens": names})
    oracle = Tokenizer.from_str(with_tokens.backend_tokenizer.to_str())
    oracle.add_tokens([AddedToken("ML>", normalized=True)])
    if pattern is not None:
        steps = [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
        oracle.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return oracle


MEMORIES = [
    (WordMemory(hf_backend(oracle), oracle), hf_backend(oracle))
    for oracle in (tokenizer(), *map(tokenizer, sorted(SPACED_PATTERNS)))
]

PARTS = [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\x1c", "\x85", "\0"]
PARTS += ["a", "the", "quick", "'s", "'S", "'", "12345", "1", ".", "(x)", "_", "é", "中文", "😀"]
PARTS += ["\u0301", "\ufeff", "<HTML>", "</HTML>", " </C> ", " </C>", "</C> ", "<eos>", "<eos>x"]
PARTS += ["<HT", "ML>"]


@given(st.lists(st.text() | st.lists(st.sampled_from(PARTS), max_size=20).map("".join), max_size=4))
def test_the_ids_are_those_of_the_oracle(texts: list[str]) -> None:
    for memory, oracle in MEMORIES:
        found = memory(texts)
        assert all(one.dtype == np.int32 for one in found)
        assert [one.tolist() for one in found] == [one.tolist() for one in oracle(texts)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("one  two three", ["one", "  two", " three"]),
        ("a\n  b. c ", ["a\n  b.", " c", " "]),
        ("é b\u00a0 c", ["é b\u00a0 c"]),  # a part of another character may be white space
    ],
)
def test_words_begin_with_their_spaces(text: str, expected: list[str]) -> None:
    assert [word.decode() for word in split_words(text.encode())] == expected


def test_a_known_word_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def backend(texts: Sequence[str]) -> list[np.ndarray]:
        asked.append(list(texts))
        return oracle(texts)

    oracle = hf_backend(tokenizer())
    memory = WordMemory(backend, tokenizer())
    long = " " + word_cache.LONGEST_WORD * "a"
    for _ in range(2):
        memory(["a quick fox quick fox" + long])
    assert asked == [[" quick fox" + long], ["a"], [long], []]
    monkeypatch.setattr(word_cache, "MOST_WORDS", 3)
    memory([" quick"])
    assert asked[4:] == [[" quick"], []]


def test_words_that_would_make_a_special_token_are_not_joined() -> None:
    memory, oracle = MEMORIES[0]
    texts = ["a </C>", "b fox", " </C>\n", "<HTML>b </C>"]
    assert [one.tolist() for one in memory(texts)] == [one.tolist() for one in oracle(texts)]


def test_only_a_tokenizer_that_allows_for_it_has_a_memory() -> None:
    def kind(oracle: Tokenizer) -> bool:
        return isinstance(remembering_backend(oracle), WordMemory)

    assert kind(tokenizer())
    assert kind(tokenizer(min(SPACED_PATTERNS)))
    assert not kind(tokenizer(r"[^ ]+ [^ ]+|\s+"))
    stripping = tokenizer()
    stripping.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    assert not kind(stripping)
    without_pattern = tokenizer()
    without_pattern.pre_tokenizer = pre_tokenizers.Whitespace()
    assert not kind(without_pattern)
    random = tokenizer()
    random.model.dropout = 0.5
    assert not kind(random)
