"""Fast tokenizers: the oracle's ids, or left out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.log_once import log_once
from bsmeta.data.text.tokenizer import (
    BACKENDS,
    Backend,
    UnavailableBackendError,
    build_gigatoken_backend,
    build_tiktoken_backend,
    choose_backend,
    count_trained_tokens,
    load_tokenizer_from,
    make_hf_backend,
)
from bsmeta.data.text.tokens import TextTokenizer
from tests.data.helpers import small_tokenizer

SMALL = small_tokenizer().backend_tokenizer
SAMPLE = ["The quick brown fox", "", "don't  stop\n\n 123 😀<eos>x"]


def ids(backend: Backend, texts: Sequence[str]) -> list[list[int]]:
    encodings = backend(texts)
    assert all(ids.dtype == np.int32 for ids in encodings)
    return [ids.tolist() for ids in encodings]


texts_of_all_kinds = st.lists(st.text() | st.text("ab '1\n\t<eos>é"), max_size=4)


@given(texts_of_all_kinds)
def test_tiktoken_has_the_ids_of_the_oracle(texts: list[str]) -> None:
    assert ids(build_tiktoken_backend(SMALL), texts) == ids(make_hf_backend(SMALL), texts)


@given(texts_of_all_kinds)
def test_gigatoken_has_the_ids_of_the_oracle(texts: list[str]) -> None:
    pytest.importorskip("gigatoken", reason="an optional extra")
    assert ids(build_gigatoken_backend(SMALL), texts) == ids(make_hf_backend(SMALL), texts)


def test_tiktoken_knows_special_tokens_added_later() -> None:
    tokenizer = small_tokenizer()
    tokenizer.add_tokens(["<HTML>", "</HTML>"], special_tokens=True)
    oracle = tokenizer.backend_tokenizer
    texts = ["a<HTML><b></HTML>c", "<HTML", "</HTML></HTML>"]
    assert ids(build_tiktoken_backend(oracle), texts) == ids(make_hf_backend(oracle), texts)


def test_tiktoken_supports_a_custom_split_pattern() -> None:
    oracle = Tokenizer.from_str(SMALL.to_str())
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}{1,3}|\s+|[^\s\p{L}\p{N}]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert ids(build_tiktoken_backend(oracle), SAMPLE) == ids(make_hf_backend(oracle), SAMPLE)


def change_oracle(**parts: object) -> Tokenizer:
    oracle = Tokenizer.from_str(SMALL.to_str())
    for name, part in parts.items():
        setattr(oracle, name, part)
    return oracle


@pytest.mark.parametrize(
    ("oracle", "why"),
    [
        (Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), "it is not BPE"),
        (Tokenizer(models.BPE({"a": 0}, [])), "its vocabulary lacks a byte"),
        (change_oracle(normalizer=normalizers.NFC()), "it normalizes the text"),
        (
            change_oracle(pre_tokenizer=pre_tokenizers.Whitespace()),
            "does not split the text by one",
        ),
        (change_oracle(pre_tokenizer=pre_tokenizers.ByteLevel()), "does not split the text by one"),
    ],
)
def test_tokenizers_that_tiktoken_cannot_replace_are_refused(oracle: Tokenizer, why: str) -> None:
    with pytest.raises(UnavailableBackendError, match=why):
        build_tiktoken_backend(oracle)


def test_ambiguous_special_tokens_are_refused_for_tiktoken() -> None:
    tokenizer = small_tokenizer()
    tokenizer.add_tokens(["<a", "<a>"], special_tokens=True)
    with pytest.raises(UnavailableBackendError, match="one of its special tokens begins another"):
        build_tiktoken_backend(tokenizer.backend_tokenizer)


def test_auto_chooses_the_fastest_backend_that_agrees(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(_: Tokenizer) -> Backend:
        return lambda texts: [np.zeros(3, np.int32) for _ in texts]

    def missing(_: Tokenizer) -> Backend:
        raise UnavailableBackendError("it is not installed")

    caplog.set_level(logging.INFO)
    stand_ins = {"wrong": wrong, "missing": missing, **BACKENDS}
    stand_ins.pop("gigatoken")
    monkeypatch.setattr("bsmeta.data.text.tokenizer.BACKENDS", stand_ins)
    log_once.cache_clear()
    for _ in range(2):  # as for each source of a mixture, and for each evaluation
        chosen = choose_backend("auto", SMALL, SAMPLE)
    assert ids(chosen, SAMPLE) == ids(make_hf_backend(SMALL), SAMPLE)
    assert [record.getMessage() for record in caplog.records] == [
        "tokenizer backend wrong differs from the oracle on 3 of 3 texts, so unused",
        "tokenizer backend missing is not used: it is not installed",
        "tokenizer backend: tiktoken (same ids on 3 texts)",
    ]


def test_a_requested_backend_that_differs_is_replaced_by_the_oracle(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(
        BACKENDS, "tiktoken", lambda _: lambda texts: [np.zeros(1, np.int32) for _ in texts]
    )
    log_once.cache_clear()
    chosen = choose_backend("tiktoken", SMALL, SAMPLE)
    assert ids(chosen, SAMPLE) == ids(make_hf_backend(SMALL), SAMPLE)
    assert "differs from the oracle on 3 of 3 texts" in caplog.text


def test_a_requested_backend_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer_backend=tiktoken cannot be used"):
        choose_backend("tiktoken", change_oracle(normalizer=normalizers.NFC()), SAMPLE)


def test_other_tokenizers_than_byte_level_need_the_oracle() -> None:
    tokenizer = small_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ConfigurationError, match="tiktoken needs byte-level BPE"):
        TextTokenizer(tokenizer, "tiktoken")
    assert TextTokenizer(tokenizer, "auto").encode(["x y"])


@pytest.mark.parametrize("content", ["{}", '{"model": 1}', "{"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    small_tokenizer().save_pretrained(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigurationError, match=f"tokenizer_name: {tmp_path} cannot be loaded: "):
        load_tokenizer_from(str(tmp_path))


def save_words(folder: Path, *words: str) -> str:
    """Saves a tokenizer whose words have the ids from 0 on; returns its folder."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return str(folder)


def test_a_tokenizer_may_have_further_tokens_than_the_model_was_trained_with(
    tmp_path: Path,
) -> None:
    base = save_words(tmp_path / "base", "a", "b", "c")
    wider = save_words(tmp_path / "wider", "a", "b", "c", "d", "e")
    assert count_trained_tokens(base, wider, load_tokenizer_from(wider)) == 3
    assert count_trained_tokens(base, None, load_tokenizer_from(base)) == 3
    (tmp_path / "none").mkdir()
    assert count_trained_tokens(str(tmp_path / "none"), wider, load_tokenizer_from(wider)) is None


def test_a_tokenizer_with_other_ids_is_refused_with_the_first_differences(tmp_path: Path) -> None:
    base = save_words(tmp_path / "base", "a", "b", "c", "d", "e", "f")
    other = save_words(tmp_path / "other", "a", "c", "b", "d", "x", "y", "z")
    with pytest.raises(ConfigurationError) as caught:
        count_trained_tokens(base, other, load_tokenizer_from(other))
    assert str(caught.value) == (
        f"tokenizer_name: {other} has other tokens than the tokenizer in {base} at 4 of 6 ids "
        "(1: 'c' instead of 'b', 2: 'b' instead of 'c', 4: 'x' instead of 'e'), so the model would "
        "take its tokens for others. Expected the same token at each id, and new tokens after "
        "them. Fix: tokenizer_name=null; or model_config_file, for random weights"
    )
    assert caught.value.keys == {"tokenizer_name"}
