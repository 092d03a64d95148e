"""The text that tokenizers lose: which characters, and how many bytes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bsmeta.data.text.lossless import is_lossless
from bsmeta.data.text.lost_share import LostShare
from bsmeta.data.text.lost_text import LostTextFinder, lossy_texts, measure_lost_text
from bsmeta.data.text.tokens import TextTokenizer
from tests.data.lossy_tokenizers import (
    byte_fallback,
    byte_level,
    unigram,
    word_ends,
    word_piece,
    wrapped,
)

NO_PARTS = np.zeros((0, 2), np.int32)

TOKENIZERS = {
    "word_piece": word_piece,
    "word_piece_without_decoder": lambda: word_piece(decodes=False),
    "unigram": unigram,
    "byte_level": byte_level,
    "byte_level_with_space": lambda: byte_level(adds_space=True),
    "byte_level_nfc": lambda: byte_level(normalizers.NFC()),
    "byte_level_nfd": lambda: byte_level(normalizers.NFD()),
    "byte_level_lower": lambda: byte_level(normalizers.Lowercase()),
    "byte_fallback": byte_fallback,
    "word_ends": word_ends,
}


@cache
def made(name: str) -> PreTrainedTokenizerFast:
    return TOKENIZERS[name]()


def shown_losses(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    """The text with a dot for each character that comes back."""
    (tokens,) = TextTokenizer(tokenizer).encode([text], lambda _: NO_PARTS)
    finder = LostTextFinder(tokenizer.backend_tokenizer)
    lost = finder.find(text, tokens.ids, *tokens.characters())
    if lost is None:
        return "." * len(text)
    assert lost.any()
    assert len(lost) == len(text)
    return "".join(character if gone else "." for character, gone in zip(text, lost, strict=True))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # unknown words, capitals, accents, and white space that is no single space between words
        ("word_piece", "the fox, don't it?", "." * 18),
        ("word_piece", "The Fox", "T...F.."),
        ("word_piece", "café naïve", "...é...ï.."),
        ("word_piece", "cafe\u0301 fox", "....\u0301...."),
        ("word_piece", "中文 俋啾 fox", "...俋啾...."),
        ("word_piece", "a\tthe  fox\n", ".\t... ....\n"),
        ("word_piece", "fo\x00x", "..\x00."),
        ("word_piece", "俋", "俋"),
        ("word_piece_without_decoder", "the fox, don't it?", "." * 18),
        ("word_piece_without_decoder", "The 俋 fox", "T...俋...."),
        # NFKC, a removed space, an unknown letter; the leading metaspace is a convention
        ("unigram", "the fox", "......."),
        ("unigram", " the fox", "........"),
        ("unigram", "①ﬁ fox", "①ﬁ...."),
        ("unigram", "the  fox", "... ...."),
        ("unigram", "the Ж fox", "....Ж...."),
        ("unigram", "▁the", "▁..."),
        ("byte_level", "The  É\t俋 e\u0301 <eos>\n", "." * 18),
        ("byte_level_with_space", "The  É\t俋\n", "." * 9),
        ("byte_level_nfc", "é e\u0301 俋 é", "..e\u0301...."),
        ("byte_level_nfd", "e\u0301 é x", "...é.."),
        ("byte_level_lower", "The É 俋", "T...É.."),
        ("byte_fallback", "The  É\t俋 e\u0301\n the", "." * 16),
        ("byte_fallback", "the▁fox", "...▁..."),
        ("word_ends", "the fox don't", "." * 13),
        ("word_ends", "The 俋 fox", "T...俋...."),
    ],
)
def test_lost_characters(name: str, text: str, expected: str) -> None:
    shown = shown_losses(made(name), text)
    if name == "word_ends":  # its last unknown token ends no word: the space after it is dropped
        shown = shown.replace(" ", ".")
    assert shown == expected


def test_only_byte_level_bpe_that_changes_nothing_is_lossless_at_once() -> None:
    lossless = {name for name in TOKENIZERS if is_lossless(made(name).backend_tokenizer)}
    assert lossless == {"byte_level", "byte_level_with_space"}


def test_byte_level_bpe_that_may_drop_text_is_not_lossless_at_once() -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    without_a = {character: number for number, character in enumerate(alphabet) if character != "a"}
    dropping = Tokenizer(models.BPE(without_a, []))
    dropping.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitting = Tokenizer(models.BPE({name: i for i, name in enumerate(alphabet)}, []))
    splitting.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("-", "removed"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert not is_lossless(dropping)
    assert not is_lossless(splitting)
    assert lossy_texts(wrapped(dropping), ["cb", "cab"]) == [False, True]
    assert shown_losses(wrapped(splitting), "a-b") == ".-."


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_bytes_always_come_back(text: str) -> None:
    assert shown_losses(made("byte_level"), text) == "." * len(text)
    assert shown_losses(made("byte_level_with_space"), text) == "." * len(text)
    without_metaspace = text.replace("▁", "_")
    assert shown_losses(made("byte_fallback"), without_metaspace) == "." * len(text)


@given(st.text("aBcD é.\n俋", max_size=40))
def test_lower_casing_loses_the_capitals(text: str) -> None:
    expected = "".join(character if character in "BD" else "." for character in text)
    assert shown_losses(made("byte_level_lower"), text) == expected


@given(st.text("ae\u0301\u0308éñ 俋\n", max_size=40))
def test_tokens_of_a_normalized_text_have_the_characters_that_the_tokenizer_reports(
    text: str,
) -> None:
    (tokens,) = TextTokenizer(made("byte_level_nfc")).encode([text], lambda _: NO_PARTS)
    starts, ends = tokens.characters()
    assert (ends <= len(text)).all()
    assert (np.diff(starts) >= 0).all()
    lost = shown_losses(made("byte_level_nfc"), text)
    for start, end, number in zip(starts, ends, tokens.ids.tolist(), strict=True):
        if lost[start:end] == "." * (end - start) and text[start:end].isascii():
            entry = made("byte_level_nfc").convert_ids_to_tokens(number)
            assert entry.replace("Ġ", " ").replace("Ċ", "\n") == text[start:end]


def test_the_share_counts_bytes_and_shows_an_example() -> None:
    lost = measure_lost_text(made("word_piece"), ["The fox", "俋啾 fox", "the fox"])
    assert (lost.documents, lost.bytes, lost.lost, lost.unknown) == (3, 24, 7, 6)
    assert str(lost) == (
        "29.17% of 24 bytes of 3 documents (25.00% under unknown tokens), such as 'T' (the)"
    )
    unknown = measure_lost_text(made("word_piece"), ["the 俋啾俋啾"])
    assert str(unknown) == (
        "75.00% of 16 bytes of 1 documents (75.00% under unknown tokens), such as '俋啾俋啾' "
        "([UNK] [UNK] [UNK] …)"
    )
    dropped = measure_lost_text(made("word_piece"), ["the\n"])
    assert str(dropped) == "25.00% of 4 bytes of 1 documents, such as '\\n' (no token)"
    nothing = measure_lost_text(made("byte_level"), ["É俋", ""])
    assert nothing == LostShare(2, 5)
    assert str(nothing) == "none of 5 bytes of 2 documents"
    assert LostShare(0, 0).share == 0.0


def test_texts_of_which_something_is_lost() -> None:
    texts = ["the fox", "The fox"]
    assert lossy_texts(made("word_piece"), texts) == [False, True]
    assert lossy_texts(made("byte_level"), texts) == [False, False]


def test_long_parts_whose_tokens_overlap_are_lost_as_a_whole() -> None:
    """Tokens that cross the ends of expanded characters join them: to align these takes hours."""
    expanding = Tokenizer(models.BPE({"a": 0, "b": 1, "aa": 2}, [("a", "a")]))
    expanding.normalizer = normalizers.Replace("a", "aba")
    text = "a" * 100_000
    assert shown_losses(wrapped(expanding), "aaa") == "..."
    assert shown_losses(wrapped(expanding), text) == text


def test_a_written_special_token_is_text() -> None:
    assert shown_losses(made("byte_level_lower"), "a [EOS] b") == "...EOS..."
    assert shown_losses(made("word_piece"), "x [UNK]") == "..[UNK]"
