"""Tests of the parts of a tokenizer."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence

from bsmeta.data.text.tokenizer_parts import list_pre_tokenizers, read_parts


def test_parts_of_a_tokenizer_follow_its_changes() -> None:
    tokenizer = Tokenizer(BPE({"a": 0, "b": 1}, []))
    assert read_parts(tokenizer)["model"]["vocab"] == {"a": 0, "b": 1}
    assert read_parts(tokenizer)["added_tokens"] == []

    tokenizer.add_special_tokens(["<new>"])
    assert [token["content"] for token in read_parts(tokenizer)["added_tokens"]] == ["<new>"]


def test_pre_tokenizers_of_nested_sequences_are_listed_in_order() -> None:
    tokenizer = Tokenizer(BPE())
    assert list_pre_tokenizers(read_parts(tokenizer)["pre_tokenizer"]) == []

    tokenizer.pre_tokenizer = Sequence([Digits(), Sequence([Punctuation(), ByteLevel()])])
    steps = list_pre_tokenizers(read_parts(tokenizer)["pre_tokenizer"])
    assert [step["type"] for step in steps] == ["Digits", "Punctuation", "ByteLevel"]
