"""Borders of words across which no token reaches."""

from __future__ import annotations

import pytest
from tokenizers import (
    Tokenizer,
    models,
    normalizers,
)

from bsmeta.data.text.tokenizer import BACKENDS
from bsmeta.data.text.word_bounds import InseparableError, check_separable
from tests.data.made_tokenizers import (
    metaspace_bpe,
)


@pytest.mark.parametrize("cut", [" b", " (b", " b."])
def test_merges_that_cross_words_are_refused(cut: str) -> None:
    vocabulary = {token: number for number, token in enumerate(["<unk>", "▁", "a", "b", "a▁"])}
    model = models.BPE(vocabulary, [("a", "▁")], unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    with pytest.raises(InseparableError, match="it merges 'a' and '▁' across words"):
        check_separable(tokenizer)
    ids = [encoding.tolist() for encoding in BACKENDS["hf"](tokenizer)(["a" + cut])]
    assert ids == [tokenizer.encode("a" + cut).ids]


def test_a_merge_without_split_may_begin_with_spaces() -> None:
    tokenizer = metaspace_bpe("first")
    assert tokenizer.token_to_id("▁fox") is not None
    check_separable(tokenizer)
