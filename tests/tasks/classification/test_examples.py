"""Long texts continue in further chunks, and nothing is lost."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.classification.examples import Chunk, Folding, find_special_tokens
from bsmeta.tasks.classification.task import build_micro_batch
from tests.tasks.classification.helpers import TEXT, bert_tokenizer, byte_tokenizer

BERT, BYTES = bert_tokenizer(), byte_tokenizer()


def test_the_example_of_the_seed_document_gives_its_three_rows() -> None:
    (folds,) = Folding(BERT, "words", 4).fold([TEXT])
    assert [fold.text.strip() for fold in folds] == [
        "Beat my Republican opponent!",
        "She will remove stop",
        "signs from your neighborhood.",
    ]
    assert "".join(fold.text for fold in folds) == TEXT


def test_a_text_that_fits_is_one_chunk() -> None:
    (folds,) = Folding(BERT, "tokens", 64).fold([TEXT])
    assert [(fold.ids, fold.text) for fold in folds] == [(BERT(TEXT)["input_ids"], TEXT)]


def test_chunks_of_tokens_are_full() -> None:
    (folds,) = Folding(BERT, "tokens", 7).fold(["stop " * 12])
    assert [len(fold.ids) for fold in folds] == [7, 7, 4]
    assert [fold.text for fold in folds] == ["stop " * 5, "stop " * 5, "stop " * 2]
    assert {(fold.ids[0], fold.ids[-1]) for fold in folds} == {(2, 3)}


def test_a_word_longer_than_the_model_is_cut() -> None:
    tokenizer = bert_tokenizer()
    tokenizer.model_max_length = 8
    (folds,) = Folding(tokenizer, "words", 4).fold(["stop zyxwvutzyxwvu stop"])
    assert max(len(fold.ids) for fold in folds) <= 8
    assert folds[0].text == "stop "
    assert "".join(fold.text for fold in folds) == "stop zyxwvutzyxwvu stop"


def test_special_tokens_of_a_text_are_text() -> None:
    (folds,) = Folding(BERT, "tokens", 64).fold(["stop [SEP] signs [PAD]"])
    assert folds[0].ids.count(BERT.sep_token_id) == 1
    assert BERT.pad_token_id not in folds[0].ids


def test_a_tokenizer_that_truncates_and_pads_folds_all_the_same() -> None:
    tokenizer = bert_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(6)
    tokenizer.backend_tokenizer.enable_padding(length=6)
    (folds,) = Folding(tokenizer, "tokens", 64).fold([TEXT])
    assert [fold.ids for fold in folds] == [BERT(TEXT)["input_ids"]]


def test_text_without_tokens_has_no_chunks() -> None:
    assert Folding(BERT, "tokens", 8).fold(["", "\u200b\x00", "stop"])[:2] == [[], []]
    assert Folding(BERT, "words", 8).fold([]) == []


@pytest.mark.parametrize(("tokenizer", "specials"), [(BERT, ([2], [3])), (BYTES, ([], []))])
def test_special_tokens_are_those_before_and_after_a_text(
    tokenizer: PreTrainedTokenizerFast, specials: tuple[list[int], list[int]]
) -> None:
    assert find_special_tokens(tokenizer) == specials


def test_no_room_beside_the_special_tokens_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="data_config.max_length=2: expected at least 3"):
        Folding(BERT, "tokens", 2)


@given(
    words=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    fold_by=st.sampled_from(["tokens", "words"]),
    max_length=st.integers(3, 12),
)
def test_each_chunk_of_a_batch_has_a_mask_of_its_own(
    words: list[int], fold_by: str, max_length: int
) -> None:
    texts = ["stop signs" * number for number in words]
    chunks = [
        Chunk(fold.ids, source % 2, source, number, fold.text)
        for source, folds in enumerate(Folding(BERT, fold_by, max_length).fold(texts))
        for number, fold in enumerate(folds)
    ]
    batch = build_micro_batch(chunks, BERT, [1.0, 1.0], "a.csv")
    columns = [batch.tensors[name].tolist() for name in ("input_ids", "attention_mask", "labels")]
    for chunk, ids, mask, label in zip(chunks, *columns, strict=True):
        padding = len(ids) - len(chunk.ids)
        assert ids == chunk.ids + [BERT.pad_token_id] * padding
        assert mask == [1] * len(chunk.ids) + [0] * padding
        assert label == chunk.label
    assert batch.tensors["input_ids"].shape[1] == max(len(chunk.ids) for chunk in chunks)


TEXTS = st.text(st.sampled_from("ab stop\n\t é😀!.,'中\u00a0") | st.characters(codec="utf-8"))


@given(
    texts=st.lists(TEXTS, max_size=4),
    tokenizer=st.sampled_from([BERT, BYTES]),
    fold_by=st.sampled_from(["tokens", "words"]),
    max_length=st.integers(3, 12),
)
@example(texts=["\u0301 a b c"], tokenizer=BERT, fold_by="words", max_length=3)
def test_joined_chunks_are_the_text(
    texts: list[str], tokenizer: PreTrainedTokenizerFast, fold_by: str, max_length: int
) -> None:
    prefix, suffix = find_special_tokens(tokenizer)
    for text, folds in zip(texts, Folding(tokenizer, fold_by, max_length).fold(texts), strict=True):
        inner = []
        for fold in folds:
            assert fold.ids[: len(prefix)] == prefix
            assert fold.ids[len(fold.ids) - len(suffix) :] == suffix
            inner.append(fold.ids[len(prefix) : len(fold.ids) - len(suffix)])
            assert inner[-1]
            if fold_by == "tokens":
                assert len(fold.ids) <= max_length
            else:
                # A word of combining accents alone has no token, and is not counted.
                words = [word for word in fold.text.split() if tokenizer.tokenize(word)]
                assert len(words) <= max_length
        whole = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert list(chain(*inner)) == whole
        assert "".join(fold.text for fold in folds) == (text if whole else "")
