"""The word cache: the tokens of the tokenizer, which encodes a word once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Encoding,
    Regex,
    Tokenizer,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from bsmeta.core.log_once import log_once
from bsmeta.data.text import word_cache
from bsmeta.data.text.tokenizer import BACKENDS, make_character_backend
from bsmeta.data.text.tokens import TextTokenizer
from bsmeta.data.text.word_bounds import InseparableError, check_separable
from bsmeta.data.text.word_cache import WordCache
from tests.data.made_tokenizers import (
    PLAIN,
    TOKENIZERS,
    byte_level,
    sentencepiece_bpe,
    unigram,
    wordpiece,
)

CACHES = {name: WordCache(tokenizer) for name, tokenizer in TOKENIZERS.items()}
"""Used by all examples, so that most words of an example are in them."""

PARTS = [" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2003", "\u3000", "\x1c", "\x85", "\0", "\1"]
PARTS += ["a", "The", "quick", "'s", "'S", "'", "12345", "1", ".", "(x)", "_", "é", "中文", "😀"]
PARTS += ["\u0301", "\u0600", "\u200d", "\ufeff", "\u2581", "ﬁ", "İ", "``", "\2", "\3", "\4"]
PARTS += ["<HTML>", "</HTML>", " </C> ", " </C>", "</C> ", "<eos>", "<eos>x", "<x y>", "<x", "y>"]
PARTS += ["<HT", "ML>", "<mask>", "<unk>", "[UNK]", "Lazy", "Lazy dog", "<é>", "a b", " fox. "]

texts = st.lists(st.text() | st.lists(st.sampled_from(PARTS), max_size=20).map("".join), max_size=4)


def expected_tokens(name: str, texts: Sequence[str]) -> list[tuple[list[int], list[Any]]]:
    """Returns ids and characters by the tokenizer itself."""
    encodings = TOKENIZERS[name].encode_batch(list(texts), add_special_tokens=False)
    return [(encoding.ids, encoding.offsets) for encoding in encodings]


def cached_tokens(cache: WordCache, texts: Sequence[str]) -> list[tuple[list[int], list[Any]]]:
    """Returns ids and characters by the cache."""
    tokens = []
    for ids, (starts, ends) in cache.encode_with_characters(texts):
        assert ids.dtype == starts.dtype == ends.dtype == np.int32
        characters = list(zip(starts.tolist(), ends.tolist(), strict=True))
        tokens.append((ids.tolist(), characters))
    return tokens


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts)
def test_ids_and_characters_equal_those_by_the_tokenizer(name: str, texts: list[str]) -> None:
    expected = expected_tokens(name, texts)
    assert cached_tokens(CACHES[name], texts) == expected
    assert [ids.tolist() for ids in CACHES[name].encode_ids(texts)] == [ids for ids, _ in expected]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_long_texts_are_encoded_as_by_the_tokenizer(name: str) -> None:
    texts = ["The quick brown fox, and x = y. " * 2000, "中" * 5000, "a" * 3000 + " b", ""]
    assert cached_tokens(CACHES[name], texts) == expected_tokens(name, texts)


@pytest.mark.parametrize("name", PLAIN)
def test_a_surrogate_is_refused_as_by_the_tokenizer(name: str) -> None:
    texts = ["a fox", "a \ud800 b"]
    with pytest.raises(Exception) as expected:
        TOKENIZERS[name].encode_batch(texts)
    for encode in (CACHES[name].encode_ids, CACHES[name].encode_with_characters):
        with pytest.raises(expected.type) as raised:
            encode(texts)
        assert str(raised.value) == str(expected.value)


class Recorder:
    """A tokenizer that records the texts that it encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.encoded: list[str] = []

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        self.encoded += texts
        return self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_a_word_is_encoded_once() -> None:
    recorder = Recorder(wordpiece())
    backend = BACKENDS["hf"](recorder)
    backend(["The quick fox. The lazy dog", "The quick fox"])
    first, recorder.encoded = recorder.encoded, []
    assert "a quick fox. The lazy dog fox" in first
    backend(["The lazy fox. The quick dog", "The lazy"])
    assert "".join(recorder.encoded) == ""


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "MAX_GENERATION_WORDS", 50)
    name = "SentencePiece BPE"
    cache = WordCache(TOKENIZERS[name])
    for number in range(20):
        texts = [" ".join(f"fox{number * step}" for step in range(40)), "The quick brown fox"]
        assert cached_tokens(cache, texts) == expected_tokens(name, texts)
        assert len(cache) <= 100
    assert len(cache) > 50


def test_words_in_use_stay_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "MAX_GENERATION_WORDS", 10)
    recorder = Recorder(wordpiece())
    cache = WordCache(recorder)
    for number in range(10):
        cache.encode_ids([f"x quick brown fox n{number} m{number} k{number}"])
    recorder.encoded.clear()
    cache.encode_ids(["x quick brown fox"])
    assert "".join(recorder.encoded) == ""


def test_long_words_are_not_cached() -> None:
    cache = WordCache(wordpiece())
    cache.encode_ids(["The fox"])
    before = len(cache)
    cache.encode_ids(["The " + "a" * 300 + " fox", "中" * 1000])
    assert len(cache) == before


def test_a_forked_process_uses_the_cache_of_its_parent() -> None:
    name = "Unigram"
    cache = WordCache(TOKENIZERS[name])
    texts = ["The quick brown fox", "a lazy dog"]
    expected = cached_tokens(cache, texts)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            is_equal = cached_tokens(cache, [*texts, "jumps over"])[:2] == expected
            os.write(write, b"equal" if is_equal else b"other")
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 10) == b"equal"
    os.waitpid(child, 0)


def change_tokenizer(tokenizer: Tokenizer, **parts: object) -> Tokenizer:
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def replace_spaces_first() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.Replace(" ", "▁"), normalizers.NFKC()])


def make_dropout_tokenizer() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.model.dropout = 0.5
    return tokenizer


def with_spaced_token() -> Tokenizer:
    tokenizer = wordpiece()
    tokenizer.add_tokens([AddedToken("new york", normalized=True)])
    return tokenizer


def with_single_word(tokenizer: Tokenizer, content: str) -> Tokenizer:
    """With a token that is only formed after a character that belongs to no word."""
    tokenizer.add_tokens([AddedToken(content, single_word=True)])
    return tokenizer


def double_text() -> processors.PostProcessor:
    return processors.TemplateProcessing(single="$A $A")


INSEPARABLE: list[tuple[Callable[[], Tokenizer], str]] = [
    (lambda: byte_level(r"[^ ]+ [^ ]+|\s+"), "its pre-tokenizer Split may join words"),
    (
        lambda: change_tokenizer(byte_level(), pre_tokenizer=None),
        "its pre-tokenizer does not split",
    ),
    (lambda: change_tokenizer(wordpiece(), pre_tokenizer=None), "its pre-tokenizer does not split"),
    (make_dropout_tokenizer, "its merges are random"),
    (with_spaced_token, "its added token 'new york' has a space"),
    (
        lambda: with_single_word(sentencepiece_bpe(), "Lazy"),
        "its added token 'Lazy' depends on the end of the word before",
    ),
    (
        lambda: with_single_word(byte_level(), " Lazy"),
        "its added token ' Lazy' depends on the end of the word before",
    ),
    (
        lambda: change_tokenizer(
            wordpiece(), pre_tokenizer=pre_tokenizers.Punctuation("merged_with_next")
        ),
        "its pre-tokenizer Punctuation may join words",
    ),
    (
        lambda: change_tokenizer(wordpiece(), normalizer=normalizers.Replace(Regex(r"\. "), "")),
        "its normalizer Replace may change the text around a space",
    ),
    (
        lambda: change_tokenizer(wordpiece(), normalizer=normalizers.Replace("x", "")),
        "its normalizer Replace may change the text around a space",
    ),
    (
        lambda: change_tokenizer(sentencepiece_bpe(), normalizer=replace_spaces_first()),
        "its normalizer replaces spaces before its last step",
    ),
    (
        lambda: change_tokenizer(unigram(), pre_tokenizer=pre_tokenizers.Metaspace(split=False)),
        "its model Unigram sees several words at once",
    ),
    (
        lambda: change_tokenizer(wordpiece(), post_processor=double_text()),
        "its post-processor TemplateProcessing may change the tokens",
    ),
]


@pytest.mark.parametrize(("make", "reason"), INSEPARABLE)
def test_a_tokenizer_that_may_join_words_has_no_cache(
    make: Callable[[], Tokenizer], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = make()
    with pytest.raises(InseparableError, match=reason):
        check_separable(tokenizer)
    caplog.set_level(logging.INFO)
    log_once.cache_clear()
    make_character_backend(tokenizer, ["a b"])
    assert f"tokenizer backend hf has no word cache: {reason}" in caplog.text


@pytest.mark.parametrize("name", ["WordPiece", "SentencePiece BPE", "Unigram"])
def test_special_tokens_count_in_tags_but_not_in_texts(name: str) -> None:
    tokenizer = Tokenizer.from_str(PLAIN[name].to_str())
    tokenizer.add_special_tokens([AddedToken("<HTML>", normalized=False)])
    number = tokenizer.token_to_id("<HTML>")
    encoder = TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    written, rendered = encoder.encode(
        ["The quick <HTML> fox"] * 2,
        lambda text: np.array([[10, 16]] if text else np.zeros((0, 2)), np.int32),
    )
    assert number not in written.ids.tolist()
    position = rendered.ids.tolist().index(number)
    starts, ends = rendered.locate()
    assert (starts[position], ends[position]) == (10, 16)
    assert ends[-1] == 20
