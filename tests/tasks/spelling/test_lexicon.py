"""The known words, and the words near another."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import OSA

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.spelling import lexicon as lexicon_module
from bsmeta.tasks.spelling.lexicon import (
    BOUNDARY,
    Lexicon,
    NearWords,
    build_lexicon,
    hash_words,
    parse_token,
    read_word_list,
)
from tests.tasks.spelling.helpers import lexicon

LETTERS = st.text("abc", min_size=1, max_size=7)


@settings(max_examples=200, deadline=None)
@given(st.lists(LETTERS, min_size=1, max_size=30, unique=True), LETTERS)
def test_all_words_within_two_edits_are_found(words: list[str], word: str) -> None:
    (found,) = NearWords(words, two_edit_words=len(words)).find([word])
    near = {n for n, other in enumerate(words) if OSA.distance(other, word) <= 2}
    assert near <= {*found.tolist()}


def test_rare_words_are_found_within_one_edit() -> None:
    index = NearWords(["the", "then", "cats"], two_edit_words=2)
    one_edit, two_edits = (numbers.tolist() for numbers in index.find(["cat", "at"]))
    assert 2 in one_edit
    assert 2 not in two_edits


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("“Hello,”", ("“", "Hello", ",”")),
        ("dog's", ("", "dog", "'s")),
        ("I’m.", ("", "I’m", ".")),
        ("(3.5)", ("(3.5)", "", "")),
        ("--", ("--", "", "")),
    ],
)
def test_the_spelled_part_of_a_word(word: str, parts: tuple[str, str, str]) -> None:
    assert parse_token(word)[:3] == parts


def counts(words: Lexicon, word: str) -> list[float]:
    return words.counts[words.find_number(word)].tolist()


def test_words_and_sequences_are_counted() -> None:
    words = lexicon()
    assert counts(words, "the") == [10, 0]
    assert counts(words, "berlin") == [4, 4]
    assert counts(words, "we") == [6, 0]  # a capital only at the start of a sentence
    the, cat, mat, end = hash_words(["the", "cat", "mat", BOUNDARY])[:, None]
    assert words.ngrams.count(the, cat).tolist() == [4]
    assert words.ngrams.count(the, mat, end).tolist() == [2]
    assert words.ngrams.count(cat, the).tolist() == [0]


def test_of_many_words_the_most_frequent_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon_module, "MAX_WORDS", 2)
    assert build_lexicon(["a a a b b", "c c c c d"], [], {}).words == ["c", "a"]


def test_a_list_has_words_with_counts(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("The 20\nthe 1\ncats 3\n")
    assert read_word_list(str(file)) == {"the": 21, "cats": 3}
    words = build_lexicon(["the cat"], [str(file)], {})
    assert (counts(words, "the"), counts(words, "cats")) == ([1, 0, 21], [0, 0, 3])
    file.write_text("the 20\ncat\n")
    with pytest.raises(ConfigurationError, match=r"line 2 is 'cat'; expected a word and its count"):
        read_word_list(str(file))
