"""A trained tokenizer gives every text back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.text.tokenizer_training import END_OF_TEXT, train_tokenizer

TOKENIZER = train_tokenizer(["the river and the stone, the river"] * 3, 270)


def test_frequent_words_become_tokens() -> None:
    assert len(TOKENIZER) == 270
    assert TOKENIZER.tokenize("the river") == ["the", "Ġriver"]
    assert TOKENIZER.eos_token == TOKENIZER.bos_token == END_OF_TEXT
    assert TOKENIZER.convert_tokens_to_ids(END_OF_TEXT) == 0


@given(st.text())
def test_every_text_round_trips(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text
