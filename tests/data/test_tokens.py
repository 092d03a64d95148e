"""Tokens and the characters that they cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bsmeta.config.errors import ConfigurationError
from bsmeta.data.tokens import HfTokenizer, Tokens
from tests.data.helpers import small_tokenizer

SMALL = small_tokenizer()
ENCODER = HfTokenizer(SMALL)


def one(text: str) -> Tokens:
    (tokens,) = ENCODER.encode([text])
    return tokens


@given(st.text())
def test_byte_level_tokens_have_the_oracles_ids_and_offsets(text: str) -> None:
    tokens = one(text)
    oracle = SMALL.backend_tokenizer.encode(text, add_special_tokens=False)
    assert tokens.ids.tolist() == oracle.ids
    assert list(zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)) == oracle.offsets


def test_a_character_of_several_tokens_is_in_the_span_of_each() -> None:
    tokens = one("a€b")
    assert tokens.starts.tolist() == [0, 1, 1, 1, 2]
    assert tokens.ends.tolist() == [1, 2, 2, 2, 3]
    assert tokens.starts.dtype == tokens.ids.dtype == np.int32


def test_special_tokens_in_the_text() -> None:
    tokens = one("é<eos>é")
    assert tokens.ids[1 if len(tokens.ids) == 3 else 2] == SMALL.eos_token_id
    assert tokens.ends.tolist()[-1] == 7


def test_special_tokens_that_were_added_later() -> None:
    tokenizer = small_tokenizer()
    tokenizer.add_tokens(["<HTML>", "<é>"], special_tokens=True)
    (tokens,) = HfTokenizer(tokenizer).encode(["é<HTML><é>x"])
    assert tokens.ids.tolist()[-3:-1] == [len(tokenizer) - 2, len(tokenizer) - 1]
    assert tokens.starts.tolist()[-3:] == [1, 7, 10]


def test_other_tokenizers_report_their_offsets() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "ein": 1, "Wort": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    (tokens,) = HfTokenizer(PreTrainedTokenizerFast(tokenizer_object=words)).encode(["ein Wört"])
    assert tokens.ids.tolist() == [1, 0]
    assert tokens.starts.tolist() == [0, 4]
    assert tokens.ends.tolist() == [3, 8]


def test_truncation_and_padding_of_the_tokenizer_are_left_alone() -> None:
    tokenizer = small_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=5)
    short, long = HfTokenizer(tokenizer).encode(["a", "a b c d e f g"])
    assert len(short.ids) == 1
    assert len(long.ids) > 5
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 2


def test_a_tokenizer_without_a_fast_form_is_refused() -> None:
    class Slow:
        name_or_path = "some/slow"

    with pytest.raises(ConfigurationError, match="some/slow is no fast tokenizer"):
        HfTokenizer(Slow())
