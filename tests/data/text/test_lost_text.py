"""The text that tokenizers lose: which characters, and how many bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers

from bsmeta.data.text.lost_text import find_lossy_texts
from bsmeta.data.text.tokens import TextTokenizer
from tests.data.lossy_tokenizers import (
    wrapped,
)
from tests.data.text.shown_losses import NO_PARTS, make_tokenizer, shown_losses


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # unknown words, capitals, accents, and white space that is not a single space between words
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
def test_lost_characters_are_shown_in_the_text(name: str, text: str, expected: str) -> None:
    shown = shown_losses(make_tokenizer(name), text)
    if name == "word_ends":  # its last unknown token ends no word: the space after it is dropped
        shown = shown.replace(" ", ".")
    assert shown == expected


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_byte_level_tokenizers_lose_nothing(text: str) -> None:
    assert shown_losses(make_tokenizer("byte_level"), text) == "." * len(text)
    assert shown_losses(make_tokenizer("byte_level_with_space"), text) == "." * len(text)
    without_metaspace = text.replace("▁", "_")
    assert shown_losses(make_tokenizer("byte_fallback"), without_metaspace) == "." * len(text)


@given(st.text("aBcD é.\n俋", max_size=40))
def test_lower_casing_loses_capitals(text: str) -> None:
    expected = "".join(character if character in "BD" else "." for character in text)
    assert shown_losses(make_tokenizer("byte_level_lower"), text) == expected


@given(st.text("ae\u0301\u0308éñ 俋\n", max_size=40))
def test_tokens_of_a_normalized_text_have_the_characters_that_the_tokenizer_reports(
    text: str,
) -> None:
    (tokens,) = TextTokenizer(make_tokenizer("byte_level_nfc")).encode([text], lambda _: NO_PARTS)
    starts, ends = tokens.locate()
    assert (ends <= len(text)).all()
    assert (np.diff(starts) >= 0).all()
    lost = shown_losses(make_tokenizer("byte_level_nfc"), text)
    for start, end, number in zip(starts, ends, tokens.ids.tolist(), strict=True):
        if lost[start:end] == "." * (end - start) and text[start:end].isascii():
            entry = make_tokenizer("byte_level_nfc").convert_ids_to_tokens(number)
            assert entry.replace("Ġ", " ").replace("Ċ", "\n") == text[start:end]


def test_lossy_texts_are_detected() -> None:
    texts = ["the fox", "The fox"]
    assert find_lossy_texts(make_tokenizer("word_piece"), texts) == [False, True]
    assert find_lossy_texts(make_tokenizer("byte_level"), texts) == [False, False]


def test_long_parts_whose_tokens_overlap_are_lost_as_a_whole() -> None:
    """Tokens that cross the ends of expanded characters join them: to align these takes hours."""
    expanding = Tokenizer(models.BPE({"a": 0, "b": 1, "aa": 2}, [("a", "a")]))
    expanding.normalizer = normalizers.Replace("a", "aba")
    text = "a" * 100_000
    assert shown_losses(wrapped(expanding), "aaa") == "..."
    assert shown_losses(wrapped(expanding), text) == text


def test_a_written_special_token_is_text() -> None:
    assert shown_losses(make_tokenizer("byte_level_lower"), "a [EOS] b") == "...EOS..."
    assert shown_losses(make_tokenizer("word_piece"), "x [UNK]") == "..[UNK]"
