"""Tokenizers that lose no text, recognized by their parts."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers

from bsmeta.data.text.lossless import is_lossless
from bsmeta.data.text.lost_text import find_lossy_texts
from tests.data.lossy_tokenizers import (
    wrapped,
)
from tests.data.text.shown_losses import TOKENIZERS, make_tokenizer, shown_losses


def test_only_byte_level_bpe_that_changes_nothing_is_lossless_at_once() -> None:
    lossless = {name for name in TOKENIZERS if is_lossless(make_tokenizer(name).backend_tokenizer)}
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
    assert find_lossy_texts(wrapped(dropping), ["cb", "cab"]) == [False, True]
    assert shown_losses(wrapped(splitting), "a-b") == ".-."
