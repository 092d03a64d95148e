"""Tokens and the characters that they cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.tokenizer import compute_byte_lengths
from bsmeta.data.text.tokens import TextTokenizer
from tests.data.helpers import small_tokenizer

SMALL = small_tokenizer()
ENCODER = TextTokenizer(SMALL)


def encode_text(
    text: str, encoder: TextTokenizer = ENCODER
) -> tuple[list[int], list[int], list[int]]:
    """Returns ids, starts and ends of the tokens of a text."""
    (tokens,) = encoder.encode([text])
    starts, ends = tokens.locate()
    assert tokens.ids.dtype == starts.dtype == ends.dtype == np.int32
    return tokens.ids.tolist(), starts.tolist(), ends.tolist()


@given(st.text())
def test_byte_level_tokens_have_the_oracles_ids_and_offsets(text: str) -> None:
    ids, starts, ends = encode_text(text)
    oracle = SMALL.backend_tokenizer.encode(text, add_special_tokens=False)
    assert ids == oracle.ids
    assert list(zip(starts, ends, strict=True)) == oracle.offsets


def test_a_character_of_several_tokens_is_in_the_span_of_each() -> None:
    _, starts, ends = encode_text("a€b")
    assert starts == [0, 1, 1, 1, 2]
    assert ends == [1, 2, 2, 2, 3]


def test_a_special_token_in_the_text_has_its_offsets() -> None:
    ids, starts, ends = encode_text("ab<eos>c")
    position = ids.index(SMALL.eos_token_id)
    assert (starts[position], ends[position]) == (2, 7)


def test_special_tokens_added_later_have_their_offsets() -> None:
    tokenizer = small_tokenizer()
    tokenizer.add_tokens(["<HTML>", "<é>"], special_tokens=True)
    ids, starts, ends = encode_text("é<HTML><é>x", TextTokenizer(tokenizer))
    assert ids[-3:-1] == [len(tokenizer) - 2, len(tokenizer) - 1]
    assert starts[-3:] == [1, 7, 10]
    assert ends[-3:] == [7, 10, 11]


def test_other_tokenizers_report_their_offsets() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "ein": 1, "Wort": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=words))
    assert encode_text("ein Wört", encoder) == ([1, 0], [0, 4], [3, 8])


def test_a_byte_level_tokenizer_that_adds_a_space_reports_its_offsets() -> None:
    tokenizer = small_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert compute_byte_lengths(tokenizer.backend_tokenizer) is None
    _, _, ends = encode_text("x y", TextTokenizer(tokenizer))
    assert ends[-1] == 3


def test_truncation_and_padding_of_the_tokenizer_are_ignored_and_kept() -> None:
    tokenizer = small_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=5)
    short, long = TextTokenizer(tokenizer).encode(["a", "a b c d e f g"])
    assert len(short.ids) == 1
    assert len(long.ids) > 5
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 2


def test_a_tokenizer_without_a_fast_form_is_refused() -> None:
    class Slow:
        name_or_path = "some/slow"

    with pytest.raises(ConfigurationError, match="some/slow is not a fast tokenizer"):
        TextTokenizer(Slow())
