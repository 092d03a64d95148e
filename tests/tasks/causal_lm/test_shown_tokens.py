"""Tokens read as they are written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from bsmeta.tasks.causal_lm.shown_tokens import Part, TokenTexts, decode_tokens
from tests.data.helpers import page, small_tokenizer
from tests.tasks.causal_lm.explaining.helpers import own_config, own_windows, small_texts

TOKENIZER = small_tokenizer()

TEXTS = small_texts()


@given(st.text())
def test_tokens_join_to_the_text(text: str) -> None:
    ids = TOKENIZER.backend_tokenizer.encode(text, add_special_tokens=False).ids
    texts = TEXTS(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == text


def test_a_character_of_several_tokens_is_shown_by_the_last_token() -> None:
    ids = TOKENIZER.backend_tokenizer.encode("x😁y", add_special_tokens=False).ids
    assert TEXTS(ids) == ["x", "", "", "😁", "y"]
    assert TEXTS(ids[:3]) == ["x", "", "\ufffd"]  # a chunk that ends inside it
    assert TEXTS(ids[3:]) == ["\ufffd", "y"]  # and one that begins there


def test_special_tokens_are_shown_literally() -> None:
    ids = TOKENIZER.backend_tokenizer.encode("é<eos>é", add_special_tokens=False).ids
    assert "".join(TEXTS(ids)) == "é<eos>é"
    assert "<eos>" in TEXTS(ids)


def test_tokens_of_other_tokenizers_are_shown_as_vocabulary_entries() -> None:
    words = Tokenizer(models.WordLevel({"▁the": 0, "fox": 1}, unk_token="fox"))
    assert TokenTexts(PreTrainedTokenizerFast(tokenizer_object=words))([0, 1]) == [" the", "fox"]


def test_tokens_belong_to_the_parts_of_a_document(tmp_path: Path) -> None:
    config = own_config(
        tmp_path,
        [page(3, 6)],
        random_sample_metadata=False,
        metadata_position="both",
        treat_local_metadata_as_regular_text=False,
        max_seq_len=256,
    )
    (window,) = own_windows(config)
    (document,) = window.documents
    (chunk,) = document.chunks
    tokens = decode_tokens(chunk, TEXTS)
    read = {part: "".join(token.text for token in tokens if token.part is part) for part in Part}
    assert read[Part.PREFIX] == document.rendered.prefix
    assert read[Part.SUFFIX] == document.rendered.suffix
    assert read[Part.END] == "<eos>"
    assert "<b class:strong>" in read[Part.LOCAL]
    assert "".join(token.text for token in tokens) == (
        document.rendered.prefix + " " + document.rendered.body + document.rendered.suffix + "<eos>"
    )
    assert {token.token_type for token in tokens if token.part is Part.LOCAL} == {1}  # html
    assert {token.token_type for token in tokens if token.part is Part.SUFFIX} == {
        2,
        3,
    }  # title, url
    assert [token.target for token in tokens] == chunk.loss_mask.tolist()


def test_only_the_last_chunk_has_the_end(tmp_path: Path) -> None:
    config = own_config(tmp_path, [page(3, 80)], metadata_position="append", max_seq_len=64)
    (window,) = own_windows(config)
    (document,) = window.documents
    parts = [
        Counter(token.part for token in decode_tokens(chunk, TEXTS)) for chunk in document.chunks
    ]
    assert [part[Part.END] for part in parts] == [0] * (len(parts) - 1) + [1]
    total = sum(int(np.count_nonzero(chunk.token_types)) for chunk in document.chunks)
    assert sum(part[Part.LOCAL] + part[Part.SUFFIX] + part[Part.PREFIX] for part in parts) == total
